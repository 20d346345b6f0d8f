"""Mistakes of new users are answered with one line that reports the problem and the solution."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click import Context, Group

import sparklog as library
from sparklog.console.command_hints import COMMANDS, OPTIONS
from sparklog.errors import BadRequest, NotFound
from sparklog.groups.lag import Groups
from sparklog.log.topic.root import topic_for_writer
from tests.cli.conftest import Sparklog
from tests.support.command_line import command_of, invoke


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a root `r` of two topics, and files that the command lines use."""
    folder = tmp_path_factory.mktemp("place")
    root = library.open(folder / "r", create=True)
    root.create_topic("orders", partitions=3).append({"key": ["a"], "value": ["1"]})
    root.create_topic("clicks", configs={"cleanup.policy": "compact"})
    return folder


def answer(directory: Path, line: str, code: int) -> str:
    """Return the error of an invalid command line, which must be one line on stderr without other output."""
    words = shlex.split(line.format(p=directory, r=directory / "r"))
    result = invoke(words, {"SPARKLOG_ROOT": str(directory / "r")})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    last = result.stderr.splitlines()[-1]
    assert last.startswith("sparklog")
    return last


@pytest.mark.parametrize(
    "line",
    [
        "topics describe nosuch",
        "topics alter nosuch -p 9",
        "configs describe nosuch",
        "configs alter nosuch --add-config retention.ms=1000",
        "consume nosuch",
        "get nosuch -k a",
        "table nosuch",
        "offsets nosuch",
        "delete-records nosuch -p 0 -o 0",
        "log-dirs nosuch",
        "history nosuch",
        "clone nosuch x",
        "export nosuch --to {p}/exported",
        "backup --to {p}/backups --topic nosuch",
        "repartition nosuch --to x -p 2",
        "groups reset g --topic nosuch --to-earliest",
        "perf consume --topic nosuch --messages 1",
        "report --topic nosuch --json",
        "metrics --topic nosuch",
        "jobs --topic nosuch",
        "compact --topic nosuch",
        "retain --topic nosuch",
    ],
)
def test_a_missing_topic_error_lists_existing_topics(directory: Path, line: str) -> None:
    says = f"topic 'nosuch' does not exist in {directory}/r; the topics are clicks, orders [SPARKLOG_NOT_FOUND]"
    assert answer(directory, line, 1).endswith(says)


def test_deleting_a_missing_topic_suggests_topics_list(directory: Path) -> None:
    says = (
        f"topic 'nosuch' does not exist in {directory}/r; `sparklog topics list` lists the topics [SPARKLOG_NOT_FOUND]"
    )
    assert answer(directory, "topics delete nosuch", 1).endswith(says)
    with pytest.raises(NotFound, match=r"root\.topics\(\) lists the topics$"):
        library.open(directory / "r").delete_topic("nosuch")


def test_a_missing_topic_error_lists_at_most_some_topics(tmp_path: Path) -> None:
    root = library.open(tmp_path / "r", create=True)
    assert "does not exist in" in answer(tmp_path, "consume x", 1)
    assert "; the root has no topics [" in answer(tmp_path, "consume x", 1)
    for number in range(6):
        root.create_topic(f"topic-{number}")
    some = "topic-0, topic-1, topic-2, topic-3, topic-4"
    assert f"; the root has topics such as {some} [" in answer(tmp_path, "consume x", 1)


def test_python_errors_suggest_python_calls(directory: Path) -> None:
    root = library.open(directory / "r")
    ensure = r"the topics are clicks, orders; root.ensure_topic\('nosuch'\) creates it$"
    with pytest.raises(NotFound, match=ensure):
        root.topic("nosuch")


def test_disabled_auto_creation_suggests_topics_create(tmp_path: Path) -> None:
    root = library.open(tmp_path / "r", create=True)
    root.alter_defaults({"auto.create.topics.enable": "false"})
    with pytest.raises(NotFound, match=r"because .* is false; create it with root.create_topic\('x'\)"):
        topic_for_writer(root, "x")
    (tmp_path / "lines").write_text("a\n")
    command = f"create it with sparklog topics create x --root {tmp_path}/r ["
    assert command in answer(tmp_path, "produce x --file {p}/lines", 1)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("version", "No such command 'version'. Use sparklog --version."),
        ("ls", "Use sparklog topics list."),
        ("create x", "Use sparklog topics create TOPIC."),
        ("tail x", "Use sparklog consume TOPIC --follow."),
        ("topics ls", "Use sparklog topics list."),
        ("groups rm g", "Use sparklog groups delete."),
        ("frobnicate", "No such command 'frobnicate'. (see"),
        ("cosnume orders", "Did you mean 'consume'?"),
        ("topics lst", "Did you mean 'list'?"),
        ("--root {r} topics list", "Put the option after the command: sparklog topics list --root ..."),
        ("serve {r} --port 24020", "No such option '--port'. Use --listen HOST:PORT."),
        ("compact --master local[2]", "run the job with spark-submit"),
        ("metrics --port 9", "Metrics writes a file (--output-file)"),
        ("consume orders --tail 5", "Use --offset -N starts N records before the end"),
        ("consume orders -e", "Consume stops at the log end unless you use --follow."),
        ("consume orders -C", "Kcat's modes are commands"),
        ("consume orders -o beginning", "found 'beginning'; use earliest"),
        ("consume orders -o end", "found 'end'; use latest"),
        ("consume orders --max-mesages 3", "Did you mean '--max-messages'?"),
        ("consume orders --colour", "No such option '--colour'. (see"),
        ("topics alter orders --partitions 5 --config a=b", "`sparklog configs alter TOPIC --add-config"),
        ("topics delete orders clicks", "specify one topic, or --pattern 'A|B' with --execute"),
        ("configs alter orders retention.ms=5", "and set configs with --add-config NAME=VALUE"),
        ("verify {r}", "specify the root with --root LOCATION"),
        ("produce orders -P", "Kcat's modes are commands"),
        ("serve {r} --root {r}", "specify --root or LOCATION, not both"),
    ],
)
def test_options_of_other_tools_get_a_hint(directory: Path, line: str, says: str) -> None:
    assert says in answer(directory, line, 2)


def test_help_is_a_command_and_topics_are_separated_by_commas(directory: Path) -> None:
    assert invoke(["help", "topics", "list"]).stdout == invoke(["topics", "list", "--help"]).stdout
    lines = invoke(["consume", "orders,clicks", "--root", directory / "r"])
    assert (lines.exit_code, lines.stdout) == (0, "1\n")


def test_suggested_commands_and_options_exist() -> None:
    for advised in COMMANDS.values():
        for words in advised.split(", or sparklog "):
            path = next(iter(re.findall(r"^[a-z][a-z -]*(?<! )(?= |$)", words)), "").partition(" --")[0]
            command = command_of(path.removesuffix(" sparklog").removesuffix(" crontab"))
            names = {
                name for item in command.get_params(Context(command, **command.context_settings)) for name in item.opts
            }
            assert set(re.findall(r"--[a-z-]+", words)) <= names, advised
    for group, options in OPTIONS.items():
        known = options_below(group)
        for option, text in options.items():
            assert not text.startswith("-") or set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", text)) <= known, option


def options_below(words: str) -> set[str]:
    """Return the options of a command, or of all commands of a group."""
    command = command_of(words)
    names = {
        name
        for item in command.get_params(Context(command, **command.context_settings))
        for name in (*item.opts, *item.secondary_opts)
    }
    below = command.list_commands(Context(command, **command.context_settings)) if isinstance(command, Group) else []
    return names.union(*(options_below(f"{words} {name}") for name in below))


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        (
            "configs --describe --entity-type brokers --entity-name 0",
            2,
            "there are no brokers; use `sparklog configs desc",
        ),
        ("clone orders y --as-of 2020-01-01", 1, "topic 'orders' has no version at 2020-01-01T00:00:00.000Z"),
        ("import {p}/nosuch", 1, "{p}/nosuch does not exist: expected a directory of a broker's log.dirs"),
        ("import {r}", 1, "{r} is already a sparklog root"),
        ("produce orders --partition 77 --file {p}/lines", 1, "has partitions 0 to 2, found --partition 77; `sparklog"),
        (
            "produce orders --json --file {p}/badpart",
            1,
            "line 2: topic 'orders' has partitions 0 to 2, found partition 9; ",
        ),
        ("doctor --cost --rate abc", 2, "'--rate': expected a number, found 'abc'"),
        ("consume orders --property print.kye=true", 2, "found 'print.kye'"),
    ],
)
def test_errors_report_the_invalid_value(directory: Path, line: str, code: int, says: str) -> None:
    (directory / "lines").write_text("a\n")
    (directory / "badpart").write_text('{"value": "a"}\n{"value": "b", "partition": 9}\n')
    assert says.format(p=directory, r=directory / "r") in answer(directory, line, code)


def test_values_are_quoted_in_errors_of_python(directory: Path) -> None:
    with pytest.raises(BadRequest, match="partitions must be 1 to 100000, found '3'"):
        library.open(directory / "r").create_topic("x", partitions="3")  # type: ignore[arg-type]


def test_empty_input_does_not_create_a_topic(sparklog: Sparklog, root: Path) -> None:
    library.open(root, create=True)
    empty = sparklog("produce", "new", "--file", "/dev/null")
    assert empty.err == "Appended 0 records to new, which does not exist; the first record creates it\n"
    assert sparklog("topics", "list").out == ""


def test_reset_reports_that_it_creates_a_group(sparklog: Sparklog, root: Path) -> None:
    library.open(root, create=True).create_topic("orders")
    reset = ("groups", "reset", "typo", "--topic", "orders", "--to-earliest", "--execute")
    assert "WARN Group 'typo' does not exist and will be created." in sparklog(*reset).err
    assert "does not exist" not in sparklog(*reset).err


def test_short_retention_is_reported_in_words(sparklog: Sparklog, root: Path) -> None:
    told = "retention.ms=5 is in milliseconds: records expire 5 ms after their timestamp"
    assert told in sparklog("topics", "create", "x", "--config", "retention.ms=5").err
    sparklog("topics", "create", "y", "--config", "retention.ms=-1")
    altered = sparklog("configs", "alter", "y", "--add-config", "retention.ms=5400000")
    assert (altered.lines[0], altered.err) == ("  retention.ms: -1 -> 5400000 (1 h 30 min)", "")
    assert (
        "retention.ms=59999 is in milliseconds"
        in sparklog("configs", "alter", "y", "--add-config", "retention.ms=59999").err
    )


def test_exported_commands_do_not_mention_the_root(sparklog: Sparklog, root: Path, tmp_path: Path) -> None:
    log = library.open(root, create=True)
    log.create_topic("orders").append({"value": ["a"]})
    Groups(log).group("billing").alter({"orders": {0: 1}})
    assert sparklog("export", "orders", "--to", tmp_path / "out", "--groups", "all").err == ""


OLDER_GUIDES = (
    "kafka-topics.sh --create --zookeeper localhost:2181 --replication-factor 1 --partitions 1 --topic test",
    "kafka-topics.sh --list --zookeeper localhost:2181",
    "kafka-topics.sh --describe --zookeeper localhost:2181 --topic test",
    "kafka-topics.sh --bootstrap-server localhost:9092 --describe --topic test",
    "kafka-console-producer.sh --broker-list localhost:9092 --topic test --file {p}/lines",
    "kafka-console-consumer.sh --bootstrap-server localhost:9092 --topic test --from-beginning",
    "kafka-console-consumer.sh --zookeeper z:2181 --topic test --from-beginning --property print.key=true",
    "kafka-console-consumer.sh --zookeeper z:2181 --topic test --formatter kafka.tools.DefaultMessageFormatter",
    "kafka-configs.sh --zookeeper localhost:2181 --entity-type topics --entity-name test --describe",
    "kafka-consumer-groups.sh --bootstrap-server=localhost:9092 --list",
    "kafka-topics.sh --zookeeper localhost:2181 --delete --topic test",
)


def test_command_lines_of_older_guides_run_as_pasted(sparklog: Sparklog, root: Path, tmp_path: Path) -> None:
    """If SPARKLOG_ROOT is set, broker options have no effect, and a note reports this."""
    (tmp_path / "lines").write_text("a message\n")
    for line in OLDER_GUIDES:
        outcome = sparklog(*shlex.split(line.format(p=tmp_path)))
        assert "has no effect, because there is no broker and the topics are in the root" in outcome.err, line
        assert "a message" in outcome.out or "console-consumer" not in line


@pytest.mark.parametrize("option", ["--bootstrap-server", "--broker-list", "--zookeeper"])
@pytest.mark.parametrize("command", ["topics list", "produce orders", "compact"])
def test_broker_options_without_a_root_suggest_root(command: str, option: str) -> None:
    result = invoke([*command.split(), option, "a:1"], {"SPARKLOG_ROOT": None})
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{option}: there is no broker; specify a root" in result.stderr


def test_consume_filters_by_headers(sparklog: Sparklog, root: Path) -> None:
    rows = {"value": ["a", "b", "c", "d"], "headers": [[("k", b"v"), ("x", b"")], [("k", b"w")], None, [("k", None)]]}
    library.open(root, create=True).create_topic("t").append(rows)
    filters = (("k=v", "a"), ("k=w", "b"), ("k", "a b d"), ("x=", "a"), ("k=z", ""), ("k=v --header x", "a"))
    for header, values in filters:
        outcome = sparklog("consume", "t", "--header", *header.split())
        assert outcome.out.split() == values.split(), header
        assert f"a total of {len(values.split())} messages" in outcome.err
    assert sparklog("consume", "t", "--header", "k", "-n", 2, "--print-headers").lines == ["k:v,x:\ta", "k:w\tb"]
    assert "expected NAME=VALUE" in sparklog("consume", "t", "--header", "=v", code=2).err
