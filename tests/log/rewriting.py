"""Commits that maintenance and transactions will make, made by hand: rewritten, prepared, resolved."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from sparklog.format.append_file import WrittenSlice, build_index
from sparklog.format.batch_scan import scan_headers
from sparklog.log.journal.names import append_path, file_key, sealed_path
from sparklog.log.state.commit import MERGE, SEAL, Edit, Txn, TxnDecision
from sparklog.log.state.commit_intents import MaintainIntent
from sparklog.log.state.rewrites import Input, Rewrite, RewriteIntent
from sparklog.log.state.slices import FileSlices
from sparklog.log.topic.topic import Topic
from sparklog.log.write.append_output import AppendOutput
from sparklog.log.write.append_writer import AppendWriter
from tests.support.counted_root import CountedRoot
from tests.support.records import small


def rewrite(counted_root: CountedRoot, topic: Topic, path: str) -> None:
    """Copy every slice of the topic into the file `path`, commit that, and delete the files they were in."""
    snapshot = topic.log.snapshot()
    found = snapshot.slices.all()
    output = AppendOutput(counted_root.inner, topic.name, path)
    for row in range(len(found)):
        key = file_key(topic.name, found.path(row))
        data = counted_root.inner.get(key, int(found.position[row]), int(found.size[row]))
        headers = scan_headers(data)
        output.write(data)
        output.end_slice(
            WrittenSlice(
                partition=int(found.partition[row]),
                nbytes=len(data),
                offsets=int(found.end[row] - found.base[row]),
                records=int(found.records[row]),
                min_ts=int(found.min_ts[row]),
                max_ts=int(found.max_ts[row]),
                crc=int(found.crc[row]),
                flags=int(found.flags[row]),
                index=build_index(headers.position, headers.base_offset, headers.max_timestamp, len(data)),
            )
        )
    file = output.close().with_base(tuple(found.base.tolist()))
    state = snapshot.state
    rewrites = []
    for partition in range(state.partitions):
        rows = np.arange(len(found))[found.partition_rows(partition)]
        inputs = tuple(
            Input(found.path(row), int(found.position[row]), int(found.base[row]), int(found.end[row])) for row in rows
        )
        edit = Edit(partition, int(state.log_start[partition]), int(state.log_end[partition]))
        if inputs:
            rewrites.append(Rewrite(edit, inputs))
    old = {file_key(topic.name, found.path(row)) for row in range(len(found))}
    outcome = topic.log.commit(RewriteIntent(MERGE, state.topic_id, tuple(rewrites), (file,)))
    assert outcome.commit is not None
    assert not outcome.dropped
    for key in old:
        counted_root.inner.delete(key)


def prepared(counted_root: CountedRoot, topic: Topic, table: pa.Table, transactional_id: str, number: int) -> int:
    """Append as part of a transaction that stays open; the version of the prepare."""
    target = topic.log.append_target()
    writer = AppendWriter(target, small(), counted_root.world.env(), seed=number)
    for batch in table.to_batches():
        writer.write(batch)
    return topic.log.commit_append(writer.finish(), target, txn=Txn(transactional_id, number)).version


def resolve(counted_root: CountedRoot, topic: Topic, transactional_id: str, number: int, *, committed: bool) -> None:
    """Record the outcome of a transaction in the topic."""
    state = topic.log.state()
    versions = tuple(item.version for item in state.open if (item.txn.id, item.txn.n) == (transactional_id, number))
    resolved = TxnDecision(transactional_id, number, versions if committed else ())
    topic.log.commit(MaintainIntent(state.topic_id, resolved=(resolved,)))


def appended_by_hand(counted_root: CountedRoot, topic: Topic, batches: list[bytes], flags: int = 0) -> None:
    """Append record batches as they are, offsets counting from 0, as one slice of partition 0."""
    data = b"".join(batches)
    headers = scan_headers(data)
    output = AppendOutput(
        counted_root.inner, topic.name, append_path(topic.log.state().version, counted_root.world.env().new_id())
    )
    output.write(data)
    output.end_slice(
        WrittenSlice(
            partition=0,
            nbytes=len(data),
            offsets=int(headers.next_offset[-1]),
            records=int(headers.count[~headers.is_control].sum()),
            min_ts=int(headers.base_timestamp.min()),
            max_ts=int(headers.max_timestamp.max()),
            crc=crc32c(data),
            flags=flags,
            index=build_index(headers.position, headers.base_offset, headers.max_timestamp, len(data)),
        )
    )
    topic.log.commit_append([output.close()], topic.log.append_target())


def sealed(counted_root: CountedRoot, topic: Topic) -> str:
    """Seal all of partition 0 into one segment with absolute offsets, as Kafka has them; its key."""
    snapshot = topic.log.snapshot()
    found = snapshot.slices.select(0)
    data = bytearray()
    for row in range(len(found)):
        key = file_key(topic.name, found.path(row))
        part = bytearray(counted_root.inner.get(key, int(found.position[row]), int(found.size[row])))
        headers = scan_headers(part)
        for position, base in zip(headers.position.tolist(), headers.base_offset.tolist(), strict=True):
            part[position : position + 8] = (base + int(found.shift[row])).to_bytes(8, "big")
        data += part
    start, end = int(found.base[0]), int(found.end[-1])
    path = sealed_path(0, snapshot.version, counted_root.world.env().new_id(), start)
    counted_root.inner.create(file_key(topic.name, path), bytes(data))
    file = FileSlices(
        path=path,
        size=len(data),
        footer_length=0,
        partition=(0,),
        nbytes=(len(data),),
        offsets=(end - start,),
        records=(int(found.records.sum()),),
        min_ts=(int(found.min_ts.min()),),
        max_ts=(int(found.max_ts.max()),),
        crc=(crc32c(data),),
        flags=(int(found.flags[0]),),
        base=(start,),
        shift=(0,),
    )
    inputs = tuple(
        Input(found.path(row), int(found.position[row]), int(found.base[row]), int(found.end[row]))
        for row in range(len(found))
    )
    intent = RewriteIntent(SEAL, snapshot.state.topic_id, (Rewrite(Edit(0, start, end), inputs),), (file,))
    assert topic.log.commit(intent).commit is not None
    return file_key(topic.name, path)
