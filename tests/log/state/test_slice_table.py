"""The slice table: the changes that commits make to slices, and checkpoints of the table."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from sparklog.errors import BadRequest, Conflict, Corrupt
from sparklog.format.crc32c import crc32c
from sparklog.format.slice_columns import COLUMN_TYPES
from sparklog.log.journal import documents
from sparklog.log.journal.names import append_path
from sparklog.log.state.checkpoint import (
    COLUMN_NAMES,
    Checkpoint,
    TableRef,
    decode_checkpoint,
    decode_table,
    encode_checkpoint,
    encode_table,
)
from sparklog.log.state.commit import (
    ALTER,
    COMPACT,
    CREATE,
    DELETE,
    DELETE_RECORDS,
    IMPORT,
    MAINTAIN,
    MERGE,
    SEAL,
    Edit,
    RemovedSlices,
    Txn,
    TxnDecision,
    WriterBatch,
)
from sparklog.log.state.invariants import check_state
from sparklog.log.state.slice_table import ABORTED, COMMITTED, OPEN, PLAIN, SliceTable, Texts
from sparklog.log.state.slices import SliceFlag
from sparklog.log.state.topic_state import TopicState
from sparklog.testing.world import START_MS
from tests.log.topics import Chain, file_of, output_of

Row = tuple[object, ...]


def rows(table: SliceTable) -> list[Row]:
    """Return all values of a table, including the strings."""
    whole = table.all()
    columns = [
        whole.columns[name].tolist() if name not in ("file", "txn") else [""] * len(whole) for name in COLUMN_TYPES
    ]
    return [(*values, whole.path(row), whole.txn_id(row)) for row, values in enumerate(zip(*columns, strict=True))]


def through_checkpoint(state: TopicState, table: SliceTable) -> tuple[TopicState, SliceTable]:
    """Write a state as a checkpoint and read it back."""
    data, unsealed = encode_table(table)
    ref = TableRef(f"{state.version:020d}-x.arrow", len(data), documents.crc32c.crc32c(data), len(table), unsealed)
    checkpoint = decode_checkpoint(encode_checkpoint(Checkpoint(state, ref)), "key", state.version)
    return checkpoint.state, decode_table(data, checkpoint.table, "table key", state.version)


def test_columns_of_an_append() -> None:
    chain = Chain(3)
    chain.append((2, 5), (0, 3))
    chain.append((0, 2))
    whole = chain.table.all()
    assert whole.partition.tolist() == [0, 0, 2]
    assert whole.base.tolist() == [0, 3, 0]
    assert whole.end.tolist() == [3, 5, 5]
    assert whole.shift.tolist() == [0, 3, 0]
    assert whole.position.tolist() == [100, 0, 0]
    assert whole.size.tolist() == [100, 100, 100]
    assert whole.file_size.tolist() == [240, 140, 240]
    assert whole.footer_length.tolist() == [40, 40, 40]
    assert whole.read_version.tolist() == [0, 1, 0]
    assert [whole.path(row) for row in range(3)] == [
        append_path(0, "f0"),
        append_path(1, "f1"),
        append_path(0, "f0"),
    ]
    assert whole.status.tolist() == [PLAIN] * 3
    assert {name: column.dtype.name for name, column in whole.columns.items()} == COLUMN_TYPES
    assert sorted(chain.table.paths()) == [append_path(0, "f0"), append_path(1, "f1")]


def test_append_time_is_the_commit_time() -> None:
    chain = Chain(1)
    flagged = int(SliceFlag.LOG_APPEND_TIME)
    patched = int(SliceFlag.LOG_APPEND_TIME | SliceFlag.TIMES_IN_BATCHES)
    chain.add(files=(file_of([(0, 3)], flags=flagged, name="a").with_base((0,)),), time_ms=START_MS + 77)
    chain.add(files=(file_of([(0, 3)], flags=patched, name="b").with_base((3,)),))
    chain.add(files=(replace(file_of([(0, 3)], name="c"), append_time=(5,)).with_base((6,)),))
    whole = chain.table.all()
    assert whole.append_time.tolist() == [START_MS + 77, -1, 5]
    assert whole.min_ts.tolist() == [START_MS + 77, 1000, 5]
    assert whole.max_ts.tolist() == [START_MS + 77, 1010, 5]


def test_older_versions_do_not_change() -> None:
    chain = Chain(1)
    chain.append((0, 5))
    before = chain.table
    known = rows(before)
    chain.append((0, 5))
    chain.add(op=DELETE_RECORDS, log_starts={0: 5})
    assert len(chain.table) == 1
    assert rows(before) == known
    assert before.version == 1


def test_selecting_a_range() -> None:
    chain = Chain(2)
    for _ in range(20):
        chain.append((0, 10), (1, 5))
    found = chain.table.select(0, 35, 70)
    assert found.base.tolist() == [30, 40, 50, 60]
    assert chain.table.select(0, 40, 40).base.tolist() == []
    assert chain.table.select(1, 95).base.tolist() == [95]
    assert chain.table.select(1, 100).base.tolist() == []
    assert chain.table.select(7).base.tolist() == []
    assert chain.table.select(0).base.tolist() == list(range(0, 200, 10))


def test_the_number_of_parts_is_small() -> None:
    chain = Chain(1)
    for count in range(1, 600):
        chain.append((0, 1))
        if count % 7 == 0:
            assert len(chain.table.parts()) <= 10
    assert chain.table.all().base.tolist() == list(range(599))


def test_slices_below_the_log_start_are_dropped() -> None:
    chain = Chain(2)
    chain.append((0, 10), (1, 10))
    chain.append((0, 10))
    chain.add(op=DELETE_RECORDS, log_starts={0: 15, 1: 10})
    assert chain.table.all().base.tolist() == [10]
    chain.append((1, 1))
    assert chain.table.all().base.tolist() == [10, 10]


def test_an_edit_replaces_exactly_its_inputs() -> None:
    chain = Chain(2)
    first = chain.append((0, 10), (1, 10))
    chain.append((0, 10))
    remove = (
        RemovedSlices(first.files[0].path, (0,), (0,), (0,)),
        RemovedSlices(append_path(1, "f1"), (0,), (10,), (0,)),
    )
    chain.add(op=SEAL, files=(output_of(0, 0, 20, records=12),), remove=remove, edits=(Edit(0, 0, 20),))
    whole = chain.table.all()
    assert list(zip(whole.partition.tolist(), whole.base.tolist(), whole.end.tolist(), strict=True)) == [
        (0, 0, 20),
        (1, 0, 10),
    ]
    assert whole.shift.tolist() == [0, 0]
    assert whole.leader_epoch.tolist() == [-1, 0]
    assert whole.sealed().tolist() == [True, False]
    assert whole.records.tolist() == [12, 10]


@pytest.mark.parametrize(
    "removal",
    [
        RemovedSlices(append_path(0, "f0"), (0,), (1,), (0,)),
        RemovedSlices(append_path(0, "f0"), (0,), (0,), (7,)),
        RemovedSlices(append_path(0, "f1"), (0,), (0,), (0,)),
        RemovedSlices(append_path(0, "f0"), (1,), (0,), (0,)),
        RemovedSlices(append_path(0, "f0"), (0, 0), (0, 10), (0, 0)),
    ],
)
def test_an_edit_with_a_missing_input_is_a_conflict(removal: RemovedSlices) -> None:
    chain = Chain(2)
    chain.append((0, 10))
    with pytest.raises(Conflict, match="replaces slices that version 1 does not have"):
        chain.add(op=SEAL, remove=(removal,), edits=(Edit(0, 0, 10), Edit(1, 0, 10)))


def test_outputs_below_the_log_start_are_dropped() -> None:
    chain = Chain(1)
    chain.append((0, 10))
    chain.append((0, 10))
    chain.add(op=DELETE_RECORDS, log_starts={0: 12})
    remove = (RemovedSlices(append_path(1, "f1"), (0,), (10,), (0,)),)
    outputs = (output_of(0, 0, 10), output_of(0, 10, 20))
    chain.add(op=SEAL, files=outputs, remove=remove, edits=(Edit(0, 0, 20),))
    assert chain.table.all().base.tolist() == [10]


def test_statuses_of_a_transaction() -> None:
    chain = Chain(2)
    chain.append((0, 3), (1, 3), txn=Txn("t", 1))
    chain.append((0, 3), txn=Txn("t", 1))
    chain.append((0, 3), txn=Txn("u", 1))
    assert chain.table.all().status.tolist() == [OPEN] * 4
    assert chain.table.all().prepare_version.tolist() == [1, 2, 3, 1]
    chain.append((1, 2), resolved=(TxnDecision("t", 1, (1,)),))
    assert chain.table.all().status.tolist() == [COMMITTED, ABORTED, OPEN, COMMITTED, PLAIN]
    assert [chain.table.all().txn_id(row) for row in range(5)] == ["t", "t", "u", "t", ""]
    chain.add(op=MAINTAIN, resolved=(TxnDecision("u", 1),))
    assert chain.table.all().status.tolist() == [COMMITTED, ABORTED, ABORTED, COMMITTED, PLAIN]
    check_state(chain.state, chain.table)


def test_a_deleted_topic_has_no_slices() -> None:
    chain = Chain(1)
    chain.append((0, 3))
    chain.add(op=DELETE)
    assert len(chain.table) == 0
    chain.add(op=CREATE, topic_id="two", partitions=1)
    chain.append((0, 3))
    assert chain.table.all().base.tolist() == [0]


def test_a_checkpoint_of_an_empty_topic() -> None:
    chain = Chain(2)
    state, table = through_checkpoint(chain.state, chain.table)
    assert state == chain.state
    assert rows(table) == []


def test_a_checkpoint_restores_the_state() -> None:
    chain = random_chain(random.Random(3), 120)
    state, table = through_checkpoint(chain.state, chain.table)
    assert state == chain.state
    assert rows(table) == rows(chain.table)
    assert table.version == chain.table.version
    assert encode_table(table)[0] == encode_table(through_checkpoint(state, table)[1])[0]


def test_damage_of_a_checkpoint_is_detected() -> None:
    chain = random_chain(random.Random(4), 30)
    data, unsealed = encode_table(chain.table)
    ref = TableRef(
        f"{chain.state.version:020d}-x.arrow", len(data), documents.crc32c.crc32c(data), len(chain.table), unsealed
    )
    encoded = encode_checkpoint(Checkpoint(chain.state, ref))
    for position in range(0, len(encoded), 3):
        damaged = bytearray(encoded)
        damaged[position] ^= 4
        with pytest.raises((Corrupt, BadRequest)):
            decode_checkpoint(bytes(damaged), "key", chain.state.version)
    for position in range(0, len(data), 37):
        damaged = bytearray(data)
        damaged[position] ^= 4
        with pytest.raises(Corrupt, match="table key"):
            decode_table(bytes(damaged), ref, "table key", chain.state.version)
    with pytest.raises(Corrupt, match=r"expected checkpoint .*, found checkpoint"):
        decode_checkpoint(encoded, "key", chain.state.version + 1)
    with pytest.raises(Corrupt, match="rows"):
        decode_table(data, replace(ref, rows=ref.rows + 1), "table key", chain.state.version)


def test_a_checkpoint_references_only_its_own_table() -> None:
    chain = Chain(1)
    bad = Checkpoint(chain.state, TableRef("../../_root.json", 5, 5, 0, 0))
    with pytest.raises(Corrupt, match="name must be the file name of a slice table"):
        decode_checkpoint(encode_checkpoint(bad), "key", 0)


def test_a_checkpoint_requires_the_features_of_its_commits() -> None:
    chain = Chain(1)
    chain.add(op=ALTER, configs={"retention.ms": "1"}, read_features=("tiers",), write_features=("more",))
    chain.append((0, 1))
    with pytest.raises(BadRequest, match=r"requires the sparklog features tiers; upgrade sparklog"):
        through_checkpoint(chain.state, chain.table)
    assert chain.state.write_features == ("more",)


def test_column_names_in_files_are_unique() -> None:
    assert list(COLUMN_NAMES) == list(COLUMN_TYPES)
    assert len(set(COLUMN_NAMES.values())) == len(COLUMN_NAMES)


def test_strings_of_a_checkpoint_and_of_later_commits() -> None:
    import pyarrow as pa

    texts = Texts(pa.array(["a", "b"]))
    assert texts.code("c") == 2
    assert texts.code("c") == 2
    assert [texts[code] for code in (0, 1, 2, -1)] == ["a", "b", "c", ""]
    assert texts.at(np.array([2, 0, 1])) == ["c", "a", "b"]
    assert Texts.of(["x", "y"]).code("y") == 1


def random_chain(rng: random.Random, steps: int) -> Chain:
    """Create a random history of all kinds of commits, checked at each step."""
    chain = Chain(rng.randint(1, 4))
    number = 0
    for step in range(steps):
        kind = rng.random()
        partitions = chain.state.partitions
        if kind < 0.55:
            slices = [(rng.randrange(partitions), rng.randint(1, 9)) for _ in range(rng.randint(1, 4))]
            values: dict[str, object] = {}
            if rng.random() < 0.3:
                number += 1
                values["txn"] = Txn(rng.choice("tuv"), number, {"other": number})
            elif rng.random() < 0.4:
                values["writer"] = WriterBatch("stream", rng.choice("pq"), step, rng.choice("rs"), 3)
            chain.append(*slices, name=f"s{step}", **values)
        elif kind < 0.7 and chain.state.open:
            prepare = rng.choice(chain.state.open)
            committed = (prepare.version,) if rng.random() < 0.6 else ()
            chain.add(op=MAINTAIN, resolved=(TxnDecision(prepare.txn.id, prepare.txn.n, committed, {"x": step}),))
        elif kind < 0.8:
            partition = rng.randrange(partitions)
            low, high = int(chain.state.log_start[partition]), int(chain.state.log_end[partition])
            chain.add(op=DELETE_RECORDS, log_starts={partition: rng.randint(low, low + (high - low) // 3)})
        elif kind < 0.92:
            rewrite(chain, rng.randrange(partitions), rng)
        elif kind < 0.95:
            chain.add(op=ALTER, partitions=partitions + 1)
        elif kind < 0.97:
            end = int(chain.state.log_end[0])
            file = file_of([(0, 4)], name=f"i{step}").with_base((end + 3,))
            chain.add(op=IMPORT, files=(file,), leader_epoch=chain.state.leader_epoch + 1)
        elif kind < 0.98:
            chain.add(op=DELETE)
            chain.add(op=CREATE, topic_id=f"topic-{step}", partitions=2, leader_epoch=0)
        check_state(chain.state, chain.table)
    return chain


def rewrite(chain: Chain, partition: int, rng: random.Random) -> None:
    """Seal or merge the stable slices of a partition."""
    stable = int(chain.state.last_stable()[partition])
    found = chain.table.select(partition, 0, stable)
    found = found[np.flatnonzero(found.end <= stable)]
    if not len(found):
        return
    cut = rng.randint(1, len(found))
    removed = [
        RemovedSlices(found.path(row), (partition,), (int(found.base[row]),), (int(found.position[row]),))
        for row in range(cut)
    ]
    start, end = int(found.base[0]), int(found.end[cut - 1])
    op = rng.choice((MERGE, SEAL, COMPACT))
    files = (output_of(partition, start, end, records=1),) if rng.random() < 0.9 else ()
    cleaned = end if op == COMPACT else None
    chain.add(op=op, files=files, remove=tuple(removed), edits=(Edit(partition, start, end, cleaned),))


@pytest.mark.parametrize("seed", range(30))
def test_checkpoint_and_later_commits_equal_a_replay(seed: int) -> None:
    """A checkpoint at any version, with the later commits applied, equals the state after a replay from version 0."""
    rng = random.Random(seed)
    chain = random_chain(rng, 60)
    cut = rng.randrange(len(chain.stored))
    state, table = TopicState(), SliceTable()
    for commit, _ in chain.stored[: cut + 1]:
        state = state.apply(commit)
        table = table.apply(commit, state)
    state, table = through_checkpoint(state, table)
    for commit, _ in chain.stored[cut + 1 :]:
        state = state.apply(commit)
        table = table.apply(commit, state)
    assert state == chain.state
    assert rows(table) == rows(chain.table)


def test_strings_of_removed_slices_are_dropped() -> None:
    chain = Chain(1)
    for step in range(6000):
        chain.append((0, 1), **({"txn": Txn(f"t{step}", 1)} if step == 5990 else {}))
    known = rows(chain.table)[-30:]
    chain.add(op=DELETE_RECORDS, log_starts={0: 5970})
    assert len(chain.table.texts[0]) == 30
    assert rows(chain.table) == known
    chain.append((0, 1))
    assert chain.table.all().path(30) == append_path(6001, "f6001")


def test_many_commits_are_replayed() -> None:
    chain = Chain(4)
    for _ in range(1000):
        chain.append((0, 1), (1, 1))
    state, table = TopicState(), SliceTable()
    for commit, _ in chain.stored:
        state = state.apply(commit)
        table = table.apply(commit, state)
    assert len(table) == 2000
    assert len(table.parts()) < 16


@pytest.mark.parametrize("seed", range(8))
def test_selecting_many_ranges_equals_selecting_each(seed: int) -> None:
    rng = random.Random(seed)
    chain = random_chain(rng, 40)
    table, partitions = chain.table, chain.state.partitions
    ranges = [(rng.randrange(partitions + 1), *sorted((rng.randrange(60), rng.randrange(60)))) for _ in range(50)]
    selected, cuts = table.select_each(*np.array(ranges, np.int64).T)
    assert cuts[-1] == len(selected)
    for (partition, start, end), low, high in zip(ranges, cuts[:-1], cuts[1:], strict=True):
        one = table.select(partition, start, end)
        assert [selected[low:high].path(row) for row in range(high - low)] == [one.path(row) for row in range(len(one))]
        for name in COLUMN_TYPES:
            assert selected.columns[name][low:high].tolist() == one.columns[name].tolist()


def test_an_empty_table_selects_nothing() -> None:
    selected, cuts = SliceTable().select_each(*np.array([(0, 0, 9), (3, 0, 9)], np.int64).T)
    assert len(selected) == 0
    assert cuts.tolist() == [0, 0, 0]


def test_an_error_for_a_damaged_table_describes_the_difference() -> None:
    data, _ = encode_table(SliceTable())
    ref = TableRef("x.arrow", len(data), crc32c(data), 0, 0)
    with pytest.raises(
        Corrupt, match=rf"slice table of {len(data)} bytes, found {len(data) - 1} bytes; run sparklog repair"
    ):
        decode_table(data[:-1], ref, "x", 0)
    wrong = data[:-1] + bytes([data[-1] ^ 1])
    with pytest.raises(
        Corrupt, match=rf"slice table with CRC-32C {ref.crc}, found {crc32c(wrong)}; run sparklog repair"
    ):
        decode_table(wrong, ref, "x", 0)
