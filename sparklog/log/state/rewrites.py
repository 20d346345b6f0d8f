"""Rewrites: edits of offset ranges that replace slices by others (merging, sealing, compaction), and their commit.

A rewrite, planned on a state that may be old, is valid if every input is still there or is wholly below the log start.
One commit holds the edits of a piece of work, each with the outputs in its range.

A merge over ten thousand partitions is one file with ten thousand slices and as many edits, and is looked through for
every attempt to commit it: so slices are found by partition and base, not by trying each with each.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from sparklog.errors import BadRequest
from sparklog.format.slice_columns import COMMIT_LISTS
from sparklog.log.state.commit import Edit, RemovedSlices
from sparklog.log.state.commit_intents import Draft, Nothing, check_floor, check_topic
from sparklog.log.state.slice_table import SliceTable
from sparklog.log.state.slices import FileSlices
from sparklog.log.state.topic_state import TopicState


@dataclass(frozen=True, slots=True)
class Input:
    """A slice that a rewrite replaces, exactly."""

    path: str
    position: int
    base: int
    end: int


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One partition's edit and its inputs, one whole cleaning pass: all of it is committed, or nothing."""

    edit: Edit
    inputs: tuple[Input, ...]


@dataclass(frozen=True, slots=True)
class RewriteIntent:
    """Merge, seal or compact: replace inputs by the slices of `files` (with `base`) that are in each edit's range."""

    op: str
    topic_id: str
    rewrites: tuple[Rewrite, ...]
    files: tuple[FileSlices, ...]
    needs_table: ClassVar[bool] = True
    repeatable: ClassVar[bool] = True

    def draft(self, topic: str, state: TopicState, origin: TopicState, table: SliceTable | None) -> Draft | Nothing:
        check_topic(topic, state, self.topic_id)
        if table is None:
            raise BadRequest("a rewrite is checked against the slice table")
        named = table.paths()
        check_floor(topic, [file for file in self.files if file.path not in named], state.floor)
        outputs = Outputs(self.files)
        outside = outputs.outside(rewrite.edit for rewrite in self.rewrites)
        if outside is not None:
            raise BadRequest(f"refusing to rewrite '{topic}': {outside} is in no edit, so its records would be lost")
        inputs: list[tuple[Edit, list[Input]]] = []
        dropped: list[Edit] = []
        for rewrite in self.rewrites:
            left = _inputs_left(rewrite, state, table)
            files = outputs.of([rewrite.edit])
            if left is None:
                if not _landed(files, table):
                    dropped.append(rewrite.edit)
            elif left or not rewrite.inputs:
                _check_covered(topic, rewrite, files, table)
                inputs.append((rewrite.edit, left))
        if not inputs:
            return Nothing("no edit stands any more", state.version, dropped=tuple(dropped))
        edits = tuple(edit for edit, _ in inputs)
        return Draft(self.op, files=outputs.of(edits), remove=_removals(inputs), edits=edits, dropped=tuple(dropped))


class Outputs:
    """The slices of some files (with `base`), to be found by edits."""

    def __init__(self, files: Sequence[FileSlices]) -> None:
        self._files = files
        places: dict[int, list[tuple[int, int, int]]] = {}
        for number, file in enumerate(files):
            for row, (partition, base) in enumerate(zip(file.partition, file.base, strict=True)):
                places.setdefault(partition, []).append((base, number, row))
        self._places = {partition: sorted(rows) for partition, rows in places.items()}

    def of(self, edits: Iterable[Edit]) -> tuple[FileSlices, ...]:
        """Return the files with only the slices whose base is in one of the edits; leave out files without any."""
        return tuple(self._part_of(number, sorted(rows)) for number, rows in sorted(self._rows_of(edits).items()))

    def outside(self, edits: Iterable[Edit]) -> str | None:
        """Return the name of a slice whose base is in none of the edits, None if there is none."""
        inside = self._rows_of(edits)
        for number, file in enumerate(self._files):
            left = set(range(len(file))) - inside.get(number, set())
            if left:
                row = min(left)
                return f"the slice at {file.base[row]} of partition {file.partition[row]} in {file.path}"
        return None

    def _rows_of(self, edits: Iterable[Edit]) -> dict[int, set[int]]:
        """Return rows by number of their file."""
        rows: dict[int, set[int]] = {}
        for edit in edits:
            places = self._places.get(edit.partition, [])
            low, high = bisect_left(places, (edit.start,)), bisect_left(places, (edit.end,))
            for _, number, row in places[low:high]:
                rows.setdefault(number, set()).add(row)
        return rows

    def _part_of(self, number: int, rows: Sequence[int]) -> FileSlices:
        """Return some slices of a file, with explicit positions where others are left out."""
        file = self._files[number]
        if len(rows) == len(file):
            return file
        columns = {item.attribute: getattr(file, item.attribute) for item in COMMIT_LISTS} | {"position": file.starts}
        parts: dict[str, Any] = {name: tuple(values[row] for row in rows) for name, values in columns.items() if values}
        return replace(file, **parts)


def _inputs_left(rewrite: Rewrite, state: TopicState, table: SliceTable) -> list[Input] | None:
    """Return the inputs still to remove, by file; None if one is gone, so that the edit must be dropped."""
    log_start = int(state.log_start[rewrite.edit.partition])
    by_path: dict[str, list[Input]] = {}
    for item in rewrite.inputs:
        if item.end > log_start:
            by_path.setdefault(item.path, []).append(item)
    left = [item for items in by_path.values() for item in items]
    rows = table.find(*_removals([(rewrite.edit, left)]))
    ends = np.array([item.end for item in left], np.int64)
    return None if (rows < 0).any() or (table.all().end[rows] != ends).any() else left


def _removals(inputs: Iterable[tuple[Edit, Sequence[Input]]]) -> tuple[RemovedSlices, ...]:
    """Return one removal per file, whichever edits its slices belong to: a merge names thousands of files."""
    by_path: dict[str, list[tuple[int, int, int]]] = {}
    for edit, items in inputs:
        for item in items:
            by_path.setdefault(item.path, []).append((edit.partition, item.base, item.position))
    return tuple(RemovedSlices(path, *zip(*slices, strict=True)) for path, slices in by_path.items())


def _landed(outputs: Sequence[FileSlices], table: SliceTable) -> bool:
    """True if these very outputs are in the log: an attempt whose answer was lost in a stall had succeeded."""
    named = [RemovedSlices(file.path, file.partition, file.base, file.starts) for file in outputs]
    return bool(named) and bool((table.find(*named) >= 0).all())


def _check_covered(topic: str, rewrite: Rewrite, outputs: Sequence[FileSlices], table: SliceTable) -> None:
    """Raise `BadRequest` if an output is over a slice that the edit does not replace: offsets would come twice."""
    whole = table.all()
    partition = rewrite.edit.partition
    replaced = {(item.path, item.position) for item in rewrite.inputs}
    for file in outputs:
        for base, offsets in zip(file.base, file.offsets, strict=True):
            rows = whole.overlapping(partition, base, base + offsets)
            for row in range(rows.start, rows.stop):
                if (whole.path(row), int(whole.position[row])) not in replaced:
                    raise BadRequest(
                        f"refusing to rewrite {topic}-{partition}: {file.path} would hold offsets {base} to "
                        f"{base + offsets}, over the slice at {int(whole.base[row])} that the edit does not replace"
                    )
