"""The house is tidy: rules about the text of the repository that no linter knows.

Each rule is a function from one file's source to complaints, so that each is also shown to find what it is for.
"""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.support.sources import REPOSITORY, dotted_name, files, nodes, parsed, text

CODE = ("sparklog", "pyspark_sparklog", "jobs", "benchmarks", "examples", "scripts", "tests")
CLEAN_ROOMS = ("sparklog", "docs")
"""Folders and files that hold the rules `nounless`, `clumsy_words`, `clumsy_prose`, `repeated_classes`."""
TEXT_SUFFIXES = {".py", ".md", ".toml", ".sh", ".yaml", ".yml", ".conf", ".cfg", ".txt"}
TEXT_NAMES = {"Makefile", "run", ".gitignore"}

MODULE_LINES = 500
TEST_MODULE_LINES = 800
FUNCTION_LINES = 70
PARAMETERS = 10
KERNELS = ("sparklog/format/kernels/", "sparklog/format/legacy/")

# Spelt in two parts, so that this file holds none of them.
BANNED = tuple(
    first + second
    for first, second in (
        ("TO", "DO"),
        ("FIX", "ME"),
        ("XX", "X:"),
        ("HA", "CK"),
        ("future ", "work"),
        ("sub-", "agent"),
        ("not yet ", "implemented"),
        ("NotImplemented", "Error"),
        ("dbg", "("),
        ("breakpoint", "()"),
        ("pdb.", "set_trace"),
    )
)
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:wo" + r"rk|ro" + r"ot|home/\w+|Users/\w+|tmp/s" + r"l)/")

# A reader whose English is not ours guesses wrong at these.
RIDDLES = {"found", "said", "told", "own", "there", "nobody", "somebody", "whoever"}
NOUNLESS = {*RIDDLES, "each", "at", "known"}
QUESTIONS = {"What", "Of", "Who", "Whose", "Whether", "How", "Let", "Where", "Why", "When", "That"}

# Words for which plain English has another, and the other. What is right English passes: `RIGHT` is taken out first.
CLUMSY = {
    r"anew": "again",
    r"lies?(?! (?:within|between|inside|outside|side by side|back to back))": "is",
    r"stands?(?= (?:in(?! for| place)|at|as|on|before|behind|after|beside|between|where|here|nowhere)\b)": "is",
    r"behind": "after",
    r"as\s[^.,;:()`]{1,40}\shas\sit": "as in",
    r"go(?:es|ing)? by": "uses, follows",
    r"(?:that|which) (?:is|are) none": "not a",
    r"nobody|somebody|whoever": "name who",
}
RIGHT = re.compile(
    r"`[^`\n]*`"
    r"|lag\w* behind|(?:is|are|be|was|were|far|furthest|fall\w*|fell|seconds|minutes|-) ?behind"
    r"|behind latest|as (?:it|they) stands?"
    r"|(?:left|leav\w+)(?: \w+)?\sbehind"
    r"|behind (?:a|an|the|its) (?:proxy|endpoint|mount|lock|server|load balancer)",
    re.IGNORECASE,
)

# Effects have homes: clocks and randomness come in through Env, files through Store.
EFFECTS = {
    "time.time", "time.time_ns", "time.monotonic", "time.clock_gettime", "time.sleep",
    "datetime.now", "datetime.utcnow", "datetime.datetime.now", "datetime.datetime.utcnow",
    "random.Random", "random.SystemRandom", "random.random", "random.randrange",
    "os.urandom", "secrets.token_bytes", "secrets.token_hex", "uuid.uuid4", "uuid.uuid1",
    "open", "os.open", "io.open",
}  # fmt: skip
# Module prefix -> calls allowed there.
HOMES: dict[str, frozenset[str]] = {
    "sparklog/log/journal/clocks.py": frozenset(EFFECTS),
    "sparklog/storage/": frozenset(EFFECTS),
    "sparklog/kafka/": frozenset({"open", "os.open"}),
    "sparklog/testing/": frozenset({"random.Random"}),
    "sparklog/cli/locations.py": frozenset({"open"}),
    "sparklog/cli/": frozenset({"os.open", "time.sleep", "time.monotonic"}),
}


def python_files() -> list[Path]:
    return list(files(*CODE, suffixes={".py"}))


@functools.cache
def functions(source: str) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Functions at whatever depth. Expressions hold none, so they are not walked."""
    found = []
    blocks: list[ast.AST] = [parsed(source)]
    while blocks:
        block = blocks.pop()
        if isinstance(block, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found.append(block)
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            blocks += getattr(block, name, ()) if isinstance(getattr(block, name, ()), list) else ()
    return found


def missing_docstring(source: str) -> list[str]:
    return [] if ast.get_docstring(parsed(source)) else ["no docstring says what this module is for"]


def too_long(source: str, module_lines: int = MODULE_LINES) -> list[str]:
    lines = source.count("\n")
    found = [f"{lines} lines: split it, {module_lines} are enough"] if lines > module_lines else []
    for function in functions(source):
        length = (function.end_lineno or function.lineno) - function.lineno + 1
        if length > FUNCTION_LINES:
            found.append(f"line {function.lineno}: {function.name} has {length} lines, {FUNCTION_LINES} are enough")
    return found


def clean_files(*suffixes: str) -> list[Path]:
    """Files below `CLEAN_ROOMS`."""
    paths = files(*{room.partition("/")[0] for room in CLEAN_ROOMS}, suffixes=set(suffixes))
    return [path for path in paths if any(path.is_relative_to(REPOSITORY / room) for room in CLEAN_ROOMS)]


def too_many_parameters(source: str, path: str) -> list[str]:
    """Functions that take more than a reader keeps in mind; numba's take arrays one by one."""
    found = []
    for function in functions(source):
        given = function.args
        number = len([*given.posonlyargs, *given.args, *given.kwonlyargs])
        compiled = path.startswith(KERNELS) and bool(function.decorator_list)
        if number > PARAMETERS and not compiled:
            found.append(f"line {function.lineno}: {function.name} takes {number} values, {PARAMETERS} are enough")
    return found


def riddles(source: str, names: set[str] = RIDDLES) -> list[str]:
    """Names that say nothing of their value, and docstrings that begin as a question."""
    complaints = []
    fields = {
        id(node.target)
        for block in nodes(source)
        if isinstance(block, ast.ClassDef)
        for node in block.body
        if isinstance(node, ast.AnnAssign)
    }
    for node in nodes(source):
        name = node.arg if isinstance(node, ast.arg) else None
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in fields:
            name = node.id
        if name in names:
            complaints.append(f"line {node.lineno}: {name!r} could be anything: name the value")  # type: ignore[attr-defined]
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            opening = (ast.get_docstring(node) or "").partition(" ")[0]
            if opening in QUESTIONS:
                line = getattr(node, "lineno", 1)
                complaints.append(f"line {line}: begin a docstring with a verb or a noun, not {opening!r}")
    return complaints


def nounless(source: str) -> list[str]:
    return riddles(source, NOUNLESS)


def clumsy_words(source: str) -> list[str]:
    """Words of a dialect in docstrings, comments and strings. A string of one word is a name, and passes."""
    if not any(re.search(pattern, source, re.IGNORECASE) for pattern in CLUMSY):
        return []
    texts = [
        (node.lineno, node.value)
        for node in nodes(source)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.search(r"\s", node.value)
    ]
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    texts += [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]
    return [complaint for line, text in sorted(texts) for complaint in _clumsy(text, line)]


def clumsy_prose(page: str) -> list[str]:
    """Words of a dialect on a page, outside of its blocks of code."""
    return _clumsy(re.sub(r"(?ms)^ *```.*?^ *```", lambda block: "\n" * block.group().count("\n"), page), 1)


def _clumsy(text: str, line: int) -> list[str]:
    text = RIGHT.sub(lambda words: "\n" * words.group().count("\n"), text)
    return [
        f"line {line + text[: match.start()].count(chr(10))}: {match.group()!r}: say {better!r}"
        for pattern, better in CLUMSY.items()
        for match in re.finditer(rf"\b(?:{pattern})\b", text, re.IGNORECASE)
    ]


def repeated_classes(sources: Mapping[str, str]) -> list[str]:
    """Class names that several places define, by the source of each place."""
    places: dict[str, list[str]] = {}
    for path, source in sources.items():
        for node in nodes(source):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(f"{path}:{node.lineno}")
    return [f"class {name} is in {', '.join(where)}" for name, where in sorted(places.items()) if len(where) > 1]


def banned_words(source: str) -> list[str]:
    return [f"line {_line(source, word)}: {word!r} is for unfinished things" for word in BANNED if word in source]


def machine_paths(source: str) -> list[str]:
    return [f"{match.group()} is a path of one machine" for match in MACHINE_PATH.finditer(source)]


def ragged_lines(source: str) -> list[str]:
    found = [f"line {n}: blanks at its end" for n, line in enumerate(source.split("\n"), 1) if line != line.rstrip()]
    return found if not source or source.endswith("\n") else [*found, "no newline at the end"]


def assertion_free(source: str) -> list[str]:
    """Tests that assert nothing, neither themselves nor in a function of their module that they call."""
    helpers = {function.name for function in functions(source) if _asserts(function, set())}
    return [
        f"line {function.lineno}: {function.name} asserts nothing"
        for function in functions(source)
        if function.name.startswith("test_") and not _asserts(function, helpers)
    ]


def _asserts(function: ast.AST, helpers: set[str]) -> bool:
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call):
            name = dotted_name(node.func)
            last = name.rpartition(".")[2].lstrip("_")
            if name in ("pytest.raises", "pytest.warns") or name in helpers or last.startswith("assert_"):
                return True
    return False


def stray_effects(source: str, path: str) -> list[str]:
    allowed = frozenset().union(*(calls for home, calls in HOMES.items() if path.startswith(home)))
    return [
        f"line {node.lineno}: {name}() belongs behind Env or Store"
        for node in nodes(source)
        if isinstance(node, ast.Call) and (name := dotted_name(node.func)) in EFFECTS - allowed
    ]


def _line(source: str, word: str) -> int:
    return source[: source.index(word)].count("\n") + 1


def complaints(paths: list[Path], rule: Callable[[str], list[str]]) -> str:
    return "\n".join(f"{path.relative_to(REPOSITORY)}: {complaint}" for path in paths for complaint in rule(text(path)))


def test_every_module_says_what_it_is_for() -> None:
    paths = [path for path in python_files() if path.name != "__init__.py" or path.stat().st_size]
    assert not complaints(paths, missing_docstring)


def test_modules_and_functions_fit_a_reader() -> None:
    tests = set(files("tests", suffixes={".py"}))
    assert not complaints([path for path in python_files() if path not in tests], too_long)
    assert not complaints(sorted(tests), lambda source: too_long(source, TEST_MODULE_LINES))


def test_functions_take_ten_values_at_most() -> None:
    paths = files("sparklog", "pyspark_sparklog", "jobs", suffixes={".py"})
    sources = {path.relative_to(REPOSITORY).as_posix(): text(path) for path in paths}
    found = [f"{path}: {line}" for path, source in sources.items() for line in too_many_parameters(source, path)]
    assert not found, "\n".join(found)


def test_names_and_docstrings_are_no_riddles() -> None:
    assert not complaints(list(files("sparklog", "jobs", suffixes={".py"})), riddles)


def test_clean_rooms_use_nouns_and_plain_words() -> None:
    assert not complaints(clean_files(".py"), nounless)
    assert not complaints(clean_files(".py"), clumsy_words)
    assert not complaints(clean_files(".md"), clumsy_prose)


def test_clean_rooms_define_a_class_once() -> None:
    sources = {path.relative_to(REPOSITORY).as_posix(): text(path) for path in clean_files(".py")}
    repeated = repeated_classes(sources)
    assert not repeated, "\n".join(repeated)


def test_nothing_is_left_unfinished() -> None:
    paths = [path for path in files(suffixes=TEXT_SUFFIXES, names=TEXT_NAMES) if path != Path(__file__)]
    assert not complaints(paths, banned_words)


def test_nothing_knows_this_machine() -> None:
    assert not complaints(list(files(suffixes=TEXT_SUFFIXES, names=TEXT_NAMES)), machine_paths)


def test_lines_end_where_they_end() -> None:
    assert not complaints(list(files(suffixes=TEXT_SUFFIXES, names=TEXT_NAMES)), ragged_lines)


def test_every_test_asserts() -> None:
    assert not complaints(list(files("tests", suffixes={".py"})), assertion_free)


def test_clocks_chance_and_files_have_homes() -> None:
    paths = list(files("sparklog", "pyspark_sparklog", suffixes={".py"}))
    found = [
        f"{path.relative_to(REPOSITORY)}: {complaint}"
        for path in paths
        for complaint in stray_effects(text(path), path.relative_to(REPOSITORY).as_posix())
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("rule", "bad", "good"),
    [
        (missing_docstring, "x = 1\n", '"""Says it."""\nx = 1\n'),
        (too_long, "def f():\n" + "    x = 1\n" * FUNCTION_LINES, "def f():\n" + "    x = 1\n" * (FUNCTION_LINES - 1)),
        (too_long, "x = 1\n" * (MODULE_LINES + 1), "x = 1\n" * MODULE_LINES),
        (
            lambda source: too_many_parameters(source, "x.py"),
            f"def f({', '.join('abcdefghijk')}): ...\n",
            "def f(a): ...\n",
        ),
        (riddles, "found = 1\n", "size = 1\n"),
        (riddles, "def f(told):\n    pass\n", "class Finding:\n    found: str\n"),
        (riddles, 'def f():\n    """Whether it is."""\n', 'def f():\n    """Return True if it is."""\n'),
        (riddles, "def f():\n    found: int = 1\n", "class Finding:\n    found: int = 1\n"),
        (nounless, "for each in names:\n    pass\n", "for name in names:\n    pass\n"),
        (nounless, "x = [at for at in y]\n", "x = [row for row in y]\n"),
        (nounless, "f = lambda known: 1\n", "f = lambda size: 1\n"),
        (clumsy_words, '"""Build it anew."""\n', '"""Build it again; `anew`."""\n'),
        (clumsy_words, "# the record lies after it\n", "# the record lies within its batch\n"),
        (clumsy_words, "f(f'{n} bytes behind the last')\n", "f(f'{behind} lags behind', 'behind')\n"),
        (clumsy_words, "# bytes behind the batch\n", "# left behind a proxy, far and furthest behind\n"),
        (clumsy_words, '"""Hash, as Kafka\n has it."""\n', '"""Hash, as Kafka does. It has it."""\n'),
        (clumsy_words, "# it goes by the clock\n", "# it uses the clock\n"),
        (clumsy_words, "# a place that is none\n", "# what is none of these\n"),
        (clumsy_words, "# the key stands before it\n", "# it stands for, and in for, the key, as it stands\n"),
        (clumsy_words, "# Nobody reads it\n", "# no process reads it\n"),
        (clumsy_prose, "Look behind it.\n", "```sh\n# behind\n```\nA `behind`.\n"),
        (
            lambda source: repeated_classes({"a.py": source, "b.py": "def f():\n    class Window: ...\n"}),
            "class Window: ...\n",
            "class Windows: ...\n",
        ),
        (banned_words, "# " + BANNED[0] + ": later\n", "# done\n"),
        (machine_paths, "cd /wo" + "rk/main\n", "cd /data/log\n"),
        (ragged_lines, "x = 1 \n", "x = 1\n"),
        (ragged_lines, "x = 1", ""),
        (assertion_free, "def test_a():\n    f()\n", "def test_a():\n    assert f()\n"),
        (assertion_free, "def test_a():\n    f()\n", "def test_a():\n    with pytest.raises(E):\n        f()\n"),
        (assertion_free, "def test_a():\n    f()\n", "def f():\n    assert g()\ndef test_a():\n    f()\n"),
        (lambda source: stray_effects(source, "sparklog/log/topic/topic.py"), "time.time()\n", "env.wall_ms()\n"),
        (lambda source: stray_effects(source, "sparklog/format/encode.py"), "open('x')\n", "topic.open('x')\n"),
    ],
)
def test_each_rule_finds_what_it_is_for(rule: Callable[[str], list[str]], bad: str, good: str) -> None:
    assert rule(bad)
    assert not rule(good)
