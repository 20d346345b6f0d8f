"""Rewrites. Merging, sealing and compaction commit edits, which replace the slices of an offset range.

A rewrite that was planned on an older state is valid if each of its inputs still exists or is entirely below the log
start. One commit contains all edits of a work item. The outputs of an edit are the slices in the range of the edit.

A merge of ten thousand partitions results in one file with ten thousand slices, and in ten thousand edits, which are
validated in each attempt to commit the merge. Therefore, slices are found by partition and base offset, not by
comparing all pairs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from sparklog.errors import BadRequest
from sparklog.format.slice_columns import COMMIT_LISTS
from sparklog.log.state.commit import Edit, Op, RemovedSlices
from sparklog.log.state.commit_intents import Draft, Nothing, check_floor, check_topic
from sparklog.log.state.slice_table import SliceTable
from sparklog.log.state.slices import FileSlices
from sparklog.log.state.topic_state import TopicState


@dataclass(frozen=True, slots=True)
class Input:
    """A slice that a rewrite replaces."""

    path: str
    position: int
    base: int
    end: int


@dataclass(frozen=True, slots=True)
class Rewrite:
    """An edit of one partition, with its inputs. An edit is committed atomically."""

    edit: Edit
    inputs: tuple[Input, ...]


@dataclass(frozen=True, slots=True)
class RewriteIntent:
    """Replace the inputs of each edit with the slices of `files` in the range of the edit. `files` must contain `base`.
    Merging, sealing and compaction use this intent.
    """

    op: Op
    topic_id: str
    rewrites: tuple[Rewrite, ...]
    files: tuple[FileSlices, ...]
    needs_table: ClassVar[bool] = True
    repeatable: ClassVar[bool] = True

    def draft(self, topic: str, state: TopicState, origin: TopicState, table: SliceTable | None) -> Draft | Nothing:
        check_topic(topic, state, self.topic_id)
        if table is None:
            raise BadRequest("a rewrite requires the slice table")
        referenced = table.paths()
        check_floor(topic, [file for file in self.files if file.path not in referenced], state.floor)
        outputs = Outputs(self.files)
        outside = outputs.outside(rewrite.edit for rewrite in self.rewrites)
        if outside is not None:
            raise BadRequest(f"cannot rewrite '{topic}': {outside} is not in an edit, so its records would be lost")
        inputs: list[tuple[Edit, list[Input]]] = []
        dropped: list[Edit] = []
        for rewrite in self.rewrites:
            removals = _inputs_to_remove(rewrite, state, table)
            files = outputs.of([rewrite.edit])
            if removals is None:
                if not _is_committed(files, table):
                    dropped.append(rewrite.edit)
            elif removals or not rewrite.inputs:
                _check_covered(topic, rewrite, files, table)
                inputs.append((rewrite.edit, removals))
        if not inputs:
            return Nothing("none of the edits applies", state.version, dropped=tuple(dropped))
        edits = tuple(edit for edit, _ in inputs)
        return Draft(self.op, files=outputs.of(edits), remove=_removals(inputs), edits=edits, dropped=tuple(dropped))


class Outputs:
    """The slices of files, indexed by partition and base offset. The files must contain `base`."""

    def __init__(self, files: Sequence[FileSlices]) -> None:
        self._files = files
        slices: dict[int, list[tuple[int, int, int]]] = {}
        for number, file in enumerate(files):
            for row, (partition, base) in enumerate(zip(file.partition, file.base, strict=True)):
                slices.setdefault(partition, []).append((base, number, row))
        self._slices = {partition: sorted(rows) for partition, rows in slices.items()}

    def of(self, edits: Iterable[Edit]) -> tuple[FileSlices, ...]:
        """Return the files with only the slices whose base offset is in an edit. Files that have no such slices are
        omitted.
        """
        return tuple(self._part_of(number, sorted(rows)) for number, rows in sorted(self._rows_of(edits).items()))

    def outside(self, edits: Iterable[Edit]) -> str | None:
        """Return a description of a slice that is not covered by any edit, or None if the edits cover all slices."""
        inside = self._rows_of(edits)
        for number, file in enumerate(self._files):
            rows = set(range(len(file))) - inside.get(number, set())
            if rows:
                row = min(rows)
                return f"the slice at {file.base[row]} of partition {file.partition[row]} in {file.path}"
        return None

    def _rows_of(self, edits: Iterable[Edit]) -> dict[int, set[int]]:
        """Return the rows whose base offset is in an edit, by file index."""
        rows: dict[int, set[int]] = {}
        for edit in edits:
            slices = self._slices.get(edit.partition, [])
            low, high = bisect_left(slices, (edit.start,)), bisect_left(slices, (edit.end,))
            for _, number, row in slices[low:high]:
                rows.setdefault(number, set()).add(row)
        return rows

    def _part_of(self, number: int, rows: Sequence[int]) -> FileSlices:
        """Return a file with only some of its slices. If slices are omitted, the result has explicit positions."""
        file = self._files[number]
        if len(rows) == len(file):
            return file
        columns = {item.attribute: getattr(file, item.attribute) for item in COMMIT_LISTS} | {"position": file.starts}
        parts: dict[str, Any] = {name: tuple(values[row] for row in rows) for name, values in columns.items() if values}
        return replace(file, **parts)


def _inputs_to_remove(rewrite: Rewrite, state: TopicState, table: SliceTable) -> list[Input] | None:
    """Return the inputs above the log start, by file.

    If an input no longer exists, return None, so that the edit is dropped.
    """
    log_start = int(state.log_start[rewrite.edit.partition])
    by_path: dict[str, list[Input]] = {}
    for item in rewrite.inputs:
        if item.end > log_start:
            by_path.setdefault(item.path, []).append(item)
    inputs = [item for items in by_path.values() for item in items]
    rows = table.find(*_removals([(rewrite.edit, inputs)]))
    ends = np.array([item.end for item in inputs], np.int64)
    return None if (rows < 0).any() or (table.all().end[rows] != ends).any() else inputs


def _removals(inputs: Iterable[tuple[Edit, Sequence[Input]]]) -> tuple[RemovedSlices, ...]:
    """Return one removal per file for all edits, because a merge removes slices from thousands of files."""
    by_path: dict[str, list[tuple[int, int, int]]] = {}
    for edit, items in inputs:
        for item in items:
            by_path.setdefault(item.path, []).append((edit.partition, item.base, item.position))
    return tuple(RemovedSlices(path, *zip(*slices, strict=True)) for path, slices in by_path.items())


def _is_committed(outputs: Sequence[FileSlices], table: SliceTable) -> bool:
    """Return True if the table already contains these outputs. In this case, an earlier attempt whose result was
    unknown has succeeded.
    """
    removals = [RemovedSlices(file.path, file.partition, file.base, file.starts) for file in outputs]
    return bool(removals) and bool((table.find(*removals) >= 0).all())


def _check_covered(topic: str, rewrite: Rewrite, outputs: Sequence[FileSlices], table: SliceTable) -> None:
    """Raise `BadRequest` if an output overlaps a slice that the edit does not replace."""
    all_rows = table.all()
    partition = rewrite.edit.partition
    replaced = {(item.path, item.position) for item in rewrite.inputs}
    for file in outputs:
        for base, offsets in zip(file.base, file.offsets, strict=True):
            rows = all_rows.overlapping(partition, base, base + offsets)
            for row in range(rows.start, rows.stop):
                if (all_rows.path(row), int(all_rows.position[row])) not in replaced:
                    raise BadRequest(
                        f"cannot rewrite {topic}-{partition}: offsets {base} to {base + offsets} of {file.path} "
                        f"overlap the slice at {int(all_rows.base[row])}, which the edit does not replace"
                    )
