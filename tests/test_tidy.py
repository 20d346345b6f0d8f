"""Test rules about the source files of the repository that no linter checks.

Each rule is a function that returns complaints about the source of a file, so that tests can check that it detects
violations.
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
TEXT_SUFFIXES = {".py", ".md", ".toml", ".sh", ".yaml", ".yml", ".conf", ".cfg", ".txt"}
TEXT_NAMES = {"Makefile", "run", ".gitignore"}

# Only lines with code are counted, not docstrings, comments and blank lines.
MODULE_LINES = 500
TEST_MODULE_LINES = 800
FUNCTION_LINES = 70
PARAMETERS = 10
KERNELS = ("sparklog/format/kernels/", "sparklog/format/legacy/")

# The words are written in two parts, so that this file does not contain them.
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

# Clocks and random numbers are used only through Env, and files only through Store.
EFFECTS = {
    "time.time", "time.time_ns", "time.monotonic", "time.clock_gettime", "time.sleep",
    "datetime.now", "datetime.utcnow", "datetime.datetime.now", "datetime.datetime.utcnow",
    "random.Random", "random.SystemRandom", "random.random", "random.randrange",
    "os.urandom", "secrets.token_bytes", "secrets.token_hex", "uuid.uuid4", "uuid.uuid1",
    "open", "os.open", "io.open",
}  # fmt: skip
# Maps a module prefix to the calls that are allowed in these modules.
HOMES: dict[str, frozenset[str]] = {
    "sparklog/log/journal/clocks.py": frozenset(EFFECTS),
    "sparklog/storage/": frozenset(EFFECTS),
    "sparklog/kafka/": frozenset({"open", "os.open"}),
    "sparklog/testing/": frozenset({"random.Random"}),
    "sparklog/console/locations.py": frozenset({"open"}),
    "sparklog/cli/": frozenset({"os.open", "time.sleep", "time.monotonic"}),
}


def python_files() -> list[Path]:
    return list(files(*CODE, suffixes={".py"}))


@functools.cache
def functions(source: str) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the functions of a module at any depth. Expressions are not visited, because they contain no functions."""
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


@functools.cache
def code_lines(source: str) -> int:
    """Return the number of lines with code. Docstrings, lines with only a comment, and blank lines are not counted."""
    layout = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in layout:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in nodes(source):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def too_long(source: str, module_lines: int = MODULE_LINES) -> list[str]:
    lines = code_lines(source) if source.count("\n") > module_lines else 0
    found = [f"{lines} lines of code: split it, {module_lines} are enough"] if lines > module_lines else []
    for function in functions(source):
        length = (function.end_lineno or function.lineno) - function.lineno + 1
        if length > FUNCTION_LINES:
            found.append(f"line {function.lineno}: {function.name} has {length} lines, {FUNCTION_LINES} are enough")
    return found


def too_many_parameters(source: str, path: str) -> list[str]:
    """Return the functions with too many parameters.

    Kernels are excluded, because their arrays are separate parameters.
    """
    found = []
    for function in functions(source):
        given = function.args
        number = len([*given.posonlyargs, *given.args, *given.kwonlyargs])
        compiled = path.startswith(KERNELS) and bool(function.decorator_list)
        if number > PARAMETERS and not compiled:
            found.append(f"line {function.lineno}: {function.name} takes {number} values, {PARAMETERS} are enough")
    return found


def repeated_classes(sources: Mapping[str, str]) -> list[str]:
    """Return the public class names that several modules define. `sources` contains the source of each path."""
    places: dict[str, list[str]] = {}
    for path, source in sources.items():
        for node in nodes(source):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
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
    """Return the tests that assert nothing, neither directly nor in a function of their module that they call."""
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


def test_every_module_has_a_docstring() -> None:
    paths = [path for path in python_files() if path.name != "__init__.py" or path.stat().st_size]
    assert not complaints(paths, missing_docstring)


def test_modules_and_functions_are_not_too_long() -> None:
    tests = set(files("tests", suffixes={".py"}))
    assert not complaints([path for path in python_files() if path not in tests], too_long)
    assert not complaints(sorted(tests), lambda source: too_long(source, TEST_MODULE_LINES))


def test_functions_have_at_most_ten_parameters() -> None:
    paths = files("sparklog", "pyspark_sparklog", "jobs", suffixes={".py"})
    sources = {path.relative_to(REPOSITORY).as_posix(): text(path) for path in paths}
    found = [f"{path}: {line}" for path, source in sources.items() for line in too_many_parameters(source, path)]
    assert not found, "\n".join(found)


def test_a_public_class_name_is_defined_once() -> None:
    paths = files("sparklog", suffixes={".py"})
    repeated = repeated_classes({path.relative_to(REPOSITORY).as_posix(): text(path) for path in paths})
    assert not repeated, "\n".join(repeated)


def test_no_unfinished_markers() -> None:
    paths = [path for path in files(suffixes=TEXT_SUFFIXES, names=TEXT_NAMES) if path != Path(__file__)]
    assert not complaints(paths, banned_words)


def test_no_machine_paths() -> None:
    assert not complaints(list(files(suffixes=TEXT_SUFFIXES, names=TEXT_NAMES)), machine_paths)


def test_lines_have_no_trailing_whitespace() -> None:
    assert not complaints(list(files(suffixes=TEXT_SUFFIXES, names=TEXT_NAMES)), ragged_lines)


def test_every_test_asserts() -> None:
    assert not complaints(list(files("tests", suffixes={".py"})), assertion_free)


def test_clocks_random_numbers_and_files_are_used_only_in_listed_modules() -> None:
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
        (too_long, "x = 1\n" * (MODULE_LINES + 1), '"""Two\nlines."""\n' + "# why\n\nx = 1\n" * MODULE_LINES),
        (
            lambda source: too_many_parameters(source, "x.py"),
            f"def f({', '.join('abcdefghijk')}): ...\n",
            "def f(a): ...\n",
        ),
        (
            lambda source: repeated_classes({"a.py": source, "b.py": "def f():\n    class Window: ...\n"}),
            "class Window: ...\n",
            "class Windows: ...\n",
        ),
        (
            lambda source: repeated_classes({"a.py": source, "b.py": source}),
            "class Window: ...\n",
            "class _Window: ...\n",
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
def test_each_rule_detects_violations(rule: Callable[[str], list[str]], bad: str, good: str) -> None:
    assert rule(bad)
    assert not rule(good)
