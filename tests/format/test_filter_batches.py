"""Test removing records from batches.

Results are compared with Kafka's bytes, with its cleaner's passes, and with a model.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.errors import BadRequest
from sparklog.format import filter_batches as filter_module
from sparklog.format.batch_scan import crc_failures, scan_headers
from sparklog.format.control import end_txn_marker
from sparklog.format.decode import HEADERS_TYPE, RecordColumns, decode
from sparklog.format.filter_batches import Filtered, filter_batches
from sparklog.format.payloads import payloads, record_fields
from sparklog.format.record_batch import (
    DELETE_HORIZON_BIT,
    LOG_APPEND_TIME_BIT,
    NO_PRODUCER_ID,
    BatchHeader,
    BatchHeaders,
)
from tests.fixture_data import partitions
from tests.format.batch_samples import (
    ALL,
    CODEC_NAMES,
    GOLDEN_BATCH,
    GOLDEN_HEADER,
    GOLDEN_RECORDS,
    START_MS,
    encode_sample,
    rows,
)
from tests.format.plain_encoder import encode_batch, with_create_time
from tests.support.seeds import examples


@dataclass(frozen=True)
class Fate:
    """The requested action for one batch; `keep` contains positions among its records."""

    keep: frozenset[int]
    drop: bool = False
    empty: bool = False
    horizon: int = -1


def filtered(data: bytes, fates: list[Fate]) -> Filtered:
    """Filter batches, and check that the returned headers match the new batches."""
    headers = scan_headers(data)
    plain = payloads(data, headers)
    fields = record_fields(plain, headers)
    keep = [
        index in fate.keep for count, fate in zip(headers.count.tolist(), fates, strict=True) for index in range(count)
    ]
    found = filter_batches(
        data,
        headers,
        plain,
        fields,
        keep=np.array(keep, np.bool_),
        drop=np.array([fate.drop for fate in fates], np.bool_),
        empty=np.array([fate.empty for fate in fates], np.bool_),
        horizon=np.array([fate.horizon for fate in fates], np.int64),
    )
    check(found, headers)
    return found


def check(found: Filtered, before: BatchHeaders) -> None:
    after = scan_headers(found.data)
    assert not len(crc_failures(found.data, after))
    assert [after.row(index) for index in range(len(after))] == [
        found.headers.row(index) for index in range(len(found.headers))
    ]
    assert found.headers.position.tolist() == after.position.tolist()
    assert (found.headers.end, found.headers.stop) == (len(found.data), "end")
    assert found.headers.base_offset.tolist() == before.base_offset[found.source].tolist()
    columns = decode(found.data, after, columns=("key",))
    times = np.split(columns.timestamp, np.cumsum(columns.batch_rows)[:-1])
    expected = [min((time for time in part.tolist() if time >= 0), default=-1) for part in times[: len(after)]]
    assert found.min_ts.tolist() == expected


def model(data: bytes, fates: list[Fate]) -> list[tuple[BatchHeader, bytes]]:
    """Filter batch by batch with the decoder and the encoder. Return headers and bytes."""
    headers = scan_headers(data)
    out = []
    for index, fate in enumerate(fates):
        one = headers[index : index + 1]
        header = headers.row(index)
        position = int(headers.position[index])
        columns = decode(data, one, columns=ALL)  # with effective times
        kept = sorted(fate.keep & set(range(header.count)))
        if fate.drop or (not kept and not fate.empty):
            continue
        if not kept:
            attributes = header.attributes & 0x38
            out.append(replace(header, attributes=attributes, base_timestamp=-1, count=0).pack())
        elif len(kept) == header.count and fate.horizon < 0:
            out.append(data[position : position + header.size])
        else:
            out.append(rebuilt(columns, header, kept, fate.horizon))
    return [(scan_headers(batch).row(0), batch) for batch in out]


def rebuilt(columns: RecordColumns, header: BatchHeader, kept: list[int], horizon: int) -> bytes:
    part = RecordColumns(
        offset=columns.offset[kept],
        timestamp=columns.timestamp[kept],
        key=columns.key.take(kept),  # type: ignore[union-attr]
        value=columns.value.take(kept),  # type: ignore[union-attr]
        headers=columns.headers.take(kept),  # type: ignore[union-attr]
    )
    base = int(part.timestamp[0])
    attributes = header.attributes
    if horizon >= 0:
        base, attributes = horizon, attributes | DELETE_HORIZON_BIT
    elif attributes & DELETE_HORIZON_BIT:
        base = header.base_timestamp
    lasting = attributes & LOG_APPEND_TIME_BIT
    # Like Kafka's builder, which starts with -1.
    largest = header.max_timestamp if lasting else int(part.timestamp.max(initial=-1))
    changed = replace(header, count=len(kept), base_timestamp=base, max_timestamp=largest, attributes=attributes)
    return encode_batch(part, changed)


def assert_as_modelled(data: bytes, fates: list[Fate]) -> Filtered:
    """Compare plain batches by bytes, and compressed batches by header (except size and CRC) and records."""
    found = filtered(data, fates)
    expected = model(data, fates)
    assert len(found.headers) == len(expected)
    for index, (header, batch) in enumerate(expected):
        position, size = int(found.headers.position[index]), int(found.headers.size[index])
        own = found.data[position : position + size].tobytes()
        if header.attributes & 7 == 0:
            assert own == batch
        else:
            assert replace(found.headers.row(index), size=0, crc=0) == replace(header, size=0, crc=0)
            assert all_rows(own) == all_rows(batch)
    return found


def all_rows(data: bytes) -> list[tuple[Any, ...]]:
    return rows(decode(data, with_create_time(scan_headers(data)), columns=ALL))


GOLDEN_PRODUCER = replace(GOLDEN_HEADER, leader_epoch=4, producer_id=1000, producer_epoch=5, base_sequence=7)


def test_rebuilt_batch_equals_kafkas_bytes() -> None:
    """Kafka's cleaner dropped record 100 at 1800000000000 with a delete.retention.ms of one day."""
    fate = Fate(frozenset({1, 2}), horizon=1_800_000_000_000 + 86_400_000)
    found = filtered(GOLDEN_PRODUCER.pack(GOLDEN_RECORDS), [fate])
    assert found.data.tobytes() == bytes.fromhex(
        "0000000000000064 0000004d 00000004 02 cc8d19b6 0040 00000003 000001a31d82ac00 0000018bcfe56805"
        "00000000000003e8 0005 00000007 00000002 1a00f58fead9e9050201047632001a009390ead9e90506046b330100"
    )
    assert found.min_ts.tolist() == [START_MS - 10]
    assert found.source.tolist() == [0]


def test_emptied_batch_equals_kafkas_bytes() -> None:
    expected = bytes.fromhex(
        "0000000000000064000000310000000002f294ddc1001000000003ffffffffffffffff0000018bcfe5680500000000000003e8"
        "00050000000700000000"
    )
    header = replace(GOLDEN_PRODUCER, leader_epoch=0, attributes=0x10)
    assert filtered(header.pack(GOLDEN_RECORDS), [Fate(frozenset(), empty=True)]).data.tobytes() == expected
    assert filtered(expected, [Fate(frozenset(), empty=True)]).data.tobytes() == expected
    assert not len(filtered(expected, [Fate(frozenset())]).data)


def test_emptied_batch_retains_its_attributes() -> None:
    header = replace(GOLDEN_HEADER, attributes=0x78, base_sequence=3)
    found = filtered(header.pack(GOLDEN_RECORDS), [Fate(frozenset(), empty=True)]).headers.row(0)
    assert found == replace(header, attributes=0x38, base_timestamp=-1, count=0, size=61, crc=found.crc)


def test_unchanged_batch_is_copied_byte_for_byte() -> None:
    """A batch that is not changed is not normalized (overlong lengths, unused bits).

    A rebuilt batch has Kafka's bytes.
    """
    odd = replace(GOLDEN_HEADER, attributes=0x300, count=2, last_offset_delta=1)
    data = odd.pack(bytes.fromhex("8c808000 070000010100  0c 000202010100"))
    assert filtered(data, [Fate(frozenset({0, 1}))]).data.tobytes() == data
    one = filtered(data, [Fate(frozenset({0}))])
    assert one.data[61:].tobytes().hex() == "0c000000010100"
    assert one.headers.row(0).attributes == 0


def test_control_batch_gets_delete_horizon() -> None:
    marker = end_txn_marker(
        commit=True, offset=9, timestamp=START_MS, producer_id=7, producer_epoch=1, coordinator_epoch=3
    )
    found = assert_as_modelled(marker, [Fate(frozenset({0}), horizon=START_MS + 1000)])
    assert found.headers.has_delete_horizon.tolist() == [True]
    assert found.headers.size.tolist() == [79]
    again = filtered(found.data.tobytes(), [Fate(frozenset({0}))])
    assert again.data.tobytes() == found.data.tobytes()
    emptied = filtered(found.data.tobytes(), [Fate(frozenset(), empty=True)])
    assert (emptied.headers.row(0).attributes, emptied.headers.row(0).count) == (0x30, 0)


def test_existing_delete_horizon_is_retained() -> None:
    stamped = filtered(GOLDEN_BATCH, [Fate(frozenset({0, 1, 2}), horizon=START_MS + 77)]).data.tobytes()
    found = assert_as_modelled(stamped, [Fate(frozenset({1}))])
    assert found.headers.base_timestamp.tolist() == [START_MS + 77]
    assert found.headers.has_delete_horizon.tolist() == [True]
    assert found.headers.max_timestamp.tolist() == [START_MS + 5]


def test_delete_horizon_of_zero_is_set() -> None:
    found = assert_as_modelled(GOLDEN_BATCH, [Fate(frozenset({0, 1, 2}), horizon=0)])
    assert (found.headers.base_timestamp.tolist(), found.headers.has_delete_horizon.tolist()) == ([0], [True])


def test_log_append_time_applies_to_all_records() -> None:
    header = replace(GOLDEN_HEADER, attributes=8, max_timestamp=START_MS + 9999)
    found = assert_as_modelled(header.pack(GOLDEN_RECORDS), [Fate(frozenset({1, 2}))])
    after = found.headers.row(0)
    assert (after.base_timestamp, after.max_timestamp) == (START_MS + 9999, START_MS + 9999)
    assert found.min_ts.tolist() == [START_MS + 9999]
    assert decode(found.data, with_create_time(found.headers)).timestamp.tolist() == [START_MS + 9999] * 2


def test_dropped_batch_is_removed_with_retained_records() -> None:
    data = GOLDEN_BATCH * 4
    every = frozenset({0, 1, 2})
    found = assert_as_modelled(
        data, [Fate(every, drop=True), Fate(every), Fate(frozenset(), drop=True, empty=True), Fate(frozenset({2}))]
    )
    assert found.source.tolist() == [1, 3]
    assert not len(filtered(data, [Fate(frozenset())] * 4).data)
    assert not len(filtered(b"", []).headers)


def test_result_is_a_copy() -> None:
    data = np.frombuffer(GOLDEN_BATCH * 2, np.uint8)
    found = filtered(data.tobytes(), [Fate(frozenset({0, 1, 2}))] * 2)
    assert found.data.tobytes() == data.tobytes()
    assert found.data.flags.writeable
    assert not np.shares_memory(found.data, data)


@st.composite
def logs(draw: st.DrawFn) -> tuple[bytes, list[Fate]]:
    """Draw batches of every kind, and the action for each."""
    parts, fates = [], []
    offset = draw(st.integers(0, 2**40))
    for _ in range(draw(st.integers(1, 6))):
        count = draw(st.integers(0, 6))
        gaps = draw(st.lists(st.integers(1, 300), min_size=count, max_size=count))
        deltas = np.cumsum(np.array(gaps, np.int64)) - 1
        times = draw(st.lists(st.integers(-1, 2**42), min_size=count, max_size=count))
        cells = st.one_of(st.none(), st.binary(max_size=40), st.just(b"v" * 300))
        listed = st.one_of(
            st.none(),
            st.lists(st.fixed_dictionaries({"key": st.text(max_size=5), "value": cells}), min_size=1, max_size=2),
        )
        columns = RecordColumns(
            offset=offset + deltas,
            timestamp=np.array(times, np.int64),
            key=pa.array(draw(st.lists(cells, min_size=count, max_size=count)), pa.binary()),
            value=pa.array(draw(st.lists(cells, min_size=count, max_size=count)), pa.binary()),
            headers=pa.array(draw(st.lists(listed, min_size=count, max_size=count)), HEADERS_TYPE),
        )
        header = BatchHeader(
            base_offset=offset,
            last_offset_delta=int(deltas[-1]) + draw(st.integers(0, 9)) if count else draw(st.integers(0, 9)),
            count=count,
            base_timestamp=draw(st.integers(-1, 2**42)),
            max_timestamp=max([*times, -1]),
            attributes=draw(st.integers(0, 4)) | draw(st.sampled_from([0, 8, 16, 64, 72, 80])),
            leader_epoch=draw(st.integers(-1, 9)),
            producer_id=draw(st.sampled_from([NO_PRODUCER_ID, 5])),
        )
        parts.append(encode_batch(columns, header))
        keep = draw(st.one_of(st.just(range(count)), st.just([]), st.lists(st.integers(0, 6))))
        chance = st.integers(0, 4).map(lambda value: value == 0)
        fates.append(
            Fate(frozenset(keep), draw(chance), draw(st.booleans()), draw(st.sampled_from([-1, -1, 0, 2**41])))
        )
        offset += header.last_offset_delta + 1
    return b"".join(parts), fates


@pytest.mark.sweep
@examples(60, 300)
@given(logs())
def test_random_batches_match_the_rules(log: tuple[bytes, list[Fate]]) -> None:
    found = assert_as_modelled(*log)
    same = [Fate(frozenset(range(count)), empty=True) for count in found.headers.count.tolist()]
    assert filtered(found.data.tobytes(), same).data.tobytes() == found.data.tobytes()


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_larger_batches(codec: str) -> None:
    data = encode_sample(2000, codec, batch_bytes=20_000).data
    counts = scan_headers(data).count.tolist()
    random = np.random.default_rng(5)
    for share in (0.02, 0.5, 0.999):
        fates = [Fate(frozenset(np.flatnonzero(random.random(count) < share).tolist())) for count in counts]
        assert len(assert_as_modelled(data, fates).headers) > 5


def stage_logs(fixture: Path, stage: str) -> dict[str, bytes]:
    """Return the bytes of all segments of each partition, in order."""
    return {
        name: b"".join(path.read_bytes() for path in sorted((fixture / stage / name).glob("*.log")))
        for name in partitions(fixture / stage)
    }


def fates_between(before: BatchHeaders, before_data: bytes, after: BatchHeaders, after_data: bytes) -> list[Fate]:
    """Return what Kafka did to each batch, derived from the result."""
    kept = {int(base): index for index, base in enumerate(after.base_offset.tolist())}
    fates = []
    for index, base in enumerate(before.base_offset.tolist()):
        if base not in kept:
            fates.append(Fate(frozenset(), drop=True))
            continue
        at = kept[base]
        survivors = set(decode(after_data, after[at : at + 1], columns=("key",)).offset.tolist())
        offsets = decode(before_data, before[index : index + 1], columns=("key",)).offset.tolist()
        fresh = bool(after.has_delete_horizon[at]) and not before.has_delete_horizon[index]
        horizon = int(after.base_timestamp[at]) if fresh else -1
        keep = frozenset(place for place, offset in enumerate(offsets) if offset in survivors)
        assert len(keep) == len(survivors)
        fates.append(Fate(keep, empty=True, horizon=horizon))
    assert set(kept) <= set(before.base_offset.tolist())
    return fates


def cleanings(fixtures: Path) -> list[tuple[str, bytes, bytes]]:
    """Return each result of Kafka's cleaner, with its input."""
    found = []
    for folder in sorted((fixtures / "compaction").iterdir()):
        if folder.name == "old-formats":
            continue
        stages = [stage["stage"] for stage in json.loads((folder / "fixture.json").read_text())["stages"]]
        for first, second in pairwise(stages):
            if not second.startswith("appended"):
                before, after = stage_logs(folder, first), stage_logs(folder, second)
                found += [(f"{folder.name} {second} {name}", before[name], after[name]) for name in before]
    return found


def test_output_matches_kafkas_cleaner(fixtures: Path) -> None:
    """Filtering the batches of a stage like Kafka results in the bytes of the next stage."""
    kinds = {"copied": 0, "rebuilt": 0, "emptied": 0, "stamped": 0, "dropped": 0, "compressed": 0}
    for name, data, left in cleanings(fixtures):
        before, after = scan_headers(data), scan_headers(left)
        fates = fates_between(before, data, after, left)
        found = filtered(data, fates)
        assert len(found.headers) == len(after), name
        for index in range(len(after)):
            own, wanted = (
                bytes(part[int(h.position[index]) : int(h.position[index] + h.size[index])])
                for part, h in ((found.data, found.headers), (left, after))
            )
            if own == wanted:
                continue
            assert int(after.codec[index]) != 0, f"{name}: batch {index}"
            assert replace(found.headers.row(index), size=0, crc=0) == replace(after.row(index), size=0, crc=0), name
            assert all_rows(own) == all_rows(wanted), name
            kinds["compressed"] += 1
        source = before[found.source]
        same = source.count == after.count
        kinds["copied"] += int((same & (source.crc == after.crc)).sum())
        kinds["rebuilt"] += int((~same & (after.count > 0)).sum())
        kinds["emptied"] += int((~same & (after.count == 0)).sum())
        kinds["stamped"] += sum(fate.horizon >= 0 for fate in fates)
        kinds["dropped"] += sum(fate.drop for fate in fates)
    assert min(kinds.values()) > 10, kinds


def arguments() -> dict[str, Any]:
    data = GOLDEN_BATCH * 2
    headers = scan_headers(data)
    plain = payloads(data, headers)
    return {
        "data": data,
        "headers": headers,
        "payloads": plain,
        "fields": record_fields(plain, headers),
        "keep": np.array([True, True, False] * 2),
        "drop": np.zeros(2, np.bool_),
        "empty": np.zeros(2, np.bool_),
        "horizon": np.full(2, -1),
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("keep", np.ones(5, np.bool_)),
        ("drop", np.ones(1, np.bool_)),
        ("empty", np.ones(3, np.bool_)),
        ("horizon", np.ones(1, np.int64)),
        ("headers", scan_headers(GOLDEN_BATCH)),
        ("headers", replace(scan_headers(GOLDEN_BATCH * 2), count=np.array([2, 4]))),
        ("payloads", payloads(GOLDEN_BATCH, scan_headers(GOLDEN_BATCH))),
    ],
)
def test_mismatched_arrays_are_rejected(name: str, value: Any) -> None:
    given_arrays = arguments()
    assert len(filter_batches(**given_arrays).headers) == 2
    with pytest.raises(BadRequest, match="the lengths of headers, records and masks do not match"):
        filter_batches(**{**given_arrays, name: value})


@pytest.mark.parametrize(
    ("start", "end"), [(-1, 79), (61, 10**9), (79, 61), (2**62, 2**62 + 5), (79, 79), (-(2**63), 2**63 - 1)]
)
def test_records_outside_of_payloads_are_rejected(start: int, end: int) -> None:
    wrong = arguments()
    fields = wrong["fields"]
    starts, ends = fields.start.copy(), fields.end.copy()
    starts[0], ends[0] = start, end
    wrong["fields"] = replace(fields, start=starts, end=ends)
    with pytest.raises(BadRequest, match="a record is outside of the payloads"):
        filter_batches(**wrong)


def test_batch_of_2_gib_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    fates = [Fate(frozenset({0, 1, 2}), horizon=5)]
    size = int(filtered(GOLDEN_BATCH, fates).headers.size[0])
    monkeypatch.setattr(filter_module, "MAX_BATCH_BYTES", size)
    assert len(filtered(GOLDEN_BATCH, fates).headers) == 1
    monkeypatch.setattr(filter_module, "MAX_BATCH_BYTES", size - 1)
    with pytest.raises(BadRequest, match="2 GiB"):
        filtered(GOLDEN_BATCH, fates)


def test_batches_outside_of_data_are_rejected() -> None:
    for cut in (GOLDEN_BATCH, GOLDEN_BATCH * 2, b""):
        wrong = {**arguments(), "data": cut[:-1]}
        with pytest.raises(BadRequest, match="a batch is outside of the data"):
            filter_batches(**wrong)
