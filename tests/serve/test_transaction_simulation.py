"""Random interleavings of Kafka clients with transactions, over several servers, under faults.

A failing seed prints the command that replays it. `SPARKLOG_SEEDS=20000 python -m pytest -m slow
tests/serve/test_transaction_simulation.py` sweeps more.
"""

from __future__ import annotations

import pytest

from sparklog.log.decisions import decision, decision_log
from sparklog.log.decisions.decision import Decisions, Prepared
from sparklog.log.state.topic_state import TopicState
from sparklog.serve import transactions
from sparklog.serve.transactions import ClientInstance, ClientTransaction, ProducerEpoch, TransactionCoordinator
from tests.serve.transaction_clients import KAFKA_CLIENTS
from tests.support.seeds import Seeds
from tests.support.simulation.sweeps import BrokenRule, Patch, Sweep, broken_rules, sweeps

WHAT_HAPPENS = (
    "client committed", "client aborted", "client recovered", "group looks", "late batch rejected"
)  # fmt: skip


@sweeps(
    Sweep("disk", Seeds(20, 4_000, 20, 500), at_least=dict.fromkeys(WHAT_HAPPENS, 4)),
    Sweep(
        "bucket",
        Seeds(10, 1_000, 10, 250),
        settings=lambda seed: {"bucket": True},
        at_least=dict.fromkeys(WHAT_HAPPENS, 2),
    ),
    Sweep("names", Seeds(6, 600, 6, 200), "names"),
    Sweep("folders", Seeds(6, 600, 6, 200), "folders"),
    Sweep("zombies", Seeds(6, 600, 6, 200), "zombies"),
)
def test_readers_see_all_of_a_transaction_of_a_kafka_client_or_none(sweep: Sweep, seeds: range) -> None:
    assert KAFKA_CLIENTS.sweep(sweep, seeds)


def test_one_seed() -> None:
    assert KAFKA_CLIENTS.run_one() > 0


def requests_trust_the_cached_state(patch: Patch) -> None:
    """A request belongs to the transaction after the latest decision that its server knows."""
    patch.setattr(TransactionCoordinator, "latest", lambda self, name: self.log(name).current())


def topics_are_not_added(patch: Patch) -> None:
    """The server that gets EndTxn finds only what it has seen itself."""
    patch.setattr(ClientTransaction, "add_topic", lambda self, txn, log: None)


def only_added_versions_are_committed(patch: Patch) -> None:
    """The COMMIT names the first prepare of each topic, which the journal has."""
    patch.setattr(TransactionCoordinator, "_prepares", lambda self, state, n: [])


def aborts_of_others_are_not_noticed(patch: Patch) -> None:
    """After a timeout a producer goes on, as if its transaction were still open."""
    patch.setattr(transactions, "ABORTED_BY_OTHERS", ())


def older_instances_are_not_fenced(patch: Patch) -> None:
    """Any producer may write."""
    patch.setattr(TransactionCoordinator, "_check_instance", lambda self, state, producer: None)


def epochs_are_not_bumped(patch: Patch) -> None:
    """The next transaction of a client with version 2 has the epoch of the transaction that was ended."""

    def with_same_epoch(base: Decisions, after: Decisions, *, is_v2: bool) -> Decisions:
        return after

    patch.setattr(transactions, "_with_next_epoch", with_same_epoch)


def batches_of_the_former_epoch_are_accepted(patch: Patch) -> None:
    """A batch of an ended transaction becomes a part of the next one."""

    def check_instance(self: TransactionCoordinator, state: Decisions, producer: ProducerEpoch) -> None:
        former = ClientInstance.parse(state.run)
        if former is None or former.continued is None or producer != self.producer(state, former.continued):
            real(self, state, producer)

    real = TransactionCoordinator._check_instance
    patch.setattr(TransactionCoordinator, "_check_instance", check_instance)


def prepares_in_one_topic_are_shown_one_by_one(patch: Patch) -> None:
    """A reader does not read a topic again whose COMMIT references a later version of it."""
    real = decision_log._required_versions
    patch.setattr(
        decision_log,
        "_required_versions",
        lambda raw, outcomes: {name: version for name, version in real(raw, outcomes).items() if len(raw) > 3},
    )


def decided_transactions_are_written(patch: Patch) -> None:
    """A topic or a group is added to the journal although the transaction was decided in the meantime."""

    def check_undecided(self: TransactionCoordinator, state: Decisions, producer: ProducerEpoch, n: int) -> None:
        self._check_may_write(state, producer)

    patch.setattr(TransactionCoordinator, "check_undecided", check_undecided)
    patch.setattr(decision, "check_undecided", lambda state, n, run=None: None)


def end_txn_trusts_the_cached_topic(patch: Patch) -> None:
    """The COMMIT lists the prepares that the server knows without a request."""

    def cached_topic(self: TransactionCoordinator, prepared: Prepared) -> TopicState:
        log = self.root.engine.log(prepared.topic)
        state: TopicState = log.state(refresh=False)
        return state if state.version >= prepared.version else log.refresh().topic_state

    patch.setattr(TransactionCoordinator, "_topic_since", cached_topic)


@broken_rules(
    BrokenRule(requests_trust_the_cached_state, "calm", range(60)),
    BrokenRule(topics_are_not_added, "calm", range(20)),
    BrokenRule(only_added_versions_are_committed, "calm", range(60)),
    BrokenRule(aborts_of_others_are_not_noticed, "zombies", range(60)),
    BrokenRule(older_instances_are_not_fenced, "calm", range(60)),
    BrokenRule(epochs_are_not_bumped, "calm", range(60), first=8),
    BrokenRule(batches_of_the_former_epoch_are_accepted, "calm", range(60), first=8),
    BrokenRule(prepares_in_one_topic_are_shown_one_by_one, "zombies", range(60)),
    BrokenRule(end_txn_trusts_the_cached_topic, "calm", range(60)),
    BrokenRule(decided_transactions_are_written, "zombies", range(60)),
)
@pytest.mark.sweep
def test_some_seed_fails_without_the_rule(rule: BrokenRule, monkeypatch: Patch) -> None:
    KAFKA_CLIENTS.assert_fails(rule, monkeypatch)
