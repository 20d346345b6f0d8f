"""Options that exclude or require each other: each rule of each command is enforced, and no given option is ignored."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from click import Argument, Choice, Context, Option, Parameter
from click.testing import CliRunner

from sparklog.console.option_rules import names_of
from sparklog.console.parameters import FunctionCommand
from tests.cli.conftest import Sparklog
from tests.cli.test_every_command import JOBS, commands
from tests.support.command_line import command_of, invoke

ON_SPARK = [name for name in JOBS if name != "serve"]


def every_command() -> Iterator[FunctionCommand]:
    for name in commands():
        if name in ON_SPARK:
            arguments = import_module(f"sparklog.jobs.{name.replace('-', '_')}").arguments
            yield FunctionCommand(name, arguments.args[1], help=arguments.args[2])
        else:
            command = command_of(name)
            assert isinstance(command, FunctionCommand)
            yield command


def typed(parameter: Parameter, name: str) -> list[str]:
    """Return the words of a parameter on a command line, with a value that is not the default."""
    if isinstance(parameter, Argument):
        return ["word"]
    assert isinstance(parameter, Option)
    if parameter.is_flag:
        return [parameter.secondary_opts[0] if parameter.default is True else name]
    value = parameter.type.choices[-1] if isinstance(parameter.type, Choice) else "1"
    return [name, __file__ if getattr(parameter.type, "exists", False) else value]


def lines_that_break_rules(command: FunctionCommand) -> Iterator[tuple[list[str], str]]:
    """Yield command lines that break one rule each, and the expected error."""
    parameters = command.get_params(Context(command, **command.context_settings))
    named = {name: parameter for parameter in parameters for name in names_of(parameter)}

    def more(names: list[str]) -> list[str]:
        return [word for name in dict.fromkeys(names) for word in typed(named[name], name)]

    for option, rule in command.rules.items():
        own = next(parameter for parameter in parameters if parameter.name == option)
        name = names_of(own)[0]
        # Add required options, so that the error is not about a missing option.
        needed = [names for item in parameters if item.required and item is not own for names in names_of(item)[:1]]
        line = typed(own, name)
        for other in rule.excludes:
            yield [*line, *more([*needed, other])], f"specify {name} or {other}, not both"
        if rule.needs:
            assert all(item in named for item in rule.needs)
            yield [*line, *more(needed)], f"{name} requires {rule.needs[0]}"


def test_every_rule_of_every_command_holds() -> None:
    lines = 0
    for command in every_command():
        for words, says in lines_that_break_rules(command):
            lines += 1
            result = CliRunner(env={"SPARKLOG_ROOT": None}).invoke(command, words)
            assert (result.exit_code, result.stdout) == (2, ""), (command.name, words, result.output)
            assert says in " ".join(result.stderr.split()), (command.name, words, result.stderr)
    assert lines > 100


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("serve {root} --memory", "specify --memory or LOCATION, not both: --memory serves an empty root in memory, "),
        ("serve --memory --backup 3", "specify --memory or --backup, not both"),
        ("serve {root} --tls-cert c.pem", "--tls-cert requires --tls-key"),
        ("serve {root} --listen PLAINTEXT://127.0.0.1:9", "expected HOST:PORT without PLAINTEXT://"),
        ("serve {root} --listen nosuch.invalid:9", "'--listen': cannot resolve 'nosuch.invalid'"),
        ("serve {root} --listen 127.0.0.1:9 --advertise a:9,127.0.0.1:9", "found a:9: put 127.0.0.1:9 first"),
        ("serve {root} --listen 127.0.0.1:9 --advertise a:9,b:9,a:9", "a:9 is given more than once"),
        ("metrics --output json", "metrics prints the Prometheus text format, found 'json': use --output-file FILE"),
        ("metrics -o {root}/a --output {root}/b", "specify --output or --output-file, not both"),
        ("doctor --rate 5", "--rate requires --cost"),
        ("doctor --max-age 3h", "--max-age requires --root"),
        ("topics list --output csv --json", "specify --json or --output, not both"),
        ("consume t --timeout-ms 100", "--timeout-ms requires --follow or --group"),
        (
            "consume t --from-timestamp 2026-01-01 --to-timestamp 2025-01-01",
            "--from-timestamp 2026-01-01 is after --to-timestamp 2025-01-01",
        ),
        ("consume t -p 0 -o 9 --to-offset 3", "--offset 9 is after --to-offset 3"),
        ("repair {root} --root {root}", "specify LOCATION or --root, not both"),
        ("groups describe g --state --members", "specify --members or --state, not both"),
        ("backup --to {root} --list --prune --keep 1", "specify --list or --prune, not both"),
        ("import --from-server-properties f --no-groups", "specify --from-server-properties or --no-groups, not both"),
    ],
)
def test_ignored_options_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, says: str) -> None:
    monkeypatch.chdir(tmp_path)
    root = shlex.quote(str(tmp_path / "root"))
    where = [] if line.startswith(("serve", "doctor", "repair")) else ["--root", root]
    result: Any = invoke([*shlex.split(line.format(root=root)), *where], {"SPARKLOG_ROOT": None})
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert says in result.stderr
    assert not list(tmp_path.iterdir())


def test_environment_and_settings_do_not_exclude_options(sparklog: Sparklog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKLOG_OUTPUT", "csv")
    sparklog("topics", "create", "t")
    assert sparklog("topics", "list", "--json").out == '["t"]\n'
    # SPARKLOG_ROOT is set.
    assert "gb_stored" in sparklog("doctor", "--cost").out
    assert "expected a period such as" in sparklog("doctor", "--max-age", "3", code=2).err


def test_metrics_accepts_a_path_as_output_with_a_warning(sparklog: Sparklog, tmp_path: Path) -> None:
    sparklog("topics", "create", "t")
    outcome = sparklog("metrics", "--output", tmp_path / "m.prom")
    assert outcome.out == ""
    assert outcome.err == "sparklog: --output FILE of metrics is deprecated: use --output-file\n"
    assert (tmp_path / "m.prom").read_text().startswith("# HELP")
    assert sparklog("metrics", "-o", tmp_path / "m.prom").err == ""
