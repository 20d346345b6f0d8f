"""Every command has an example in its help, which works if it is copied, and also with --json."""

from __future__ import annotations

import json
import random
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click import Context

from sparklog.cli.app import MODULE_OF
from sparklog.groups.lag import Groups
from sparklog.log.journal.clocks import SYSTEM, Env
from sparklog.log.topic.root import Root, open_root
from sparklog.storage.locations import join
from sparklog.transactions.producer import transactional
from tests.support.command_line import command_of, invoke

IN_TURN = (
    *("topics create", "topics list", "topics describe"),
    *(
        "configs describe",
        "configs docs",
        "produce",
        "consume",
        "offsets",
        "get",
        "table",
        "jobs",
        "log-dirs",
        "history",
        "doctor",
    ),
    *("transactions list", "transactions describe", "transactions history", "transactions abort"),
    *("groups list", "groups describe", "groups history", "groups reset", "report", "metrics", "verify"),
    "repair",
    *("export", "dump-log", "import", "backup", "restore", "clone", "repartition", "perf produce", "perf consume"),
    *("groups delete-offsets", "groups delete", "configs alter", "delete-records", "topics alter", "topics delete"),
    "conf",
)
"""These commands run in this order, because a command may need the result of an earlier command."""
JOBS = ("compact", "retain", "stream", "mirror", "to-delta", "from-delta", "to-iceberg", "serve")
"""Commands that pass their arguments to a job (`tests/test_wheel.py` runs them), or that run until they are stopped."""
MONDAY_MS = 1_769_421_600_000
"""One day before 2026-01-26T10:00:00Z, which is the time that the examples use."""
TEXT_ONLY = ("metrics", "produce", "conf", "perf consume")
"""Commands that print their own format, or nothing. The option --json of `produce` describes the input."""


def commands() -> Iterator[str]:
    """Return the names of all commands."""
    for name in MODULE_OF:
        below = getattr(command_of(name), "commands", None)
        yield from [name] if below is None else (f"{name} {each}" for each in below)


def run(line: str) -> str:
    """Return the output of a command."""
    result = invoke(shlex.split(line), {"SPARKLOG_ROOT": None})
    assert result.exception is None or isinstance(result.exception, SystemExit), (line, result.exception)
    assert result.exit_code == 0 or line.startswith("doctor"), (line, result.stderr)
    return result.stdout


def examples(command: str) -> list[str]:
    """Return the lines below `Example:`."""
    shown = run(f"{command} --help").partition("Example:\n")[2]
    return [line.strip() for line in shown.splitlines() if "sparklog " in line]


def rows(count: int) -> pa.Table:
    """Return records of twenty customers, in the partitions that the partitioner selects."""
    return pa.table(
        {
            "key": [b"customer-%d" % (number % 20) for number in range(count)],
            "value": [b"value %d" % number for number in range(count)],
        }
    )


def furnish(root: Root) -> None:
    """Create the topics, an inactive group and the open transaction that the examples use."""
    for name in ("orders", "clicks", "old"):
        root.create_topic(name, partitions=2).append(rows(300))
    Groups(root).group("billing").alter({name: {0: 5, 1: 6} for name in ("orders", "old")})
    open_one = transactional(root, "orders-job", timeout_ms=3_600_000).begin()
    open_one.append("clicks", rows(1))
    open_one._prepare_topics()


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directories of a host, with a root that was created on Monday."""
    for name in ("data/log", "data/empty", "backup", "node_exporter"):
        (tmp_path / name).mkdir(parents=True)
    begin_on_monday(str(tmp_path / "data" / "log"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def begin_on_monday(location: str) -> None:
    env = Env(lambda: MONDAY_MS, SYSTEM.boot_ms, lambda seconds: None, random.Random(1))
    furnish(open_root(location, create=True, env=env))


def test_every_command_is_covered() -> None:
    assert sorted(commands()) == sorted((*IN_TURN, *JOBS))


@pytest.mark.parametrize("command", IN_TURN)
def test_a_missing_option_value_is_a_one_line_error(command: str) -> None:
    tree = command_of(command)
    options = tree.get_params(Context(tree, **tree.context_settings))
    names = [name for option in options if is_option_with_a_value(option) for name in option.opts]
    assert names or command in ("conf", "configs docs")
    for name in names:
        result = invoke([*command.split(), name])
        line = f"sparklog: Option '{name}' requires an argument. (see 'sparklog {command} --help')\n"
        assert (result.exit_code, result.stdout, result.stderr) == (2, "", line)


def is_option_with_a_value(option: Any) -> bool:
    is_option = option.param_type_name == "option"
    # The value of some options is optional.
    return is_option and not option.is_flag and not option.count and not option._flag_needs_value


def on_this_machine(line: str, command: str, directory: Path, bucket: str | None = None) -> str:
    """Return an example with directories below `place`, or roots in a bucket, without the word `sparklog`."""
    # Create the topic, or import it from Kafka's directory, if it does not exist.
    root = "data/empty" if command in ("topics create", "import") else "data/log"
    line = re.sub(r"/data/log(?=$| )", f"/{root}", line).replace("/var/lib/kafka/data", "/data/kafka-logs")
    if bucket is not None:
        line = re.sub(r"(?<= )/(data/(?:log|empty)\S*|backup/\S*)", lambda at: shlex.quote(join(bucket, at[1])), line)
    line = line.replace("/var/lib/node_exporter", str(directory))
    if "/opt/kafka/config" in line:
        (directory / "server.properties").write_text("num.partitions=3\n")
        line = line.replace("/opt/kafka/config", str(directory))
    piped, _, words = re.sub(r"(?<= )/(data|backup)/", f"{directory}/\\1/", line).rpartition("sparklog ")
    assert words.startswith(command), f"{command} --help shows {line}"
    if not piped:
        return words
    (directory / "lines").write_text(shlex.split(piped)[1] + "\n")
    return f"{words} --file {directory}/lines"


@pytest.mark.java
@pytest.mark.parametrize("more", ["", " --json"], ids=["text", "json"])
def test_examples_run_on_a_disk(directory: Path, monkeypatch: pytest.MonkeyPatch, more: str) -> None:
    run_the_examples(directory, monkeypatch, more)


@pytest.mark.slow
@pytest.mark.java
def test_examples_run_on_a_bucket(directory: Path, monkeypatch: pytest.MonkeyPatch, bucket: str) -> None:
    """The root and the backups are given as URLs instead of paths."""
    shutil.rmtree(directory / "data")
    begin_on_monday(join(bucket, "data/log"))
    run_the_examples(directory, monkeypatch, "", bucket)
    assert sorted(entry.name for entry in (directory / "data").iterdir()) == ["kafka-logs"]
    assert not any((directory / "backup").iterdir())


def run_the_examples(directory: Path, monkeypatch: pytest.MonkeyPatch, more: str, bucket: str | None = None) -> None:
    empty = f"{directory}/data/empty" if bucket is None else shlex.quote(join(bucket, "data/empty"))
    for command in IN_TURN:
        lines = examples(command)
        assert lines, f"{command} --help has no example"
        for line in lines:
            if command == "import":
                run(f"topics delete orders --root {empty}")
            if "--files 0" in line:
                monkeypatch.chdir(directory / "data" / "kafka-logs" / "orders-0")
            as_json = more if command not in TEXT_ONLY else ""
            printed = run(on_this_machine(line, command, directory, bucket) + as_json)
            assert not as_json or json_of(printed), line
            monkeypatch.chdir(directory)
    assert (directory / "report.html").stat().st_size > 0
    assert (directory / "sparklog.prom").stat().st_size > 0


def json_of(text: str) -> list[object]:
    """Parse a single JSON document, or one document per line. NaN is not allowed."""
    try:
        return [json.loads(text, parse_constant=float.fromhex)]
    except ValueError:
        return [json.loads(line, parse_constant=float.fromhex) for line in text.splitlines()]
