"""The encoding of commits: canonical, strict, and with detection of damage."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sparklog
from sparklog.errors import BadRequest, Corrupt
from sparklog.log.journal.documents import peek_commit_id
from sparklog.log.state.commit import (
    MERGE,
    OPS,
    Commit,
    Edit,
    RemovedSlices,
    Txn,
    TxnDecision,
    VersionLease,
    WriterBatch,
)
from sparklog.log.state.commit_json import COMMIT_JSON
from sparklog.log.state.commit_object import decode_commit, encode_commit
from sparklog.log.state.kafka_source import ImportedEnd, KafkaEnded, KafkaOpen, KafkaSource
from sparklog.log.state.slices import FileSlices
from tests.log.topics import file_of, output_of
from tests.support.seeds import examples

KEY = "orders/_log/00000000000000000042.json"

FULL = Commit(
    version=42,
    topic_id="Nl9fAu5BSKWrKStsRj0OrA",
    commit_id="u-0NQmVMTWWyW3fcJFSHnA",
    prev_crc=2762448446,
    time_ms=1_700_000_000_000,
    leader_epoch=3,
    op=MERGE,
    writer=WriterBatch("stream", "query", 7, "run", 20),
    writers=(WriterBatch("txn", "kafka-producer-7-0", 4, None, 5),),
    files=(
        file_of([(0, 5), (2, 1)], read_version=41, name="abc", flags=1).with_base((10, 0)),
        output_of(1, 30, 40, records=4, read_version=40),
    ),
    remove=(RemovedSlices("append/00000000000000000001-x.slices", (1, 1), (30, 35), (0, 100)),),
    edits=(Edit(1, 30, 40, 40), Edit(0, 10, 15)),
    log_starts={10: 5, 2: 1},
    configs={"retention.ms": "-1", "cleanup.policy": None},
    partitions=12,
    previous_partition_counts=(4, 6),
    txn=Txn("Bestellung/ä", 5, {"payments": 17}, 60_000),
    resolved=(TxnDecision("t", 4, (38, 39), {"payments": 16}), TxnDecision("u", 1)),
    kafka_open=(KafkaOpen(1, 1000, 3, 31, 40), KafkaOpen(1, 1002, 0, 32, 40, "ä", 60_000, 17, "commit")),
    kafka_ended=(KafkaEnded(0, 1001),),
    kafka_source=KafkaSource("dGhpcyBpcyBhbiBpZCwga", {2: ImportedEnd(9, 7, 99, 3), 0: ImportedEnd(5)}),
    leases={"backup": VersionLease(40, 1_800_000_000_000), "clone": None},
    floor=30,
    expired={"old": 12},
    clock_ms=1_699_999_000_000,
    clock_since=40,
)

GOLDEN = (
    '{"format":1,"readFeatures":[],"writeFeatures":[],"version":42,"topicId":"Nl9fAu5BSKWrKStsRj0OrA",'
    '"commitId":"u-0NQmVMTWWyW3fcJFSHnA","prevCrc":2762448446,"timeMs":1700000000000,"leaderEpoch":3,'
    '"writer":{"kind":"stream","id":"query","batch":7,"run":"run","count":20},'
    '"writers":[{"kind":"txn","id":"kafka-producer-7-0","batch":4,"run":null,"count":5}],"op":"merge",'
    '"files":[{"path":"append/00000000000000000041-abc.slices","size":240,"footerLength":40,"partition":[0,2],'
    '"base":[10,0],"bytes":[100,100],"offsets":[5,1],"records":[5,1],"minTs":[1000,1000],"maxTs":[1010,1010],'
    '"crc":[0,1],"flags":[1,1]},'
    '{"path":"sealed/1/00000000000000000040-s30-40/00000000000000000030.log","size":500,"footerLength":0,'
    '"partition":[1],"base":[30],"bytes":[500],"offsets":[10],"records":[4],"minTs":[1000],"maxTs":[1010],"crc":[99],'
    '"flags":[0],"leaderEpoch":[-1]}],'
    '"remove":[{"path":"append/00000000000000000001-x.slices","partition":[1,1],"base":[30,35],"position":[0,100]}],'
    '"edits":[{"partition":1,"start":30,"end":40,"cleanedThrough":40},'
    '{"partition":0,"start":10,"end":15,"cleanedThrough":null}],'
    '"logStarts":{"2":1,"10":5},"configs":{"cleanup.policy":null,"retention.ms":"-1"},"partitions":12,"earlierPartitions":[4,6],'
    '"txn":{"id":"Bestellung/\\u00e4","n":5,"siblings":{"payments":17},"timeoutMs":60000},'
    '"resolved":[{"id":"t","n":4,"committed":[38,39],"siblings":{"payments":16}},'
    '{"id":"u","n":1,"committed":[],"siblings":{}}],'
    '"kafkaOpen":[{"partition":1,"producer":1000,"epoch":3,"first":31,"end":40},'
    '{"partition":1,"producer":1002,"epoch":0,"first":32,"end":40,"transactionalId":"\\u00e4","timeoutMs":60000,'
    '"startMs":17,"decided":"commit"}],'
    '"kafkaEnded":[{"partition":0,"producer":1001}],'
    '"kafkaSource":{"topicId":"dGhpcyBpcyBhbiBpZCwga","partition":[0,2],"end":[5,9],"last":[-1,7],"crc":[0,99],'
    '"epoch":[-1,3]},'
    '"holds":{"backup":{"version":40,"expiresMs":1800000000000},"clone":null},"floor":30,"expired":{"old":12},'
    '"clockMs":1699999000000,"clockSince":40'
)


def sealed(body: str) -> bytes:
    """Return bytes with a correct CRC."""
    return f'{body},"crc":{crc32c.crc32c(body.encode())}}}\n'.encode()


def test_golden_bytes() -> None:
    assert encode_commit(FULL) == sealed(GOLDEN)
    assert decode_commit(sealed(GOLDEN), KEY, 42) == FULL


def test_a_small_commit_omits_absent_fields() -> None:
    commit = Commit(0, "id", "c", None, 5, 0, "create", partitions=1)
    body = (
        '{"format":1,"readFeatures":[],"writeFeatures":[],"version":0,"topicId":"id","commitId":"c","prevCrc":null,'
        '"timeMs":5,"leaderEpoch":0,"writer":null,"op":"create","partitions":1'
    )
    assert encode_commit(commit) == sealed(body)
    assert decode_commit(sealed(body), KEY, 0) == commit


def test_every_field_of_a_commit_is_written() -> None:
    assert {*json.loads(encode_commit(FULL)), "inline", "carried"} == set(COMMIT_JSON.names)
    assert len(COMMIT_JSON.names) == 2 + len([f for f in fields(Commit) if f.name not in ("crc", "nbytes")])


def test_decoding_sets_crc_and_length() -> None:
    data = encode_commit(FULL)
    assert decode_commit(data, KEY, 42).crc == crc32c.crc32c(data)
    assert decode_commit(data, KEY, 42).nbytes == len(data)


def test_a_decoded_commit_with_inline_records_cannot_be_encoded(tmp_path: Path) -> None:
    """It does not contain the bytes of the records."""
    topic = sparklog.open(tmp_path, create=True).create_topic("t")
    topic.append([{"value": b"v"}])
    key = topic.log.key(1)
    commit = decode_commit(topic.log.store.get(key), key, 1)
    with pytest.raises(ValueError, match=r"the bytes of the .* of commit 1 are missing"):
        encode_commit(commit)


def test_every_flipped_bit_is_detected() -> None:
    data = encode_commit(FULL)
    for position in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            with pytest.raises((Corrupt, BadRequest)):
                decode_commit(bytes(damaged), KEY, 42)


@pytest.mark.parametrize("length", [0, 1, 17, 300, -3, -1])
def test_an_error_for_a_truncated_commit_reports_its_key(length: int) -> None:
    with pytest.raises(Corrupt, match=r"00000000000000000042.json") as error:
        decode_commit(encode_commit(FULL)[:length], KEY, 42)
    assert error.value.file == KEY


@pytest.mark.parametrize("data", [b"[]", b"null", b"{}", b"\xff\xfe", b"[" * 100_000, b'{"format":true,"crc":1}'])
def test_invalid_commits_are_corrupt(data: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_commit(data, KEY, 42)


def test_a_newer_format_requires_an_upgrade() -> None:
    body = GOLDEN.replace('"format":1', '"format":2')
    with pytest.raises(BadRequest, match=r"has format 2, but this release reads format 1; upgrade sparklog"):
        decode_commit(sealed(body), KEY, 42)


def test_an_error_lists_unknown_read_features() -> None:
    body = GOLDEN.replace('"readFeatures":[]', '"readFeatures":["deletion-vectors","tiers"]')
    with pytest.raises(BadRequest, match=r"requires the sparklog features deletion-vectors, tiers; upgrade"):
        decode_commit(sealed(body), KEY, 42)


def test_unknown_write_features_do_not_stop_readers() -> None:
    body = GOLDEN.replace('"writeFeatures":[]', '"writeFeatures":["tiers"]')
    assert decode_commit(sealed(body), KEY, 42).write_features == ("tiers",)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('"version":42', '"version":43', "expected commit 42, found commit 43"),
        ('"op":"merge"', '"op":"mangle"', "op must be one of create, delete"),
        ('"op":"merge"', '"op":"merge","extra":1', "unknown fields extra"),
        ('"timeMs":1700000000000', '"timeMs":-1', "timeMs must be an integer"),
        ('"timeMs":1700000000000', '"timeMs":1.5', "timeMs must be an integer"),
        ('"topicId":"Nl9fAu5BSKWrKStsRj0OrA",', "", "topicId must be a string"),
        ('"base":[10,0]', '"base":[10]', "base must be a list of 2 integers"),
        ('"base":[10,0]', '"base":[10,true]', "base must be a list of integers"),
        ('"bytes":[100,100]', '"bytes":[100,101]', "bytes must be at most the file's size 240"),
        ('"footerLength":40', '"footerLength":0', "footerLength must be 0 in a sealed segment and positive in any"),
        ('"footerLength":40', '"footerLength":2147483648', "footerLength must be an integer from 0 to 240"),
        ('"size":240,"footerLength":40', '"size":9000000000,"footerLength":2147483648', "from 0 to 2147483647"),
        ('"flags":[0],"leaderEpoch"', '"flags":[0],"position":[1],"leaderEpoch"', "position must be such that each"),
        ('"base":[10,0]', '"base":[10,9223372036854775807]', "base must be such that each slice ends at offset"),
        ('"offsets":[5,1]', '"offsets":[5,0]', "offsets must be a list of integers from 1"),
        ("append/00000000000000000041-abc.slices", "../../00000000000000000041-abc.slices", "path must be the path"),
        ("append/00000000000000000041-abc", "append/09223372036854775808-abc", "path must be the path"),
        ('"logStarts":{"2":1', '"logStarts":{"x":1', "logStarts must be an object whose keys are partitions"),
        ('"logStarts":{"2":1', '"logStarts":{"100000":1', "logStarts must be an object whose keys are partitions"),
        ('"logStarts":{"2":1', '"logStarts":{"\\u00b2":1', "logStarts must be an object whose keys are partitions"),
        ('"partitions":12', '"partitions":100001', "partitions must be an integer from 1 to 100000"),
        ('"configs":{"cleanup.policy":null', '"configs":{"cleanup.policy":1', "configs must be an object of strings"),
        ('"clone":null', '"clone":3', "holds: clone must be an object, found 3"),
        ('"start":30,"end":40', '"start":30,"end":29', "end must be an integer from 30"),
    ],
)
def test_an_error_reports_each_invalid_field(old: str, new: str, expected: str) -> None:
    assert GOLDEN.count(old) == 1
    with pytest.raises(Corrupt) as error:
        decode_commit(sealed(GOLDEN.replace(old, new)), KEY, 42)
    assert expected in str(error.value)
    assert KEY in str(error.value)


def test_the_commit_id_is_read_without_decoding() -> None:
    assert peek_commit_id(encode_commit(FULL)) == FULL.commit_id
    assert peek_commit_id(encode_commit(FULL)[:50]) is None
    assert peek_commit_id(b'{"commitId":7}') is None
    assert peek_commit_id(b"[]") is None


numbers = st.integers(0, 2**63 - 1)
names = st.text(min_size=1, max_size=20)


@st.composite
def files(draw: st.DrawFn) -> FileSlices:
    n = draw(st.integers(1, 4))

    def column(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.lists(st.integers(low, high), min_size=n, max_size=n)))

    nbytes = column(1, 1000)
    size = sum(nbytes) + 50
    return FileSlices(
        path=f"append/{draw(st.integers(0, 2**63 - 1)):020d}-x.slices",
        size=size,
        footer_length=50,
        partition=column(0, 99),
        nbytes=nbytes,
        offsets=column(1, 2**40),
        records=column(0, 2**40),
        min_ts=column(-1, 2**60),
        max_ts=column(-1, 2**60),
        crc=column(0, 2**32 - 1),
        flags=column(0, 7),
        base=column(0, 2**62),
        position=draw(st.sampled_from([(), (0,) * n])),
        shift=draw(st.sampled_from([(), (3,) * n])),
        append_time=draw(st.sampled_from([(), (-1,) * n])),
        leader_epoch=draw(st.sampled_from([(), (-1,) * n])),
    )


@examples(20, 60)
@given(
    files=st.lists(files(), max_size=3).map(tuple),
    writer=st.none() | st.builds(WriterBatch, names, names, numbers, st.none() | names, numbers),
    log_starts=st.dictionaries(st.integers(0, 99_999), numbers, max_size=3),
    configs=st.dictionaries(names, st.none() | st.text(max_size=10), max_size=3),
    txn=st.none() | st.builds(Txn, names, numbers, st.dictionaries(names, numbers, max_size=2), st.none() | numbers),
    op=st.sampled_from(OPS),
    prev=st.none() | st.integers(0, 2**32 - 1),
    floor=st.none() | numbers,
)
def test_encoding_and_decoding_are_inverse(files, writer, log_starts, configs, txn, op, prev, floor) -> None:  # type: ignore[no-untyped-def]
    commit = Commit(
        9,
        "t",
        "c",
        prev,
        5,
        0,
        op,
        writer=writer,
        files=files,
        log_starts=log_starts,
        configs=configs,
        txn=txn,
        floor=floor,
    )
    data = encode_commit(commit)
    assert decode_commit(data, KEY, 9) == commit
    assert encode_commit(decode_commit(data, KEY, 9)) == data
