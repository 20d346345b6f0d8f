"""Break each rule of transactions. At least one seed of the simulation must fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sparklog.datasource import stream_topics
from sparklog.datasource.stream_topics import StreamTopics
from sparklog.errors import SparklogError
from sparklog.groups import group_steps
from sparklog.groups.group import Group
from sparklog.groups.group_state import GroupState
from sparklog.log.decisions import decision, decision_log
from sparklog.log.decisions.decision import Decisions
from sparklog.log.decisions.decision_log import DecisionLog
from sparklog.log.state.commit import TxnDecision
from sparklog.log.state.writer_runs import BatchDecision
from sparklog.log.topic import root as root_view
from sparklog.storage.retries import SETTLE_MS, Backoff
from sparklog.transactions import completion, producer, publishing
from tests.datasource import test_stream_plan
from tests.support.simulation.sweeps import BrokenRule, Patch, broken_rules
from tests.transactions import test_reading
from tests.transactions.simulation.seeds import TRANSACTIONS

pytestmark = pytest.mark.sweep


def late_slices_join(patch: Patch) -> None:
    """A COMMIT commits all open slices with its number, including slices that it does not reference."""
    real = Decisions.resolved

    def everything(self: Decisions, topic: str, topic_id: str, n: int) -> TxnDecision:
        found = real(self, topic, topic_id, n)
        return found if self.commit_of(n) is None else replace(found, committed=tuple(range(1000)))

    patch.setattr(Decisions, "resolved", everything)


def last_decision_wins(patch: Patch) -> None:
    """A decision does not check if the transaction is already decided."""
    patch.setattr(decision, "check_undecided", lambda state, n, run=None: None)


def commits_are_forgotten_at_once(patch: Patch) -> None:
    """A COMMIT is pruned before the topics that it references have recorded it."""
    patch.setattr(producer, "recorded_everywhere", lambda root, state: {item.n for item in state.commits})


def forgotten_is_aborted(patch: Patch) -> None:
    """Transactions that are not in the latest decisions count as aborted, even in an older snapshot."""
    patch.setattr(DecisionLog, "outcome", lambda self, n: self.current())


def nobody_waits_for_what_is_hidden(patch: Patch) -> None:
    """A reader of several topics does not wait if a topic is older than another topic requires."""

    class Impatient(Backoff):
        def wait(self) -> bool:
            self.tries += 1
            return self.tries <= 50

    patch.setattr(decision_log.DecisionLogs, "backoff", lambda self: Impatient(self._root.env))


def streams_do_not_wait(patch: Patch) -> None:
    """A stream uses the visible end of the log as the actual end."""
    patch.setattr(stream_topics, "wait_until_reached", lambda *what: [])


def streams_wait_for_the_log_end_alone(patch: Patch) -> None:
    """A batch is planned again although a transaction that was decided in its plan seems to be open."""
    real = StreamTopics.wait_until_visible
    patch.setattr(
        StreamTopics,
        "wait_until_visible",
        lambda self, known, names, end_of=None: [] if end_of else real(self, known, names),
    )


def what_is_hidden_is_lost(patch: Patch) -> None:
    """If a log still ends before the offsets of a checkpoint, the missing records count as lost."""
    patch.setattr(StreamTopics, "wait_for_checkpoint", StreamTopics.wait_until_visible)


def hidden_entries_are_gone(patch: Patch) -> None:
    """A transaction that is unclear for longer than most caches last counts as aborted."""
    patch.setattr(decision_log, "KEEP_MS", SETTLE_MS)


def snapshots_do_not_agree(patch: Patch) -> None:
    """Each topic is returned as it was read."""
    real = root_view.consistent_snapshots

    def alone(logs: Any, raw: Any, take: Any) -> Any:
        found: dict[str, Any] = {}
        for name in list(raw):
            found.update(real(logs, {name: raw[name]}, take)[0])
        return found, set()

    patch.setattr(root_view, "consistent_snapshots", alone)


def every_partition_to_its_own_end(patch: Patch) -> None:
    """Readers read each partition up to its last stable offset."""
    ends: Callable[[Any], Any] = lambda shown: {name: each.state.last_stable() for name, each in shown.items()}  # noqa: E731
    patch.setattr(root_view, "consistent_ends", ends)


def nothing_times_out(patch: Patch) -> None:
    """An open transaction never times out."""
    patch.setattr(decision_log.DecisionLogs, "overdue", lambda self, topic, prepares: False)


def silence_is_abort(patch: Patch) -> None:
    """Undecided transactions count as aborted."""
    patch.setattr(Decisions, "is_decided", lambda self, n: True)


def recorded_prepares_are_left_out(patch: Patch) -> None:
    """A COMMIT references only the prepares of its own job."""
    real = decision.commit
    patch.setattr(producer, "commit", lambda base, n, own, **how: real(replace(base, prepared=()), n, own, **how))


def replays_are_written(patch: Patch) -> None:
    """The replay check is skipped."""
    for module in (decision, publishing):
        patch.setattr(module, "decide", lambda *given: BatchDecision(write=True))


def prepares_after_the_decision(patch: Patch) -> None:
    """A COMMIT is retried with other prepares than in its first attempt."""
    patch.setattr(Decisions, "commit_of", lambda self, n: None)


def groups_do_not_fence(patch: Patch) -> None:
    """A member of an older generation can send offsets."""
    patch.setattr(group_steps, "check_member", lambda state, member, offsets=(): None)
    patch.setattr(Group, "_outcomes", without_generations(Group._outcomes))


def without_generations(real: Callable[..., Any]) -> Callable[..., Any]:
    """Pending offsets look as if no member had sent them."""

    def outcomes(self: Group, found: GroupState, **how: Any) -> Any:
        return real(
            self, replace(found, pending=tuple(replace(each, generation=None) for each in found.pending)), **how
        )

    return outcomes


def members_do_not_wait_for_what_is_pending(patch: Patch) -> None:
    """A new member starts at the committed offsets although a transaction may commit more, and aborts none."""
    patch.setattr(Group, "stable", lambda self, timeout_ms=0: self.state())
    patch.setattr(Group, "_outcomes", without_generations(Group._outcomes))


def commits_do_not_wait_for_groups(patch: Patch) -> None:
    """A COMMIT, and the entry that decided it, are deleted before the groups that it references have recorded it."""
    patch.setattr(completion, "_group_recorded", lambda root, prepare, ask: True)
    patch.setattr(DecisionLog, "_search", lambda self, n: (None, self.current().number))


def groups_keep_nothing_pending(patch: Patch) -> None:
    """Offsets count as committed as soon as they are prepared."""
    real = group_steps.prepare

    def at_once(found: GroupState, member: Any, name: str, n: int, timeout_ms: int, offsets: Any) -> GroupState:
        after = real(found, member, name, n, timeout_ms, offsets)
        return replace(after, offsets=group_steps.merged(after.offsets, offsets))

    patch.setattr(group_steps, "prepare", at_once)


@broken_rules(
    BrokenRule(late_slices_join, "everything", range(60), 9),
    BrokenRule(last_decision_wins, "calm", range(200)),
    BrokenRule(commits_are_forgotten_at_once, "calm", range(40)),
    BrokenRule(forgotten_is_aborted, "calm", range(60, 66), 64),
    BrokenRule(forgotten_is_aborted, "names", range(60, 100), 63),
    BrokenRule(forgotten_is_aborted, "folders", range(16, 100), slow=True),
    BrokenRule(nobody_waits_for_what_is_hidden, "names", range(6, 50)),
    BrokenRule(nobody_waits_for_what_is_hidden, "folders", range(4, 50)),
    BrokenRule(streams_do_not_wait, "folders", range(17, 60)),
    BrokenRule(streams_wait_for_the_log_end_alone, "folders", range(300), slow=True),
    BrokenRule(what_is_hidden_is_lost, "hidden", range(50)),
    BrokenRule(snapshots_do_not_agree, "calm", range(100)),
    BrokenRule(every_partition_to_its_own_end, "zombies", range(18, 200), 56),
    BrokenRule(nothing_times_out, "crashes", range(40)),
    BrokenRule(silence_is_abort, "calm", range(40)),
    BrokenRule(recorded_prepares_are_left_out, "calm", range(60)),
    BrokenRule(replays_are_written, "crashes", range(100)),
    BrokenRule(prepares_after_the_decision, "calm", range(40)),
    BrokenRule(groups_do_not_fence, "calm", range(13, 100)),
    BrokenRule(members_do_not_wait_for_what_is_pending, "zombies", range(96, 300), slow=True),
    BrokenRule(commits_do_not_wait_for_groups, "everything", range(370, 400), 384),
    BrokenRule(groups_keep_nothing_pending, "calm", range(60)),
)
def test_a_seed_fails_without_the_rule(rule: BrokenRule, monkeypatch: Patch) -> None:
    TRANSACTIONS.assert_fails(rule, monkeypatch)


@pytest.mark.parametrize(
    ("broken", "scenario"),
    [
        (hidden_entries_are_gone, test_reading.test_a_prepare_that_a_cache_hides_for_minutes_is_not_aborted),
        (streams_do_not_wait, test_stream_plan.test_a_commit_that_a_cache_of_names_hides_is_waited_for),
    ],
)
def test_the_scenario_detects_a_broken_rule(
    broken: Callable[[Patch], None], scenario: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rules that matter so rarely that no seed of a short run needs them."""
    scenario()
    broken(monkeypatch)
    with pytest.raises((AssertionError, SparklogError)):
        scenario()
