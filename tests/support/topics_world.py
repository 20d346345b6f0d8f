"""A world with topics a, b and c, and with transactions over them."""

from __future__ import annotations

from collections.abc import Sequence

from sparklog.limits import Limits
from sparklog.log.state.view import READ_COMMITTED, IsolationLevel
from sparklog.storage.store import Store
from sparklog.testing.world import World
from sparklog.transactions.producer import Transaction, TransactionalProducer, transactional
from tests.support.records import rows

TOPICS = ("a", "b", "c")


class TopicsWorld(World):
    """Topics with real records. Sleep takes no time, unless it is to."""

    def __init__(
        self,
        partitions: int = 1,
        store: Store | None = None,
        *,
        sleep_takes_time: bool = True,
        limits: Limits | None = None,
    ) -> None:
        super().__init__(store, sleep_takes_time=sleep_takes_time, limits=limits)
        root = self.root()
        for name in TOPICS:
            root.create_topic(name, partitions=partitions)

    def producer(self, name: str = "job", **how: object) -> TransactionalProducer:
        return transactional(self.root(), name, **how)  # type: ignore[arg-type]

    def values_by_topic(self, isolation: IsolationLevel = READ_COMMITTED) -> dict[str, list[str]]:
        return {name: self.values(name, isolation) for name in TOPICS}

    def undecided(self, name: str) -> list[int]:
        """How far the last stable offset of each partition lies behind the log end."""
        state = self.topic(name).log.read_snapshot().state
        return (state.log_end - state.last_stable()).tolist()

    def prepare(self, producer: TransactionalProducer, **topics: Sequence[str]) -> Transaction:
        """A transaction that has prepared rows and is not decided: its process died there."""
        transaction = producer.begin()
        for name, values in topics.items():
            transaction.append(name, rows(*values))
        transaction._prepare_topics()
        return transaction
