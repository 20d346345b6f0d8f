"""Command lines of Kafka's tools and kcat are accepted or rejected with a one-line error. Every option has an entry."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog as library
from sparklog.console.kafka_equivalents import (
    ACTIONS,
    KCAT,
    PROPERTIES,
    TOOLS,
    WORDS,
    Equivalent,
    translate_command,
    translate_options,
)
from sparklog.groups.lag import Groups
from sparklog.serve.options import Address, ServeOptions
from sparklog.serve.server import serving
from tests.cli.conftest import Sparklog
from tests.cli.kafka_equivalents_page import PAGE, equivalent_of, options_of, page
from tests.cli.kafka_options import of_the_jars, stored
from tests.kafka_tools import Missing

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
HEADED = "--property parse.key=true --property parse.headers=true"
HEADER_SEPARATORS = "--property headers.delimiter=| --property headers.separator=; --property headers.key.separator=="
LONG = "org.apache.kafka.common.serialization.LongDeserializer"
PRODUCED: list[tuple[str, str, list[tuple[object, ...]]]] = [
    ("--property parse.key=true", "k\tv\n", [("k", "v", None)]),
    ("--property key.separator=: --reader-property parse.key=true", "k:v\n", [("k", "v", None)]),
    # Without this option, Kafka does not search for a separator.
    ("--property key.separator=:", "k:v\n", [(None, "k:v", None)]),
    ("--property parse.key=false --property key.separator=:", "k:v\n", [(None, "k:v", None)]),
    (r"--property parse.key=true --property key.separator='\t'", "k\\tv\n", [("k", "v", None)]),
    (
        f"{HEADED} {HEADER_SEPARATORS} --property null.marker=N",
        "a=1;b=N|k\tN\nN|N\tv\n",
        [("k", None, [("a", "1"), ("b", None)]), (None, "v", None)],
    ),
    (
        f"{HEADED} --property ignore.error=true",
        "h:1,x\tk\tv\nk v\nh:1\tv\n",
        [("k", "v", [("h", "1"), ("x", None)]), (None, "k v", None), (None, "v", [("h", "1")])],
    ),
    ("--compression-codec --sync --timeout 5", "v\n", [(None, "v", None)]),
    (
        "--compression-codec lz4 --producer-property linger.ms=3 --request-required-acks 1",
        "v\n",
        [(None, "v", None)],
    ),
]
"""Arguments of a console producer, its input lines, and the key, value and headers of the records."""


@pytest.fixture
def directory(root: Path) -> Path:
    """Topic `orders` with two records in each of two partitions, `clicks` with a config, and a group."""
    opened = library.open(root, create=True)
    rows = {
        "key": [b"k0", None, b"k2", b"k3"],
        "value": [b"v0", b"v1", None, b"v3"],
        "partition": pa.array([0, 0, 1, 1], pa.int32()),
        "timestamp": pa.array([0, 1000, 2000, 3000], pa.int64()),
        "headers": pa.array([[("h", b"x"), ("n", None)], *[None] * 3], HEADERS),
    }
    opened.create_topic("orders", partitions=2).append(pa.table(rows))
    opened.create_topic("clicks", configs={"retention.ms": "-1"}).append(pa.table({"value": [b"c0"]}))
    opened.create_topic("longs").append(pa.table({"value": [(7).to_bytes(8, "big")]}))
    Groups(opened).group("g").alter({"orders": {0: 1}})
    return root


# -- the table of equivalents


def test_every_option_of_every_tool_has_an_entry() -> None:
    """`equivalent_of` raises if there is no entry. An option with a value in Kafka also has a value here."""
    options = [(tool, option, kind) for tool, table in stored().items() for option, kind in table.items()]
    answers = {(tool, option): equivalent_of(tool, option) for tool, option, _ in options if option != "--help"}
    assert len(answers) > 180
    for tool, option, kind in options:
        answer = answers.get((tool, option))
        if (
            answer is not None
            and answer.arguments is not None
            and option not in ACTIONS.get(TOOLS[tool.split()[0]], ())
        ):
            kinds = {True: "value", False: "flag"}
            assert (kinds[answer.value] if isinstance(answer.value, bool) else "optional") == kind, (tool, option)


def tables() -> Iterator[tuple[str, str, Equivalent]]:
    """Return each command, option or property, and its equivalent."""
    for command, table in WORDS.items():
        yield from ((command, option, answer) for option, answer in table.items())
    for command, letters in KCAT.items():
        yield from ((command, letter, Equivalent(words)) for letter, words in letters.items())
    for command, by_option in PROPERTIES.items():
        yield from ((command, name, answer) for table in by_option.values() for name, answer in table.items())


def test_equivalents_are_options_of_the_command() -> None:
    for command, option, answer in tables():
        texts = answer.arguments.values() if isinstance(answer.arguments, Mapping) else [answer.arguments or ""]
        paths = [f"{command} {item.arguments}" for item in ACTIONS.get(command, {}).values() if item.arguments] or [
            command
        ]
        names = {name for path in paths for name in options_of(path.partition(" --")[0])}
        for word in (word for text in texts for word in text.split() if word.startswith("-")):
            assert word in names, (command, option)
        # The error contains the reason. An option with the same name as in Kafka needs no entry.
        assert answer.reason or answer.arguments is not None, (command, option)
        assert command in KCAT or option not in names, (command, option)


def test_the_page_of_equivalents_is_generated() -> None:
    assert PAGE.read_text() == page(), "run python -m tests.cli.kafka_equivalents_page"


def test_command_lines_of_the_page_run(sparklog: Sparklog, root: Path, lines_file: Callable[[str], Path]) -> None:
    """Run the command lines of Kafka's tools that the page of commands contains, in order."""
    commands = (PAGE.parent / "command-line.md").read_text().partition("```sh\n")[2].partition("```")[0].splitlines()
    assert len(commands) > 5
    for command in commands:
        piped, _, line = command.rpartition("sparklog ")
        words = shlex.split(line)
        if piped:
            words += ["--file", str(lines_file(shlex.split(piped)[1] + "\n"))]
        printed = sparklog(*words).out
        if words[0] == "consume":
            assert printed == "k1\thello\n"
    assert printed.startswith("orders:0:")


@pytest.mark.slow
@pytest.mark.java
def test_the_options_are_those_of_kafkas_tools() -> None:
    try:
        options = of_the_jars()
    except Missing as missing:
        pytest.skip(str(missing))
    assert options == stored(), "run python -m tests.cli.kafka_options"


# -- accepted command lines


@pytest.mark.parametrize(
    ("line", "here"),
    [
        ("topics --list", "topics list"),
        ("kafka-topics.sh --list --exclude-internal", "topics list"),
        ("kafka-topics --list --topic 'ord.*|cl'", "topics list --include 'ord.*|cl'"),
        ("topics --describe --topic orders", "topics describe orders"),
        ("topics --topic orders --describe", "topics describe orders"),
        ("topics --describe --topic 'o.*,c.*'", "topics describe clicks orders"),
        ("topics --describe --if-exists --topic none,clicks", "topics describe clicks"),
        ("topics --describe --topics-with-overrides", "topics describe --topics-with-overrides clicks"),
        ("topics --alter --if-exists --topic none --partitions 3", "topics alter none -p 3 --if-exists"),
        ("configs --describe --entity-type topics --entity-name clicks", "configs describe clicks"),
        ("configs --describe --entity-type brokers --entity-default", "configs describe --root-defaults"),
        ("configs --describe --broker-defaults", "configs describe --root-defaults"),
        ("configs --describe --entity-type=topics --entity-name=clicks --all", "configs describe clicks --all"),
        ("groups --list", "groups list"),
        ("groups --list --state --timeout 5", "groups list --state"),
        ("groups --list --state empty,STABLE", "groups list --state"),
        ("groups --describe --group g --offsets --timeout 5", "groups describe g"),
        ("groups --describe --members --group g", "groups describe g --members"),
        ("groups --describe --all-groups --state", "groups describe g --state"),
        ("groups --reset-offsets --group g --to-earliest --all-topics", "groups reset g --to-earliest --all-topics"),
        ("kafka-get-offsets.sh --topic 'ord.*' --partitions 1,7", "offsets --topic-partitions orders:1"),
        ("offsets --topic-partitions 'or.*:1-,clicks'", "offsets --topic-partitions orders:1-9,clicks"),
        ("offsets --exclude-internal-topics --time earliest-local", "offsets --time -2"),
        ("kafka-log-dirs.sh --describe --topic-list orders", "log-dirs --topic-list orders"),
        ("transactions find-hanging --broker-id 1", "transactions list --open"),
        ("consume --topic orders --property print.key=true --property key.separator=:",
         "consume orders --print-key --key-separator :"),
        (
            "consume --topic orders --property=print.key=TRUE --formatter-property print.value=false",
            "consume orders --print-key --no-print-value",
        ),
        (
            "consume orders --property print.headers=true --property headers.separator=; --property null.literal=N",
            "consume orders --print-headers --headers-separator ';' --null-literal N",
        ),
        (
            "consume orders --property print.timestamp=true --property print.partition=true --property print.key=false",
            "consume orders --print-timestamp --print-partition",
        ),
        (
            "consume orders --property print.offset=true --property print.epoch=false --property line.separator='|'",
            "consume orders --print-offset --line-separator '|'",
        ),
        (f"consume longs --value-deserializer {LONG}", "consume longs --value-format long"),
        (f"consume longs --property value.deserializer={LONG}", "consume longs --value-format long"),
        (r"consume --topic orders --property print.key=true --property key.separator='\t'",
         r"consume orders --print-key --key-separator '\\t'"),
        ("consume --whitelist 'or.*' --consumer-property auto.offset.reset=earliest",
         "consume --include 'or.*' --from-beginning"),
        (
            "consume orders --consumer-property isolation.level=read_uncommitted --consumer-property fetch.min.bytes=1",
            "consume orders --isolation-level read_uncommitted",
        ),
    ],
)  # fmt: skip
def test_translated_command_lines_have_the_same_output(
    sparklog: Sparklog, directory: Path, line: str, here: str
) -> None:
    # The lag in seconds may increase between the two commands.
    printed, expected = (re.sub(r"\d{6,}\.\d", "SECONDS", sparklog(*shlex.split(each)).out) for each in (line, here))
    assert printed == expected
    assert printed


@pytest.mark.parametrize(("words", "lines", "records"), PRODUCED)
def test_producer_properties_are_translated(
    sparklog: Sparklog, directory: Path, tmp_path: Path, words: str, lines: str, records: list[tuple[object, ...]]
) -> None:
    file = tmp_path / "lines"
    file.write_text(lines)
    sparklog("kafka-console-producer.sh", "--topic", "new", "--num-partitions", 1, *shlex.split(words), "--file", file)
    rows = [json.loads(line) for line in sparklog("consume", "new", "--json").lines]
    expected = [(key, value, [list(pair) for pair in headers or []]) for key, value, headers in records]
    assert [(row["key"], row["value"], row["headers"]) for row in rows] == expected


def test_codecs(directory: Path) -> None:
    """If the value of an option is optional, the option consumes the next word if that is not an option."""
    options = dict.fromkeys(("--compression", "--linger-ms", "--root"), True)
    for line, words in (
        ("t --compression-codec", "t --compression gzip"),
        ("t --compression-codec zstd", "t --compression zstd"),
        ("--compression-codec --sync t", "--compression gzip --linger-ms 0 t"),
        ("--compression-codec=snappy t", "--compression snappy t"),
        # Values, and words after --, are not translated.
        ("--root --sync -- --sync", "--root --sync -- --sync"),
        ("--property parse.headers=true -- t", "--headers -- t"),
    ):
        assert translate_options("produce", line.split(), options) == words.split()


def test_changes(sparklog: Sparklog, directory: Path) -> None:
    """Translated options that change topics have an effect."""
    line = "topics --create --if-not-exists --topic new --partitions 3 --replication-factor 1 --config retention.ms=7"
    assert sparklog(*line.split()).out.startswith("Created topic new with 3 partitions in ")
    sparklog(*shlex.split("topics --alter --topic new --partitions 4"))
    sparklog(*shlex.split("configs --alter --entity-type topics --entity-name new --add-config retention.ms=8"))
    described = library.open(directory).topic("new").describe()
    assert len(described.partitions) == 4
    assert ("retention.ms", "8") in [(config.name, config.value) for config in described.configs]
    sparklog(*shlex.split("topics --delete --topic new"))
    assert sparklog("topics", "--list").lines == ["clicks", "longs", "orders"]

    sparklog(*shlex.split("consume --topic orders --consumer-property group.id=audit --max-messages 1"))
    assert Groups(directory).group("audit").committed()[("orders", 0)].offset == 1
    sparklog(*shlex.split("groups --reset-offsets --group audit --topic orders --to-latest --execute"))
    assert Groups(directory).group("audit").committed()[("orders", 0)].offset == 2
    sparklog(*shlex.split("groups --delete-offsets --group audit --topic orders:0"))
    assert list(Groups(directory).group("audit").committed()) == [("orders", 1)]
    assert sparklog(*shlex.split("groups --delete --group audit")).out == "Deleted group audit.\n"
    transaction = library.transactional(directory, "job").begin()
    transaction.append("clicks", pa.table({"value": [b"c1"]}))
    transaction._prepare_topics()
    aborted = sparklog("transactions", "forceTerminateTransaction", "--transactionalId", "job").out
    assert aborted == "Aborted transaction 0 of job, which held back clicks.\n"


def test_internal_topics_of_a_kafka_directory(sparklog: Sparklog, fixtures: Path) -> None:
    root = ("--root", fixtures / "transactions" / "data")
    everything = sparklog("topics", "--list", *root).lines
    internal = ["__consumer_offsets", "__transaction_state"]
    assert [name for name in everything if name.startswith("__")] == internal
    rest = [name for name in everything if name not in internal]
    assert sparklog("topics", "--list", "--exclude-internal", *root).lines == rest
    described = sparklog("topics", "--describe", "--exclude-internal", *root).out
    assert re.findall(r"^Topic: (\S+)", described, re.MULTILINE) == rest
    offsets = sparklog("kafka-get-offsets.sh", "--exclude-internal-topics", *root).lines
    assert {line.split(":")[0] for line in offsets} == set(rest)


def test_groups_are_listed_by_state(sparklog: Sparklog, directory: Path) -> None:
    Groups(directory).group("busy").join("one")
    for state, names in (("Stable", ["busy"]), ("empty", ["g"]), ("stable,Empty", ["busy", "g"]), ("dead", [])):
        assert [line.split()[0] for line in sparklog("groups", "list", "--state", state).lines[1:]] == names


def test_options_without_effect_are_reported(sparklog: Sparklog, directory: Path) -> None:
    line = "consume --topic clicks --consumer-property fetch.min.bytes=5 --enable-systest-events"
    outcome = sparklog(*line.split())
    assert (outcome.out, outcome.err.splitlines()) == (
        "c0\n",
        [
            "sparklog: --enable-systest-events has no effect: the option is for Kafka's own tests",
            "sparklog: --consumer-property fetch.min.bytes=5 has no effect: there is no broker",
            "Processed a total of 1 messages",
        ],
    )


# -- rejected command lines


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("kafka-topics.sh --version", "--version: use `sparklog --version`"),
        ("topics --describe --under-replicated-partitions", "--under-replicated-partitions: sparklog has no replicas"),
        ("topics --command-config f --list", "--command-config: there is no broker to connect to: omit the option"),
        ("topics --create --topic t --topic-id", "--topic-id: use the topic's name"),
        ("topics --delete --topic 'or.*'", "found 'or.*': specify a regular expression with --pattern"),
        ("configs --describe --entity-type users", "--entity-type users: only topics and the root have configs"),
        ("configs --alter --user u", "--user: only topics and the root have configs"),
        ("groups --validate-regex 'x'", "--validate-regex: sparklog's consumers use Python's regular expressions"),
        ("groups --delete --group a --group b", "expected one group, found a, b: run the command for each group"),
        ("groups --delete --all-groups", "--all-groups: specify one group; `sparklog groups list` lists all groups"),
        ("perf produce --topic t --num-records 1 --record-size 1 --producer-props bootstrap.servers=a:1",
         "bootstrap.servers: there is no broker; specify a root"),
        ("groups --list --state sleepy", "'--state': expected Stable, Empty, "),
        ("transactions describe-producers --topic t", "describe-producers: use `sparklog transactions list --open`"),
        ("transactions abort --topic t --partition 0", "--topic: use `sparklog transactions abort ID`; "),
        ("offsets --topic-partitions a:b", "expected TOPIC, TOPIC:0, TOPIC:0-3, TOPIC:1- or TOPIC:-3, found 'a:b'"),
        ("offsets --topic-partitions a --topic b", "specify --topic-partitions or --topic, not both: it selects"),
        ("offsets --partitions 1,x", "expected numbers separated by commas, found 'x'"),
        ("consume t --property print.key", "--property: expected NAME=VALUE, found 'print.key'"),
        ("consume t --property", "Option '--property' requires an argument. (see 'sparklog consume --help')"),
        ("consume t --property print.key=yes", "--property print.key=yes: expected true or false"),
        ("consume t --property print.kye=true", "--property: expected one of print.timestamp, print.partition, "),
        ("consume t --consumer-property auto.offset.reset=none", "expected earliest or latest; latest means --follow"),
        ("consume t --consumer-property enable.auto.commit=false", "otherwise, no offsets are committed"),
        ("consume t --consumer-property ssl.key.password=x", "there is no broker to connect to"),
        ("consume t --consumer-property bootstrap.servers=x", "there is no broker; specify a root"),
        ("consume t --value-deserializer x.Avro", "--value-deserializer x.Avro: --value-format accepts string, "),
        ("produce t --property headers.separator= --property parse.headers=true",
         "'--headers-separator': expected at least one character"),
        ("produce t --line-reader x", "--line-reader x: sparklog reads lines of text, or JSON with --json"),
        ("kcat -C -t t -x", "kcat: option -x not recognized; see `sparklog consume --help`"),
        ("kcat -P -t t -c 5", "kcat -c: `sparklog produce` has no equivalent; see its --help"),
        ("kcat -L -o 5", "kcat -o: `sparklog topics describe` has no equivalent; see its --help"),
    ],
)  # fmt: skip
def test_missing_equivalents_are_one_line_errors(sparklog: Sparklog, directory: Path, line: str, says: str) -> None:
    outcome = sparklog(*shlex.split(line), code=2)
    assert says in outcome.err
    assert (outcome.err.count("\n"), outcome.out) == (1, "")


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("kcat -C -b a:1 -t orders -e", "consume --root PATH --topic orders"),
        ("kcat -b a:1 -t orders -p 0 -o -2 -e -q", "consume --root PATH --topic orders --partition 0 --offset -2"),
        ("-C -t orders", "consume --topic orders --from-beginning --follow"),
        ("kafkacat -Ct orders -o end -c 5", "consume --topic orders --max-messages 5 --offset latest --follow"),
        ("kcat -t orders -o s@5 -o e@5000 -J", "consume --topic orders --json --from-timestamp 5 --to-timestamp 5000"),
        (r"kcat -e -t orders -f '%k %s\n' -Z", r"consume --topic orders --format '%k %s\n' --null-literal NULL"),
        ("kcat -e -t orders -K:", "consume --topic orders --print-key --key-separator :"),
        ("kcat -t orders -s value=q -o 1", "consume --topic orders --value-format long --offset 1 --follow"),
        ("kcat -G audit orders clicks", "consume --group audit --follow orders clicks"),
        ("kcat -P -t orders -K : -Z -z lz4 -l file",
         "produce --topic orders --key-separator : --null-marker '' --compression lz4 --file file"),
        ("kcat -L -b a:1 -t orders -J", "topics describe --root PATH --topic orders --json"),
        ("kcat -Q -t orders:1:-1", "offsets --topic-partitions orders:1 --time -1"),
    ],
)  # fmt: skip
def test_kcat_command_lines_report_the_equivalent(sparklog: Sparklog, directory: Path, line: str, command: str) -> None:
    outcome = sparklog(*shlex.split(line), code=2)
    assert outcome.out == ""
    assert outcome.err == f"sparklog: kcat's options differ: use sparklog {command}\n"
    words = [str(directory) if word == "PATH" else word for word in shlex.split(command)]
    if "--follow" not in words and words[0] != "produce":
        assert sparklog(*words).out


def test_other_command_lines_are_unchanged() -> None:
    for line in (
        "",
        "topics",
        "topics list --list",
        "consume -t x --list",
        "groups describe --reset-offsets",
        "x --list",
    ):
        assert translate_command(line.split()) == line.split()


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        "-C -t clicks",
        "-C -t orders -p 0 -o 1",
        "-C -t orders -p 1 -o -1 -Z",
        "-C -t orders -p 0 -o beginning -K: -Z",
        r"-C -t orders -p 0 -f '%t [%p] %o: %k %s\n'",
        "-C -t orders -p 0 -o s@1000",
        "-C -t orders -p 1 -o s@0 -o e@3000 -Z -c 5",
        "-C -t clicks -D '|'",
        "-C -t longs -s value=q",
    ],
)
def test_the_equivalent_prints_the_output_of_kcat(sparklog: Sparklog, directory: Path, line: str) -> None:
    program = shutil.which("kcat")
    if program is None:
        pytest.skip("there is no kcat: Debian has it in a package of that name")
    with serving(str(directory), ServeOptions(listen=Address("127.0.0.1", 0))) as address:
        words = ["-q", "-e", *shlex.split(line)]
        done = subprocess.run([program, "-b", str(address), *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    command = sparklog("kcat", *words, code=2).err.partition("here: sparklog ")[2]
    assert done.stdout
    assert sparklog(*shlex.split(command)).out == done.stdout
