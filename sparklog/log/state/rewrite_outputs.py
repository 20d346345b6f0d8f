"""Which slices of a rewrite's files belong to which of its edits.

A merge over ten thousand partitions is one file with ten thousand slices and as many edits, and is looked through for
every attempt to commit it: so slices are found by partition and base, not by trying each with each.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from sparklog.log.state.commit import Edit
from sparklog.log.state.slice_table import positions
from sparklog.log.state.slices import FileSlices


_COLUMNS = (
    *("partition", "nbytes", "offsets", "records", "min_ts", "max_ts", "crc", "flags", "base"),
    *("shift", "append_time", "leader_epoch", "index_crc"),
)


class Outputs:
    """The slices of some files (with `base`), to be asked for those that lie in edits."""

    def __init__(self, files: Sequence[FileSlices]) -> None:
        self._files = files
        self._positions = [file.position or positions(file) for file in files]
        places: dict[int, list[tuple[int, int, int]]] = {}
        for number, file in enumerate(files):
            for row, (partition, base) in enumerate(zip(file.partition, file.base, strict=True)):
                places.setdefault(partition, []).append((base, number, row))
        self._places = {partition: sorted(found) for partition, found in places.items()}

    def of(self, edits: Iterable[Edit]) -> tuple[FileSlices, ...]:
        """The files with only the slices whose base lies in one of the edits; files without any are left out."""
        return tuple(self._taken(number, sorted(rows)) for number, rows in sorted(self._chosen(edits).items()))

    def outside(self, edits: Iterable[Edit]) -> str | None:
        """Names a slice whose base lies in none of the edits, None if there is none."""
        chosen = self._chosen(edits)
        for number, file in enumerate(self._files):
            left = set(range(len(file))) - chosen.get(number, set())
            if left:
                row = min(left)
                return f"the slice at {file.base[row]} of partition {file.partition[row]} in {file.path}"
        return None

    def _chosen(self, edits: Iterable[Edit]) -> dict[int, set[int]]:
        """Rows by number of their file."""
        chosen: dict[int, set[int]] = {}
        for edit in edits:
            found = self._places.get(edit.partition, [])
            low, high = bisect_left(found, (edit.start,)), bisect_left(found, (edit.end,))
            for _, number, row in found[low:high]:
                chosen.setdefault(number, set()).add(row)
        return chosen

    def _taken(self, number: int, rows: Sequence[int]) -> FileSlices:
        """Some slices of a file, with explicit positions where others are left out."""
        file = self._files[number]
        if len(rows) == len(file):
            return file
        columns: dict[str, Sequence[int]] = {name: getattr(file, name) for name in _COLUMNS}
        columns["position"] = self._positions[number]
        taken: dict[str, Any] = {name: tuple(values[row] for row in rows) for name, values in columns.items() if values}
        return replace(file, **taken)
