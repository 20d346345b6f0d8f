"""Command lines that users of Kafka and kcat type on the first day, and their output."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog as library
from sparklog.clients.consumer.consumer import Consumer
from sparklog.console.options import unescaped
from sparklog.groups.lag import Groups
from sparklog.transactions.producer import transactional
from tests.cli.conftest import Sparklog

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture
def directory(root: Path) -> Path:
    """Topic `orders` with v0 to v4 in partition 0 and w0, w1 in partition 1, one second apart, and `clicks` and `old`
    with one record each.
    """
    opened = library.open(root, create=True)
    rows = {
        "key": [b"k0", None, b"k2", b"k3", b"", b"l0", b"l1"],
        "value": [b"v0", b"v1", b"v2", b"v3", b"v4", b"w0", None],
        "partition": pa.array([0, 0, 0, 0, 0, 1, 1], pa.int32()),
        "timestamp": pa.array([0, 1000, 2000, 3000, 4000, 0, 1000], pa.int64()),
        "headers": pa.array([[("h", b"x"), ("n", None)], *[None] * 6], HEADERS),
    }
    opened.create_topic("orders", partitions=2).append(pa.table(rows))
    for name in ("clicks", "old"):
        opened.create_topic(name).append(pa.table({"value": [b"c0"]}))
    return root


def committed(root: Path, group: str) -> dict[tuple[str, int], int]:
    return {at: item.offset for at, item in Groups(root).group(group).committed().items()}


@pytest.mark.parametrize(
    ("line", "printed"),
    [
        # The topic as an argument, or as the option of Kafka's tools.
        ("topics create --topic new", "Created topic new with 1 partition in ROOT."),
        ("topics create new --topic new", "Created topic new with 1 partition in ROOT."),
        ("topics alter --topic clicks --partitions 2", "Altered topic clicks."),
        ("topics delete --topic clicks", "Deleted topic clicks."),
        ("configs alter --topic clicks --add-config segment.ms=7",
         "  segment.ms: 604800000 (7 days) -> 7 (7 ms)|Completed updating config for topic clicks."),
        ("configs describe --topic clicks", "Dynamic configs for topic clicks are: none"),
        ("get --topic orders --key k2 -p 0", "v2"),
        ("offsets --topic orders", "orders:0:5|orders:1:2"),
        ("offsets --topic orders,clicks --time -1", "clicks:0:1|orders:0:5|orders:1:2"),
        ("delete-records old -p 0 -o 1", "Records delete operation completed:|partition: old-0\tlow_watermark: 1"),
        ("consume --topic clicks", "c0"),
        ("consume -t clicks", "c0"),
        ("offsets --topic clicks -t -2", "clicks:0:0"),
        # Several topics.
        ("consume clicks orders -n 2", "c0|v0"),
        ("consume --topic clicks,orders -n 2", "c0|v0"),
        ("consume --include 'cl.*'", "c0"),
        ("consume --include 'clicks,ord.*' -n 2", "c0|v0"),
        # The start and the end of a read.
        ("consume orders -p 0 -o -2", "v3|v4"),
        ("consume orders -p 0 -o -9", "v0|v1|v2|v3|v4"),
        ("consume orders -o -1 --null-literal NIL", "v4|NIL"),
        ("consume orders -p 0 -o 1 --to-offset 3", "v1|v2"),
        ("consume orders -p 0 -o 3 --to-offset 3", ""),
        ("consume orders -p 0 --to-offset 99", "v0|v1|v2|v3|v4"),
        ("consume orders --to-timestamp 1000", "v0|w0"),
        ("consume orders --from-timestamp 1000 --to-timestamp 1970-01-01T00:00:03Z", "v1|v2|null"),
        ("consume orders --to-timestamp 9999999", "v0|v1|v2|v3|v4|w0|null"),
        # kcat's format, and escapes.
        (r"consume orders -n 2 --format '%t [%p] at %o: %k: %s\n'", "orders [0] at 0: k0: v0|orders [0] at 1: : v1"),
        (r"consume orders -p 1 --format '%K,%S,%T,%h;\x41%%\n'", "2,2,0,;A%|2,-1,1000,;A%"),
        (r"consume orders -p 1 --format '%s.' --null-literal NIL", "w0.NIL."),
        (r"consume orders -n 1 --format '%h'", "h=x,n="),
        (r"consume clicks --format 'one\n'", "one"),
        (r"consume orders -n 2 --print-key --key-separator '\t|' --null-literal '\0'", "k0\t\\|v0|\0\t\\|v1"),
        # A table without rows has a header.
        ("transactions list", "TRANSACTIONAL-ID  NEWEST  STATE  HOLDS-BACK"),
        ("groups list --state", "GROUP  STATE  GENERATION  CONSUMER-ID  SESSION-TIMEOUT-MS  PENDING  #MEMBERS"),
        ("groups list", ""),
    ],
)  # fmt: skip
def test_kafka_command_lines_print_the_expected_output(
    sparklog: Sparklog, root: Path, directory: Path, line: str, printed: str
) -> None:
    shown = "|".join(text.replace("|", "\\|") for text in sparklog(*shlex.split(line)).lines)
    assert shown == printed.replace("ROOT", str(root))


def test_a_replication_factor_is_accepted(sparklog: Sparklog, root: Path) -> None:
    assert "copies" not in sparklog("topics", "create", "one", "--replication-factor", 1).err
    keeps = f"has no effect, because the storage of {root} replicates data\n"
    for factor in (3, -1):
        outcome = sparklog("topics", "create", f"r{factor + 1}", "--replication-factor", factor, "-p", 2)
        assert outcome.err.startswith(f"sparklog: --replication-factor {factor} {keeps}")
        assert outcome.out.startswith("Created topic r")
    assert keeps in sparklog("topics", "alter", "one", "-p", 2, "--replication-factor", 3).err
    assert library.open(root).topic("one").describe().partitions[-1].partition == 1


NO_BROKER = "there is no broker; specify a root or a Kafka log directory with --root PATH"
ONCE = "omit one of them"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("topics create", "expected TOPIC as an argument or --topic, found none"),
        ("produce --key-separator :", "expected TOPIC as an argument or --topic, found none"),
        ("topics delete a --topic b", f"expected TOPIC once, found 'a' and --topic 'b': {ONCE}"),
        ("produce a --topic b", f"expected TOPIC once, found 'a' and --topic 'b': {ONCE}"),
        ("get a --topic b --key k", f"expected TOPIC once, found 'a' and --topic 'b': {ONCE}"),
        ("consume a --topic b", f"specify the topics only once, found 'a' and --topic 'b': {ONCE}"),
        ("offsets a b --topic b", f"specify the topics only once, found 'a b' and --topic 'b': {ONCE}"),
        ("delete-records a --topic b", f"expected TOPIC once, found 'a' and --topic 'b': {ONCE}"),
        ("restore /b --from /c --to /d", f"expected PATH once, found '/b' and --from '/c': {ONCE}"),
        ("restore --to /d", "expected PATH as an argument or --from, found none"),
        ("--zookeeper z:2181 topics list", f"--zookeeper: {NO_BROKER}"),
        ("consume orders -b a:1", f"-b: {NO_BROKER}"),
        ("mirror --bootstrap-server a:1", "specify the cluster as kafka://HOST:PORT with --from or --to"),
        ("transactions --list", "--list is a command: use "),
        ("topics create a -p x", "expected an integer of at least 1, found 'x'"),
        ("topics create a -p 0", "expected an integer of at least 1, found '0'"),
        ("history orders --limit 0", "expected an integer of at least 1, found '0'"),
        ("retain --now-ms -5", "expected an integer of at least 0, found '-5'"),
        ("topics create a --replication-factor two", "expected an integer of at least -1, found 'two'"),
        ("topics alter a -p 1.5", "expected an integer of at least 1, found '1.5'"),
        ("produce a -p 2147483648", "expected an integer from 0 to 2147483647, found '2147483648'"),
        ("consume orders -n -1", "expected an integer of at least 0, found '-1'"),
        ("delete-records orders -p 0 -o -2", "expected an integer of at least -1, found '-2'"),
        (f"groups reset g --to-offset {2**63}", f"expected an integer of at least 0, found '{2**63}'"),
        ("produce a --compression brotli", "'brotli' is not one of 'none', 'gzip', 'snappy', 'lz4', 'zstd'"),
        ("consume orders -f '%k\\n'", "expected a topic, found '%k\\\\n': use --format to specify a format"),
        ("consume orders --format %k --json", "specify --format or --json, not both"),
        ("consume orders --include x", "specify --include or TOPIC, not both"),
        ("consume --include 'x('", "expected a regular expression, found 'x('"),
        ("consume orders --to-offset 3", "--to-offset requires --partition"),
        ("consume orders --key a --group g", "specify --group or --key, not both: a group reads all records"),
        ("consume orders --all-partitions", "--all-partitions requires --key"),
        ("consume orders --key a -p 0 --all-partitions", "specify --all-partitions or --partition, not both"),
        ("consume orders -p 0 --to-offset 3 --to-timestamp 9", "specify --to-offset or --to-timestamp, not both"),
        ("consume orders --to-timestamp 9 -f", "specify --to-timestamp or --follow, not both"),
        ("consume orders --to-timestamp noon", "'--to-timestamp'"),
        ("consume orders --group g -p 0", "specify --group or --partition, not both"),
        ("consume orders --group g -o latest", "specify --group or --offset, not both"),
    ],
)  # fmt: skip
def test_wrong_usage_is_one_line(sparklog: Sparklog, directory: Path, line: str, says: str) -> None:
    outcome = sparklog(*shlex.split(line), code=2)
    assert says in outcome.err
    assert (outcome.err.count("\n"), outcome.out) == (1, "")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("consume ordets", "topic 'ordets' does not exist in {root}; did you mean 'orders'? ["),
        ("produce ordets", "topic 'ordets' does not exist in {root}; did you mean 'orders'? ["),
        (
            "topics create a -c compression.type=none",
            "lz4 or zstd, found 'none'; use uncompressed for a topic without compression [",
        ),
        ("consume --include nothing", "no topic in {root} matches 'nothing': see `sparklog topics list` ["),
        ("consume orders --format '%x'", "--format supports %t %p %o %T %h %k %K %s %S and %%, found '%x' ["),
        ("consume orders --format 'x%'", "and %%, found '%' ["),
    ],
)
def test_an_error_is_one_line(sparklog: Sparklog, directory: Path, line: str, says: str) -> None:
    outcome = sparklog(*shlex.split(line), code=1)
    assert says.format(root=directory) in outcome.err
    assert (outcome.err.count("\n"), outcome.out) == (1, "")


def test_a_missing_topic_is_created_unless_the_name_may_be_misspelled(
    sparklog: Sparklog, directory: Path, tmp_path: Path
) -> None:
    file = tmp_path / "lines"
    file.write_text("a\n")
    outcome = sparklog("produce", "zzz", "--file", file)
    assert outcome.err.splitlines() == [
        (
            "Topic zzz did not exist: created with 1 partition, the root's default;"
            " use --num-partitions to set another number"
        ),
        "Appended 1 record to zzz",
    ]
    assert sparklog("produce", "zzz", "--file", file).err == "Appended 1 record to zzz\n"
    sparklog("produce", "ordets", "--file", file, "--num-partitions", "2")
    assert sparklog("consume", "ordets").out == "a\n"


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [(r"\t", b"\t"), (r"\n\r\0", b"\n\r\0"), (r"\x1f|\x1F", b"\x1f|\x1f"), (r"\033", b"\x1b"), (r"\\t", rb"\t"),
     ("\\", b"\\"), (r"\d\x1", rb"\d\x1"), ("é", "é".encode()), ("", b"")],
)  # fmt: skip
def test_escapes(text: str, bytes_: bytes) -> None:
    assert unescaped(text) == bytes_


def test_escapes_in_produced_records(sparklog: Sparklog, directory: Path, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"a\0b\nc\0\x1f\n")
    sparklog("produce", "--topic", "clicks", "--file", file, "--key-separator", r"\0", "--null-marker", r"\x1f")
    assert sparklog("consume", "clicks", "-o", -2, "--print-key").lines == ["a\tb", "c\tnull"]


def test_a_group_resumes_at_its_offsets(sparklog: Sparklog, directory: Path) -> None:
    first = sparklog("consume", "orders", "--group", "g", "-n", 2)
    assert (first.lines, first.err) == (["v0", "v1"], "Processed a total of 2 messages\n")
    assert committed(directory, "g") == {("orders", 0): 2, ("orders", 1): 0}
    assert sparklog("consume", "--topic", "orders", "--group", "g", "--from-beginning", "-n", 4).lines == [
        "v2", "v3", "v4", "w0",
    ]  # fmt: skip
    assert committed(directory, "g") == {("orders", 0): 5, ("orders", 1): 1}
    assert sparklog("consume", "orders", "clicks", "--group", "g", "--json").out.count('"value"') == 2
    assert sparklog("consume", "orders", "clicks", "--group", "g").lines == []
    assert committed(directory, "g") == {("clicks", 0): 1, ("orders", 0): 5, ("orders", 1): 2}
    assert "has no active members" in sparklog("groups", "describe", "g").err


def test_a_following_group_starts_at_the_end(sparklog: Sparklog, directory: Path) -> None:
    assert sparklog("consume", "clicks", "--group", "new", "--follow", "--timeout-ms", 20).lines == []
    assert committed(directory, "new") == {("clicks", 0): 1}
    options = ("--group", "old", "--follow", "--timeout-ms", 20, "--from-beginning")
    assert sparklog("consume", "clicks", *options).lines == ["c0"]


def test_a_group_commits_after_markers(sparklog: Sparklog, directory: Path) -> None:
    with transactional(directory, "job").begin() as transaction:
        transaction.append("clicks", pa.table({"value": [b"c1"]}))
    assert sparklog("consume", "clicks", "--group", "g").lines == ["c0", "c1"]
    (row,) = json.loads(sparklog("groups", "describe", "g", "--json").out)
    assert row["lag"] == 0


def test_unprinted_records_are_not_committed(
    sparklog: Sparklog, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("sparklog.cli.printing.write", refuse)
    assert "No space left" in sparklog("consume", "clicks", "--group", "g", code=1).err
    assert committed(directory, "g") in ({}, {("clicks", 0): 0})


def test_groups_cannot_commit_to_a_kafka_directory(sparklog: Sparklog, fixtures: Path) -> None:
    directory = fixtures / "segments" / "data"
    err = sparklog("consume", "--include", ".*", "--group", "g", "--root", directory, code=1).err
    assert "is a Kafka directory, which is read-only" in err


def test_several_topics_of_a_kafka_directory(sparklog: Sparklog, fixtures: Path) -> None:
    directory = fixtures / "segments" / "data"
    names = [name for name in sparklog("topics", "list", "--root", directory).lines if not name.startswith("__")][:2]
    lines = [line for name in names for line in sparklog("consume", name, "--root", directory, "--json").lines]
    assert sparklog("consume", *names, "--root", directory, "--json").lines == lines
    assert len(names) == 2


def test_restore_accepts_paths_as_arguments_and_options(sparklog: Sparklog, directory: Path, tmp_path: Path) -> None:
    sparklog("restore", "--from", directory, "--root", tmp_path / "again")
    assert sparklog("consume", "clicks", "--root", tmp_path / "again").lines == ["c0"]


def test_an_interrupt_commits_printed_records(
    sparklog: Sparklog, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poll = Consumer.poll

    def poll_once(member: Consumer, timeout: float) -> list[pa.RecordBatch]:
        if any(member.positions()["clicks"].values()):
            raise KeyboardInterrupt
        return poll(member, timeout)

    monkeypatch.setattr(Consumer, "poll", poll_once)
    assert sparklog("consume", "clicks", "--group", "g", "--follow", "--from-beginning", code=130).lines == ["c0"]
    assert committed(directory, "g") == {("clicks", 0): 1}
