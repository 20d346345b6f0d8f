"""Plan which append files to merge, and into what: from a snapshot's slice table alone.

A topic with a commit a second has thousands of slices an hour in each partition. Merging takes whole append files and
writes files of the same form with **one slice per partition and contiguous run**, in generations:

* What one run of maintenance writes is a **generation** of tier t + 1, made of everything of tier t (in the slices'
  flags; tier 0 is as it was appended). All of tier 0 is merged in every run, so an append file lives one run. Where
  that makes the eighth generation of tier 1, these are merged in the same go into one of tier 2, and so on: each byte
  is rewritten once per tier, and there are at most seven generations of each.
* An output slice of `own_file_bytes` or more gets a file of its own, so that it dies alone when it is sealed; all
  smaller ones of a piece of work share a file.
* A slice that has a file of its own and `max(own_file_bytes, segment.bytes / 8)` bytes is left to sealing. Smaller
  ones go on being merged although they have files of their own: at 8 MiB a slice, 128 would be side by side before
  they fill a segment of 1 GiB, so only merging on keeps a partition at about 32 unsealed slices at every rate.

Generations are those of the topic, not of one partition: neighbouring slices of one are merged in the same run.

Left alone are files with a slice that is open or at or above the last stable offset (the next run takes them), sealed
segments, and appended files whose merging would neither save a slice nor drop an aborted one. Aborted slices are
dropped, which leaves a gap in the offsets. No output is larger than `segment.bytes`.

A commit that has records in it is kept for as long as one of its slices is there. So a run takes all such slices, also
where no slice is saved, and does that work first: it leaves at most one that is kept for its records, besides those
with a slice that is open or above the last stable offset.
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
"""Generations of a tier that become one of the next."""
MAX_TIER = MERGE_TIER_MASK >> MERGE_TIER_SHIFT


def plan_merges(store: Store, snapshot: Snapshot, settings: Settings, *, env: Env = SYSTEM) -> list[MergeWork]:
    """The merges that are due, those of records in commits first, then larger ones; none if there is nothing to gain.

    `env`: names of files come from it. Each work covers whole runs of some partitions. A file's slices may be spread
    over several works of the plan: it is unnamed when the last of them is committed.
    """
    slices = snapshot.slices.all()
    configs = settings.configs_of(snapshot.topic, snapshot.state.configs)
    segment_bytes = configs.segment_bytes
    files = _files(slices, snapshot.state, max(store.limits.own_file_bytes, segment_bytes // FAN_IN))
    works: list[MergeWork] = []
    for chosen, tier in _groups(files):
        rows = np.flatnonzero(chosen[files.of_row])
        starts = _run_starts(slices, rows, segment_bytes)
        if (files.tier[chosen] == 0).all() and not _worth(slices, rows, starts, files, chosen):
            continue
        for low, high in _packed(slices, rows, starts, store.limits):
            sources = _sources(snapshot.topic, slices, files, rows, starts[low : high + 1])
            works.append(
                MergeWork(store, snapshot.topic, snapshot.state.topic_id, snapshot.version, tier, sources, env)
            )
    return sorted(works, key=lambda work: (not work.of_commits, -work.nbytes))


@dataclass(frozen=True, slots=True)
class _MergeableFiles:
    """The files of a table, one entry of each array per file; `of_row` gives each row's file."""

    path: tuple[str, ...]
    of_row: Int64s
    free: Bools
    """May be merged: no slice of it is sealed, open or above the last stable offset, and it has not grown up."""
    tier: Int64s
    generation: Int64s
    """The version that its writer had read: one run of maintenance writes one generation."""
    dead: Bools
    """Some of its bytes are no slice's any more; False for commits, whose documents never were."""
    commits: Bools
    """Is a commit with records in it."""


def _files(slices: Slices, state: TopicState, grown_bytes: int) -> _MergeableFiles:
    codes, of_row = np.unique(slices.file, return_inverse=True)
    path = slices.paths.take(codes)
    if len(set(path)) < len(path):
        # A file that a commit named again has a second code besides the one from the checkpoint.
        first = {name: i for i, name in reversed(list(enumerate(path)))}
        of_row = np.array([first[name] for name in path], np.int64)[of_row]
    n = len(path)
    count = np.bincount(of_row, minlength=n)
    # Slices that an open transaction elsewhere hides keep the mark of their transaction until they become visible.
    stable = own_consistent_ends(state, slices)
    stuck = slices.sealed() | (slices.status == OPEN) | (slices.end > stable[slices.partition])
    nbytes = np.bincount(of_row, weights=slices.size, minlength=n)
    dropped = np.bincount(of_row, weights=slices.status == ABORTED, minlength=n) > 0
    grown = (count == 1) & (nbytes >= grown_bytes) & ~dropped
    tier = np.zeros(n, np.int64)
    np.maximum.at(tier, of_row, (slices.flags & MERGE_TIER_MASK) >> MERGE_TIER_SHIFT)
    generation, held = np.zeros(n, np.int64), np.zeros(n, np.int64)
    generation[of_row] = slices.read_version
    held[of_row] = slices.file_size - slices.footer_length
    commits = np.array([is_commit(name) for name in path], np.bool_)
    return _MergeableFiles(
        path=tuple(path),
        of_row=of_row.astype(np.int64),
        free=(np.bincount(of_row, weights=stuck, minlength=n) == 0) & ~grown,
        tier=tier,
        generation=generation,
        dead=(nbytes < held) & ~commits,
        commits=commits,
    )


def _groups(files: _MergeableFiles) -> Iterator[tuple[Bools, int]]:
    """Sets of files (a mask over all files) to merge together, with the tier of what comes out."""
    carried = files.free & (files.tier == 0)
    for tier in range(1, MAX_TIER + 1):
        here = files.free & (files.tier == tier)
        generations = len(np.unique(files.generation[here])) + int(carried.any())
        if generations >= FAN_IN:
            carried = carried | here
        elif carried.any():
            yield carried, tier
            carried = np.zeros_like(carried)
    if carried.any():
        yield carried, MAX_TIER


def _run_starts(slices: Slices, rows: Int64s, segment_bytes: int) -> Int64s:
    """Return the first index in `rows` of each output, and `len(rows)`: runs of neighbours, cut at `segment_bytes`."""
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
            # The last cut at which what is before it still fits, past what holds no bytes; a large slice is alone.
            fits = int(np.searchsorted(before, before[low] + segment_bytes, side="right")) - 1
            low = min(max(fits, low + 1), high)
            if low < high:
                cuts.append(low)
    return np.sort(np.concatenate((starts, np.array(cuts, np.int64))))


def _worth(slices: Slices, rows: Int64s, starts: Int64s, files: _MergeableFiles, mask: Bools) -> bool:
    """True if merging gains anything: fewer slices or kept commits, aborted slices dropped, or bytes freed."""
    saves = len(starts) - 1 < len(rows) or int(files.commits[mask].sum()) > 1
    return saves or bool((slices.status[rows] == ABORTED).any()) or bool(files.dead[mask].any())


def _packed(slices: Slices, rows: Int64s, starts: Int64s, limits: Limits) -> Iterator[tuple[int, int]]:
    """Yield the outputs `[low, high)` of each work: neighbours, so that what is together is read together."""
    nbytes = np.add.reduceat(slices.size[rows], starts[:-1]).tolist() if len(rows) else []
    counts = np.diff(starts).tolist()
    low = filled = taken = 0
    for i, (size, count) in enumerate(zip(nbytes, counts, strict=True)):
        if i > low and (filled + size > limits.merge_bytes or taken + count > limits.merge_slices):
            yield low, i
            low, filled, taken = i, 0, 0
        filled, taken = filled + size, taken + count
    if nbytes:
        yield low, len(nbytes)


def _sources(
    topic: str, slices: Slices, files: _MergeableFiles, rows: Int64s, starts: Int64s
) -> tuple[PlannedSlices, ...]:
    """Return the inputs of each output; all of a work share one tuple of paths, which is pickled once."""
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
