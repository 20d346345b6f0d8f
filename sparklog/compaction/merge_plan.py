"""Plans which append files to merge into which files, from the slice table of a snapshot alone.

A topic with one commit per second gets thousands of slices per hour in each partition. Merging reads entire append
files and writes files of the same format with **one slice per partition and contiguous offset range**, in generations:

* One maintenance run writes a **generation** of tier t + 1 from all files of tier t. (The tier is stored in the flags
  of the slices. Appended files have tier 0.) Every run merges all files of tier 0, so an append file is replaced by the
  next run. If the run creates the eighth generation of tier 1, it also merges these generations into one generation of
  tier 2, and so on. Each byte is rewritten once per tier, and each tier has at most seven generations.
* An output slice of at least `own_file_bytes` gets its own file, so that the file can be deleted when the slice is
  sealed. All smaller output slices of a work item share a file.
* A slice with its own file and at least `max(own_file_bytes, segment.bytes / 8)` bytes is not merged, but left to
  sealing. Smaller slices continue to be merged even if they have their own files. Otherwise, with 8 MiB per slice, 128
  slices would accumulate before they fill a segment of 1 GiB. With this rule, a partition has about 32 unsealed slices
  at any write rate.

Generations belong to the topic instead of a single partition. Therefore, the adjacent slices of a generation are merged
in the same run.

The following files are not merged: files with a slice that is open, or at or above the last stable offset (the next run
merges them), sealed segments, and appended files for which a merge would neither reduce the number of slices nor drop
an aborted slice. Aborted slices are dropped, which leaves a gap in the offsets. No output is larger than
`segment.bytes`.

A commit with inline records cannot be deleted while one of its slices is in use. Therefore, a run first merges all such
slices, even if this does not reduce the number of slices. After the run, at most one commit is retained for its
records, plus the commits with a slice that is open or above the last stable offset.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparklog.compaction.merge_work import MergeWork
from sparklog.format.slice_columns import PLANNED
from sparklog.limits import Limits
from sparklog.log.decisions.decision_log import own_consistent_ends
from sparklog.log.journal.clocks import SYSTEM, Env
from sparklog.log.journal.names import is_commit
from sparklog.log.read.planned_slices import PlannedSlices
from sparklog.log.state.slice_table import ABORTED, OPEN, Slices, Snapshot
from sparklog.log.state.slices import MERGE_TIER_MASK, MERGE_TIER_SHIFT
from sparklog.log.state.topic_state import TopicState
from sparklog.maintenance.work_items import Settings
from sparklog.storage.store import Store

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

FAN_IN = 8
"""The number of generations of a tier that are merged into one generation of the next tier."""
MAX_TIER = MERGE_TIER_MASK >> MERGE_TIER_SHIFT


def plan_merges(store: Store, snapshot: Snapshot, settings: Settings, *, env: Env = SYSTEM) -> list[MergeWork]:
    """Plan the merges that are due. Merges of inline records come first, and then larger merges before smaller merges.

    Each work item covers complete offset ranges of some partitions. The slices of a file may be in several work items
    of the plan. When the last of these work items is committed, the file is unreferenced. `env` provides ids for file
    names.
    """
    slices = snapshot.slices.all()
    configs = settings.configs_of(snapshot.topic, snapshot.state.configs)
    segment_bytes = configs.segment_bytes
    files = _files(slices, snapshot.state, max(store.limits.own_file_bytes, segment_bytes // FAN_IN))
    works: list[MergeWork] = []
    for selected, tier in _groups(files):
        rows = np.flatnonzero(selected[files.of_row])
        starts = _run_starts(slices, rows, segment_bytes)
        if (files.tier[selected] == 0).all() and not _is_worthwhile(slices, rows, starts, files, selected):
            continue
        for low, high in _packed(slices, rows, starts, store.limits):
            sources = _sources(snapshot.topic, slices, files, rows, starts[low : high + 1])
            works.append(
                MergeWork(store, snapshot.topic, snapshot.state.topic_id, snapshot.version, tier, sources, env)
            )
    return sorted(works, key=lambda work: (not work.of_commits, -work.nbytes))


@dataclass(frozen=True, slots=True)
class _MergeableFiles:
    """The files of a table. Each array has one element per file, and `of_row` contains the file of each row."""

    path: tuple[str, ...]
    of_row: Int64s
    free: Bools
    """True for each file that may be merged. No slice of the file is sealed, open or above the last stable offset, and
    the file is not large.
    """
    tier: Int64s
    generation: Int64s
    """The version that the writer of the file had read, because one maintenance run writes one generation."""
    dead: Bools
    """True for each file in which some bytes no longer belong to a slice. Always False for commits."""
    commits: Bools
    """True for each file that is a commit with inline records."""


def _files(slices: Slices, state: TopicState, large_bytes: int) -> _MergeableFiles:
    codes, of_row = np.unique(slices.file, return_inverse=True)
    path = slices.paths.at(codes)
    if len(set(path)) < len(path):
        # A file that a later commit lists again has a second code, in addition to the code from the checkpoint.
        first = {name: i for i, name in reversed(list(enumerate(path)))}
        of_row = np.array([first[name] for name in path], np.int64)[of_row]
    n = len(path)
    count = np.bincount(of_row, minlength=n)
    # Slices that are hidden by an open transaction retain the id of their own transaction until they become visible.
    stable = own_consistent_ends(state, slices)
    stuck = slices.sealed() | (slices.status == OPEN) | (slices.end > stable[slices.partition])
    nbytes = np.bincount(of_row, weights=slices.size, minlength=n)
    dropped = np.bincount(of_row, weights=slices.status == ABORTED, minlength=n) > 0
    is_large = (count == 1) & (nbytes >= large_bytes) & ~dropped
    tier = np.zeros(n, np.int64)
    np.maximum.at(tier, of_row, (slices.flags & MERGE_TIER_MASK) >> MERGE_TIER_SHIFT)
    generation, stored = np.zeros(n, np.int64), np.zeros(n, np.int64)
    generation[of_row] = slices.read_version
    stored[of_row] = slices.file_size - slices.footer_length
    commits = np.array([is_commit(name) for name in path], np.bool_)
    return _MergeableFiles(
        path=tuple(path),
        of_row=of_row.astype(np.int64),
        free=(np.bincount(of_row, weights=stuck, minlength=n) == 0) & ~is_large,
        tier=tier,
        generation=generation,
        dead=(nbytes < stored) & ~commits,
        commits=commits,
    )


def _groups(files: _MergeableFiles) -> Iterator[tuple[Bools, int]]:
    """Yield masks of files to merge together, with the tier of the output."""
    selected = files.free & (files.tier == 0)
    for tier in range(1, MAX_TIER + 1):
        here = files.free & (files.tier == tier)
        generations = len(np.unique(files.generation[here])) + int(selected.any())
        if generations >= FAN_IN:
            selected = selected | here
        elif selected.any():
            yield selected, tier
            selected = np.zeros_like(selected)
    if selected.any():
        yield selected, MAX_TIER


def _run_starts(slices: Slices, rows: Int64s, segment_bytes: int) -> Int64s:
    """Return the start of each output in `rows`, and `len(rows)`. Outputs are adjacent rows that are cut at
    `segment_bytes`.
    """
    if not len(rows):
        return np.zeros(1, np.int64)
    partition = slices.partition[rows]
    begins = np.concatenate(([True], (np.diff(rows) > 1) | (partition[1:] != partition[:-1])))
    starts = np.append(np.flatnonzero(begins), len(rows))
    nbytes = np.where(slices.status[rows] == ABORTED, 0, slices.size[rows])
    before = np.concatenate(([0], np.cumsum(nbytes)))
    cuts = []
    for i in np.flatnonzero(np.diff(before[starts]) > segment_bytes).tolist():
        low, high = int(starts[i]), int(starts[i + 1])
        while before[high] - before[low] > segment_bytes:
            # Cut at the last row at which the bytes before the cut still fit. A slice that is too large is an output by
            # itself.
            fits = int(np.searchsorted(before, before[low] + segment_bytes, side="right")) - 1
            low = min(max(fits, low + 1), high)
            if low < high:
                cuts.append(low)
    return np.sort(np.concatenate((starts, np.array(cuts, np.int64))))


def _is_worthwhile(slices: Slices, rows: Int64s, starts: Int64s, files: _MergeableFiles, mask: Bools) -> bool:
    """Return True if a merge reduces the number of slices or commits with records, drops aborted slices, or frees
    bytes.
    """
    saves = len(starts) - 1 < len(rows) or int(files.commits[mask].sum()) > 1
    return saves or bool((slices.status[rows] == ABORTED).any()) or bool(files.dead[mask].any())


def _packed(slices: Slices, rows: Int64s, starts: Int64s, limits: Limits) -> Iterator[tuple[int, int]]:
    """Yield the outputs `[low, high)` of each work item. The outputs are adjacent, so that adjacent slices are read
    together.
    """
    nbytes = np.add.reduceat(slices.size[rows], starts[:-1]).tolist() if len(rows) else []
    counts = np.diff(starts).tolist()
    low = filled = slices_filled = 0
    for i, (size, count) in enumerate(zip(nbytes, counts, strict=True)):
        if i > low and (filled + size > limits.merge_bytes or slices_filled + count > limits.merge_slices):
            yield low, i
            low, filled, slices_filled = i, 0, 0
        filled, slices_filled = filled + size, slices_filled + count
    if nbytes:
        yield low, len(nbytes)


def _sources(
    topic: str, slices: Slices, files: _MergeableFiles, rows: Int64s, starts: Int64s
) -> tuple[PlannedSlices, ...]:
    """Return the inputs of each output. The outputs of a work item share a tuple of paths, which is pickled once."""
    inputs = rows[starts[0] : starts[-1]]
    used, path = np.unique(files.of_row[inputs], return_inverse=True)
    paths = tuple(files.path[i] for i in used.tolist())
    columns = {"file": path.astype(np.int32), **{name: slices.columns[name][inputs] for name in PLANNED}}
    cuts = (starts - starts[0]).tolist()
    partitions = slices.partition[rows[starts[:-1]]].tolist()
    return tuple(
        PlannedSlices(topic, partition, paths, {name: column[low:high] for name, column in columns.items()})
        for low, high, partition in zip(cuts[:-1], cuts[1:], partitions, strict=True)
    )
