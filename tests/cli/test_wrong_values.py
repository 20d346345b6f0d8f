"""Invalid values of every option of every command: the error is one line with the value, and nothing is written.

The table is generated from the declarations. The invalid values depend on the kind of an option's value, so new options
are covered automatically. Only a valid command line for each command and some special cases are written by hand.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from io import StringIO
from pathlib import Path

import pytest
from click import Choice, Context, Option, Parameter
from click.testing import CliRunner
from click.types import FuncParamType
from click.types import Path as PathType

import sparklog as library
from sparklog.console.locations import resolve_root_name
from sparklog.console.option_rules import names_of
from sparklog.console.parameters import FunctionCommand
from tests.cli.test_every_command import commands
from tests.cli.test_option_rules import ON_SPARK, every_command, typed
from tests.support.command_line import invoke

KAFKA = Path(__file__).parents[2] / "examples" / "data" / "kafka-log-dir"
NEVER_RUN = [name for name in ON_SPARK if name not in ("compact", "retain")]
"""Commands of which only the arguments are parsed, because the commands would start Spark."""
RIGHT: Mapping[str, Mapping[str, str | None]] = {
    "topics create": {"TOPIC": "new"},
    "topics list": {},
    "topics describe": {},
    "topics alter": {"TOPIC": "orders", "--partitions": "9"},
    "topics delete": {"TOPIC": "orders"},
    "configs describe": {"TOPIC": "orders"},
    "configs alter": {"TOPIC": "orders", "--add-config": "retention.ms=100000"},
    "configs docs": {},
    "produce": {"TOPIC": "orders", "--file": "{p}/file"},
    "consume": {"TOPIC": "orders"},
    "get": {"TOPIC": "orders", "--key": "a"},
    "table": {"TOPIC": "clicks"},
    "offsets": {"TOPIC": "orders"},
    "delete-records": {"TOPIC": "orders", "--partition": "0", "--offset": "0"},
    "groups list": {},
    "groups describe": {"GROUP": "g"},
    "groups reset": {"GROUP": "g", "--topic": "orders", "--to-earliest": None},
    "groups history": {"GROUP": "g"},
    "groups delete": {"GROUP": "g"},
    "groups delete-offsets": {"GROUP": "g", "--topic": "orders"},
    "transactions list": {},
    "transactions describe": {"ID": "none"},
    "transactions history": {"ID": "none"},
    "transactions abort": {"ID": "none"},
    "compact": {},
    "retain": {},
    "stream": {"--source": "{r}", "--root": "{p}/new", "--checkpoint": "{p}/c", "--subscribe": "orders"},
    "mirror": {"--from": "kafka://h:9", "--to": "{r}", "--checkpoint": "{p}/c", "--topics": "orders"},
    "to-delta": {"--root": "{r}", "--topic": "orders", "--table": "{p}/t", "--checkpoint": "{p}/c"},
    "from-delta": {
        "--root": "{r}",
        "--table": "{p}/t",
        "--topic": "orders",
        "--checkpoint": "{p}/c",
        "--key-columns": "id",
    },
    "to-iceberg": {"--root": "{r}", "--topic": "orders", "--table": "shop.orders"},
    "jobs": {},
    "conf": {"NAME": "crontab"},
    "import": {"PATH": str(KAFKA), "--root": "{p}/new"},
    "export": {"TOPIC": "orders", "--to": "{p}/new"},
    "backup": {"--to": "{p}/new"},
    "restore": {"PATH": "{p}/b", "--to": "{p}/new"},
    "clone": {"TOPIC": "orders", "NEW-NAME": "new"},
    "repartition": {"TOPIC": "orders", "--to": "new", "--partitions": "5"},
    "history": {"TOPIC": "orders"},
    "log-dirs": {},
    "dump-log": {"PATH": str(KAFKA)},
    "report": {"--html": "{p}/new"},
    "metrics": {},
    "verify": {},
    "repair": {"LOCATION": "{r}"},
    "doctor": {"--cost": None},
    "serve": {"LOCATION": "{r}"},
    "perf produce": {"--topic": "orders", "--num-records": "1", "--record-size": "5"},
    "perf consume": {"--topic": "orders", "--messages": "1"},
}
"""A valid command line for each command. `{p}` is the directory of `place`, and `{r}` is its root."""
INSTEAD: Mapping[str, Mapping[str, str | None]] = {
    "--key-schema": {"--key-format": "avro", "--key-separator": ":"},
    "--value-schema": {"--value-format": "avro"},
    "--schema-registry": {"--value-format": "avro", "--payload": "avro"},
    "--registry-config": {"--value-format": "avro", "--payload": "avro", "--schema-registry": "http://127.0.0.1:1"},
    "--payload-delimiter": {"--payload-file": "{p}/file"},
    "--schema": {"--payload": "json"},
    "--max-age": {"--root": "{r}"},
    "--tls-cert": {"--tls-key": "{p}/file"},
    "--tls-key": {"--tls-cert": "{p}/file"},
    "--interval": {"--follow": None},
}
"""Additional options that are required to validate the value of an option."""
ALTERNATIVES = (
    {"TOPIC", "--topic", "--pattern", "--include", "--topic-partitions", "--topic-list"},
    {"GROUP", "--group"},
    {"PATH", "--from", "--files", "--from-server-properties"},
    {"LOCATION", "--root", "--store", "--conf-file", "--cost", "--memory"},
    {"--to-earliest", "--to-offset", "--shift-by", "--to-datetime", "--by-duration", "--from-file"},
    {"--record-size", "--payload-file"},
    *({"--offset-json-file", name} for name in ("TOPIC", "--partition", "--offset")),
    {"--topics", "--subscribe", "--subscribe-pattern", "--pattern"},
)
"""Groups of options, of which a command line contains one."""
SURROGATE, HUGE, LONG = "\udcff", "9" * 30, "9" * 5000

FREE = (
    *("--key", "--key-separator", "--line-separator", "--headers-separator", "--headers-delimiter"),
    *("--headers-key-separator", "--null-literal", "--null-marker", "--format", "--payload-delimiter", "--header"),
    *("--checkpoint", "--starting-offsets", "--source", "--subscribe", "--subscribe-pattern", "--topics"),
    *("--key-columns", "--kafka-option", "--schema", "--registry-cache", "--catalog"),
    *("--key-message", "--value-message", "--message", "--key-refs", "--value-refs", "--value-subject"),
)
"""Options that accept any text, or whose values are validated after Spark has started or with a schema."""
OUTPUTS = ("--html", "--output-file", "--output")
FOLDERS = ("--to", "--from", "PATH", "LOCATION", "--store", "--files", "--table")
FORMS: Mapping[str, tuple[str, ...]] = {
    "TIME": ("2026-13-01", "2026-01-31T25:00:00", "1969-01-01", "-5"),
    "AGE": ("3", "3w", "-3h"),
    "AGE|never": ("3", "3w", "always"),
    "PERIOD": ("3", "3 weeks", "-3h"),
    "PARTITIONING": ("x", "day", "hour(a)", "bucket(0, a)", "bucket(a)"),
    "PROPERTY=VALUE": ("x", "=x"),
    "NAMESPACE.TABLE": ("x", "x.", ".x"),
    "N|-N|earliest|latest": ("beginning", "--1", "1.5"),
    "-1|-2|-3|MS": ("-9", "soon"),
    "VERSION|TIME": ("-1", "1.5", "2026-13-01"),
    "latest|TIME|VERSION": ("-1", "2026-13-01"),
    "JSON": ("[]", "{", '{"0":-1}', '{"x":1}', '{"0":"1"}'),
    "0,2-4": ("4-2", "-1", "1.5", "100000"),
    "N,...": ("-1", "1.5", "7", HUGE),
    "N|P:N,...": ("-1", "0:", "0:-1", "7:1", "1:1,"),
    "TOPIC[:N|:N-M],...": ("orders:9", "orders:1-x", "nosuch"),
    "TOPIC[:P,...]": ("orders:-1", "orders:9", "nosuch", "orders:"),
    "PnDTnHnMnS": ("2h", "P", "PT", "PT-5M", f"PT{LONG}S"),
    "[TOPIC=]ID": ("x", "orders=x", "nosuch=AAAAAAAAAAAAAAAAAAAAAQ"),
    "NAME,...|all": ("nosuch",),
    "[STATE,...]": ("Happy",),
    "OLD=NEW": ("x", "=x", "nosuch=x", "orders=a/b", "orders=clicks"),
    "HOST:PORT": ("localhost", "localhost:x", "localhost:99999", ":9", "http://localhost:9"),
    "MS,MS,...": ("-1", "1_0", "nan", "5,x"),
    "NAME=VALUE": ("x", "=x", "nosuch=1"),
    "NAME=VALUE,...": ("x", "=x", "nosuch=1", "retention.ms=soon", "retention.ms=1,"),
    "NAME,...": ("nosuch",),
    "REGEX": ("(", "[", "nosuch.*"),
    "PATTERN": ("(", "[", "nosuch.*"),
    "PLACE": ("kafka://", "kafka://h", "kafka://h:x", "h:9"),
    "N|latest": ("-1", "1.5"),
    "[NAME=VALUE]...": ("x", "=x", "nosuch=1", "batch_bytes=1_0", "linger.ms=soon", "batch_bytes=-1"),
    "[NAME]...": ("nosuch",),
    "[ID=]FILE": (),
    "URL": ("localhost:8081", "ftp://h", "http://", "http://h:x"),
    "NAME": ("nosuch",),
    "ID": ("nosuch",),
    "--pattern": ("(", "["),
}
"""Invalid values of options with a format, by the metavar in the help."""


@dataclass(frozen=True)
class Case:
    """A command line with one invalid value. `places` is True if the value is a path, which errors print without
    quotes.
    """

    command: str
    words: tuple[str, ...]
    value: str
    is_path: bool = False

    def __str__(self) -> str:
        return f"{self.command}: {' '.join(self.words)!a:.200}"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    root = library.open(folder / "r", create=True)
    root.create_topic("orders", partitions=3).append({"key": ["a"], "value": ["1"]})
    root.create_topic("clicks", configs={"cleanup.policy": "compact"})
    library.Groups(root).group("g").alter({"orders": {0: 1}})
    library.backup(root, to=str(folder / "b"))
    (folder / "file").write_bytes(b"a\xff\tb\n")
    (folder / "dir" / "full").mkdir(parents=True)
    (folder / "dir" / "full" / "file").touch()
    return folder


def contents(folder: Path) -> dict[str, tuple[int, int] | None]:
    """Return all files and directories, with attributes that show changes."""
    found: dict[str, tuple[int, int] | None] = {}
    for path, _, names in os.walk(folder):
        found[path] = None
        for name in names:
            state = os.stat(os.path.join(path, name))
            found[os.path.join(path, name)] = state.st_size, state.st_mtime_ns
    return found


def kind_of(parameter: Parameter) -> str:
    """Return the kind of an option's value: a number, a choice, a root, a file, or a formatted text."""
    name, of = names_of(parameter)[0], parameter.type
    if name in FREE:
        return "free"
    if isinstance(of, Choice):
        return "choice"
    if isinstance(of, FuncParamType) and of.func is not resolve_root_name:
        return "number"
    if isinstance(of, FuncParamType) or name == "--root":
        return "root"
    if isinstance(of, PathType) or (parameter.metavar or "").endswith("FILE"):
        return "output" if name in OUTPUTS else "file"
    if name in OUTPUTS:
        return "output"
    if name in ("TOPIC", "--topic", "--topic-list") or parameter.metavar == "NEW-NAME":
        return "form" if ":" in (parameter.metavar or "") else "topic"
    if name in ("GROUP", "--group", "--transactional-id"):
        return "id"
    return "folder" if name in FOLDERS and parameter.metavar not in ("PLACE", "NEW-NAME", "NAMESPACE.TABLE") else "form"


def wrong_values(command: str, parameter: Parameter, directory: Path, *, all_of_them: bool) -> Iterator[str]:
    """Return invalid values for an option by its kind. If `all_of_them` is True, include values of kinds that other
    options also have.
    """
    name, kind = names_of(parameter)[0], kind_of(parameter)
    creates = command in CREATING.get(name, ())
    if kind == "number":
        rarer = (" 1", "1,5", "0x10", "\u0663", "inf", LONG, SURROGATE)
        yield from ("x", "1_000", "nan", *(rarer if all_of_them else ()))
        yield from () if parameter.type.name == "float" else (HUGE, "1.5")
    elif kind == "choice":
        assert isinstance(parameter.type, Choice)
        yield from ("x", parameter.type.choices[0].upper(), SURROGATE)
    elif kind == "root":
        yield from (str(directory / "file"), "s3://", "nosuch://x", *(() if creates else (str(directory / "missing"),)))
    elif kind == "file":
        yield from (str(directory / "missing"), str(directory / "dir"), SURROGATE)
        yield from () if name in ("--file", "--payload-file") else (str(directory / "file"),)
    elif kind == "output":
        yield from (str(directory / "dir"), str(directory / "missing" / "x"))
    elif kind == "folder":
        yield from (str(directory / "file"), "nosuch://x")
    elif kind == "topic":
        yield from ("a/b", "..", "y" * 300, SURROGATE, *(() if creates else ("nosuch",)))
    elif kind == "id":
        yield from (SURROGATE, "y" * 2000, *(() if creates else ("nosuch",)))
    elif kind == "form":
        form = parameter.metavar or name
        yield from (*FORMS[form], *(() if form in ("PATTERN", "--pattern") else (LONG, SURROGATE)))


CREATING = {
    "TOPIC": ("topics create", "topics list", "produce"),
    "--topic": (
        "topics create",
        "topics list",
        "produce",
        "perf produce",
        "stream",
        "to-delta",
        "from-delta",
        "to-iceberg",
    ),
    "NEW-NAME": ("clone",),
    "--to": ("repartition",),
    "GROUP": ("groups reset",),
    "--group": ("groups reset", "consume", "perf consume", "stream"),
    "--transactional-id": ("perf produce",),
    "--root": ("topics create", "import", "stream", "to-delta", "from-delta", "to-iceberg"),
}
"""Commands for which a name or path that does not exist is valid."""
ANY = {("topics list", "TOPIC"), ("topics list", "--topic"), ("topics list", "--include"), ("mirror", "--to")}
"""Filters, which do not list names that do not match, and paths that may be new directories."""


def cases(command: FunctionCommand, name: str, directory: Path, seen: set[str]) -> Iterator[Case]:
    parameters = [
        item for item in command.get_params(Context(command, **command.context_settings)) if item.expose_value
    ]
    named = {text: item for item in parameters for text in names_of(item)}
    rules = command.rules
    for parameter in parameters:
        option = names_of(parameter)[0]
        if getattr(parameter, "is_flag", False) or getattr(parameter, "hidden", False) or (name, option) in ANY:
            continue
        if (name == "doctor" or name in NEVER_RUN) and kind_of(parameter) in ("root", "folder", "file"):
            # The doctor prints its findings as output. A job checks paths when it parses its arguments.
            continue
        rule = rules[str(parameter.name)]
        excluded = {option, *rule.excludes}
        rivals = {str(other.name) for other in parameters if option in rules[str(other.name)].excludes}
        excluded |= {key for key, item in named.items() if item.name in rivals}
        excluded |= set[str]().union(*(group for group in ALTERNATIVES if option in group))
        texts = {key: text for key, text in RIGHT[name].items() if key not in excluded}
        texts |= {key: text for key, text in INSTEAD.get(option, {}).items() if key in named}
        right = {
            key: None if text is None else text.format(p=directory, r=directory / "r") for key, text in texts.items()
        }
        lacks_need = rule.needs and not set(rule.needs) & set(right)
        more = typed(named[rule.needs[0]], rule.needs[0]) if lacks_need else []
        kind = kind_of(parameter)
        kind += parameter.metavar or "" if kind == "form" else ""
        for value in wrong_values(name, parameter, directory, all_of_them=kind not in seen):
            given: dict[str, str | None] = {**right, option: value}
            options = [f"{key}={of}" if of is not None else key for key, of in given.items() if key.startswith("-")]
            arguments = [str(given[key]) for key in named if key in given and not key.startswith("-")]
            yield Case(name, (*options, *more, "--", *arguments), value, directory.name in value)
        seen.add(kind)


def run(case: Case, directory: Path) -> tuple[int, str, str]:
    """Return the exit code, stdout and stderr of a command line."""
    if case.command in NEVER_RUN:
        job = import_module(f"sparklog.jobs.{case.command.replace('-', '_')}")
        with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
            try:
                job.arguments(case.words)
            except SystemExit as left:
                return int(str(left.code)), out.getvalue(), err.getvalue()
        return 0, out.getvalue(), err.getvalue()
    result = invoke(
        [*case.command.split(), *case.words],
        {"SPARKLOG_ROOT": None if case.command == "import" else str(directory / "r")},
    )
    assert result.exception is None or isinstance(result.exception, SystemExit), (case, result.exception)
    return result.exit_code, result.stdout, result.stderr


def problem(case: Case, directory: Path, before: Mapping[str, object]) -> str:
    """Return the problem of the output for an invalid value, or an empty string."""
    code, out, err = run(case, directory)
    line = err.removesuffix("\n")
    after = contents(directory)
    changed = [path for path in {*before, *after} if before.get(path, ()) != after.get(path, ())]
    if code not in (1, 2) or (code == 1 and not re.search(r" \[SPARKLOG_(BAD_REQUEST|NOT_FOUND)\]$", line)):
        return f"exit code {code}: {out[-200:]}{err[-300:]}"
    if out or "\n" in line or not line.startswith("sparklog"):
        return f"not one line: {out!r:.200} {err!r:.600}"
    if changed:
        return f"changed {changed}: {line}"
    if not is_named(case, line):
        return f"does not name {case.value!r}: {line}"
    return ""


def is_named(case: Case, line: str) -> bool:
    """Return True if a line contains the value, in quotes or after an equals sign, or the invalid part of the value."""
    parts = [case.value] if case.is_path else [case.value, *re.split('[=:,{}"]', case.value)]
    for part in filter(None, parts):
        text = repr(part[:20] if len(part) > 60 and not case.is_path else part)[1:-1]
        if text in line if case.is_path else re.search(rf"['\"= (,/-]{re.escape(text)}|found {re.escape(text)}", line):
            return True
    # click replaces bytes that are not UTF-8.
    return case.value == SURROGATE and "\ufffd" in line


@pytest.fixture(scope="module", autouse=True)
def _serve_nothing() -> Iterator[None]:
    async def serve(*arguments: object) -> None:
        """Do not serve accepted command lines."""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sparklog.serve.server.serve_until_signal", serve)
        yield


SEEN: set[str] = set()


@pytest.mark.parametrize("name", RIGHT)
def test_an_invalid_value_is_a_one_line_error_and_changes_nothing(
    name: str, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(directory / "dir")
    command = next(item for item, words in zip(every_command(), commands(), strict=True) if words == name)
    before = contents(directory)
    table = list(cases(command, name, directory, SEEN))
    wrong = {str(case): answer for case in table if (answer := problem(case, directory, before))}
    assert wrong == {}


def test_every_command_is_covered() -> None:
    assert sorted(RIGHT) == sorted(commands())


def test_an_empty_value_and_a_repeated_option_are_errors() -> None:
    """This applies to required and optional options. An unset variable of a script must not select everything, and no
    value is ignored.
    """
    count = 0
    for command in every_command():
        parameters = command.get_params(Context(command, **command.context_settings))
        may_be_blank = {option for option, rule in command.rules.items() if rule.may_be_blank}
        for parameter in parameters:
            if getattr(parameter, "is_flag", False) or not parameter.expose_value:
                continue
            name = names_of(parameter)[0]
            lines: list[tuple[list[str], str]] = []
            if parameter.name not in may_be_blank:
                lines.append(([f"{name}= "] if isinstance(parameter, Option) else ["--", ","], "expected a value"))
            if isinstance(parameter, Option) and not parameter.multiple and not parameter._flag_needs_value:
                lines.append(([f"{name}=1", f"{name}=1"], f"expected {name} once, found it 2 times"))
            for words, says in lines:
                count += 1
                result = CliRunner(env={"SPARKLOG_ROOT": None}).invoke(command, words)
                assert (result.exit_code, result.stdout) == (2, ""), (command.name, words, result.output)
                assert says in " ".join(result.stderr.split()), (command.name, words, result.stderr)
    assert count > 500
