"""Commits that maintenance and transactions will make, made by hand: rewritten, prepared, resolved."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from sparklog.format.append_file import build_index
from sparklog.format.record_batch import scan_headers
from sparklog.log.append_output import AppendOutput
from sparklog.log.append_writer import AppendWriter
from sparklog.log.commit import MERGE, Edit, Resolved, Txn
from sparklog.log.conflicts import Input, MaintainIntent, Rewrite, RewriteIntent
from sparklog.log.names import file_key
from sparklog.log.topic import Topic
from tests.log.data_plane import Place, small


def rewrite(place: Place, topic: Topic, path: str) -> None:
    """Copy every slice of the topic into the file `path`, commit that, and delete the files they were in."""
    snapshot = topic.snapshot()
    found = snapshot.slices.all()
    output = AppendOutput(place.inner, topic.name, path)
    for row in range(len(found)):
        key = file_key(topic.name, found.path(row))
        data = place.inner.get(key, int(found.position[row]), int(found.size[row]))
        headers = scan_headers(data)
        output.add(
            [data],
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
    file = output.close().based(tuple(found.base.tolist()))
    head = snapshot.head
    rewrites = []
    for partition in range(head.partitions):
        rows = np.arange(len(found))[found.partition_rows(partition)]
        inputs = tuple(
            Input(found.path(row), int(found.position[row]), int(found.base[row]), int(found.end[row])) for row in rows
        )
        edit = Edit(partition, int(head.log_start[partition]), int(head.log_end[partition]))
        if inputs:
            rewrites.append(Rewrite(edit, inputs))
    old = {file_key(topic.name, found.path(row)) for row in range(len(found))}
    outcome = topic.commit(RewriteIntent(MERGE, head.topic_id, tuple(rewrites), (file,)))
    assert outcome.commit is not None
    assert not outcome.dropped
    for key in old:
        place.inner.delete(key)


def prepared(place: Place, topic: Topic, table: pa.Table, transactional_id: str, number: int) -> int:
    """Append as part of a transaction that stays open; the version of the prepare."""
    target = topic.append_target()
    writer = AppendWriter(target, small(), place.clock.env(number + 20), seed=number)
    for batch in table.to_batches():
        writer.write(batch)
    return topic.commit_append(writer.finish(), target, txn=Txn(transactional_id, number)).version


def resolve(place: Place, topic: Topic, transactional_id: str, number: int, *, committed: bool) -> None:
    """Record the outcome of a transaction in the topic."""
    head = topic.head()
    versions = tuple(item.version for item in head.open if (item.txn.id, item.txn.n) == (transactional_id, number))
    resolved = Resolved(transactional_id, number, versions if committed else ())
    topic.commit(MaintainIntent(resolved=(resolved,)))
