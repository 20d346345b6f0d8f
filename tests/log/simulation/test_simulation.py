"""Random interleavings of the commit protocol under faults, judged by an independent model.

A failing seed prints the command that replays it. `SPARKLOG_SEEDS=20000 python -m pytest -m slow tests/log/simulation`
sweeps more.
"""

from __future__ import annotations

import re

import pytest

from sparklog.log.journal import numbered_objects
from tests.log.simulation.seeds import LOG
from tests.support.seeds import LOG as LOG_SEEDS
from tests.support.seeds import LOG_IN_A_BUCKET, LOG_INLINE, LOG_LATE, LOG_LOST, Seeds
from tests.support.simulation.faults import LATE, LOST
from tests.support.simulation.sweeps import Sweep, sweeps

INLINE_BYTES = 350
"""Two made-up slices and less go into the commit, if their tasks have not written them."""
WHAT_HAPPENS = ("acked", "batches", "replays skipped", "fenced", "snapshots", "checkpoints", "collected", "delete")


@sweeps(
    Sweep("disk", LOG_SEEDS, at_least=dict.fromkeys(WHAT_HAPPENS, 1), per_seed={"commits": 5}),
    Sweep("bucket", LOG_IN_A_BUCKET, settings=lambda seed: {"bucket": True}, per_seed={"commits": 5}),
    Sweep(
        "records in commits",
        LOG_INLINE,
        settings=lambda seed: {"inline": INLINE_BYTES, "bucket": seed % 4 == 0},
        per_seed={"in commits": 1},
        at_least={"by the driver": 1},
    ),
    # Each acknowledged write is in the log, and no snapshot differs from what the log was at its version.
    Sweep(
        "lost objects",
        LOG_LOST,
        LOST,
        settings=lambda seed: {"bucket": seed % 4 == 0, "inline": INLINE_BYTES if seed % 2 else 0},
        per_seed={"lost": 0.25, "acked": 0.25, "snapshots": 0.25, "reported as corrupt": 0.1},
    ),
    # A writer finds the entry that it drafted before a stall under the number of the one that it drafted afterwards.
    Sweep("late creates", LOG_LATE, LATE, per_seed={"acked": 1}),
    *(
        Sweep(
            f"{profile} {inline}", Seeds(3, 8, 3, 8), profile, settings=lambda seed, inline=inline: {"inline": inline}
        )
        for profile in ("answers", "calm", "collector")
        for inline in (0, 700)
    ),
)
def test_commits_follow_the_protocol_in_each_run(sweep: Sweep, seeds: range) -> None:
    assert LOG.sweep(sweep, seeds)


def test_one_seed() -> None:
    assert LOG.run_one() > 0


def test_delete_records_after_the_topic_was_deleted() -> None:
    """A seed that failed once: the response to delete-records arrived after a stall, when the topic was deleted."""
    assert LOG.run(21844).counters


def test_a_failing_seed_prints_its_replay_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbered_objects, "peek_commit_id", lambda data: 1 // 0)
    with pytest.raises(AssertionError) as caught:  # noqa: PT012
        for seed in range(20):
            LOG.run(seed)
    assert re.search(r"seed (\d+): ZeroDivisionError.*\nreplay: SPARKLOG_SEED=\1 python -m pytest ", str(caught.value))


@pytest.mark.parametrize("seed", [3, 11, 42])
def test_a_seed_is_one_run(seed: int) -> None:
    LOG.assert_repeats(seed, bucket=seed == 3)
