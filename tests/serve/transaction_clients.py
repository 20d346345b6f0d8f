"""Random runs of Kafka clients with transactions, over two servers each, among the writers of the root itself.

A client takes the steps of a Kafka producer, in its order, with the code that the server runs for each request. It
sends each request to one of two servers, which are processes of their own, and repeats EndTxn if no response arrives.
Half of the clients use version 2 of transactions. Their network may delay a Produce request, so that the client gives
it up and aborts the transaction, and the server gets it later: before or after the end of the transaction, or in the
next transaction. (In version 1, such a batch may become a part of the next transaction, as on a broker.)
The judge is that of the root's transactions: all of a transaction or nothing is visible, acknowledged transactions are.
"""

from __future__ import annotations

from dataclasses import replace

from sparklog.errors import BadRequest, Conflict, Corrupt, Fenced, NotFound, Unavailable
from sparklog.groups.group import Group
from sparklog.serve.codes import Code, CodeError
from sparklog.serve.transactions import ClientTransaction, TransactionCoordinator
from sparklog.storage.store import Store
from sparklog.testing.faulty_store import Decide, FaultKind
from sparklog.testing.wrapper_stores import WrapperStore
from tests.support.simulation.runs import Body, restarted
from tests.support.simulation.scheduler import Actor
from tests.support.simulation.sweeps import Simulation
from tests.transactions.simulation.actors import TIMEOUT_MS, TOPICS, Attempt, upload
from tests.transactions.simulation.loops import SOURCE, offset_of, watcher
from tests.transactions.simulation.seeds import TransactionsRun

END_ATTEMPTS = 4
NO_RESPONSE = (Unavailable, Corrupt)
REJECTIONS = (CodeError, BadRequest, Conflict, Fenced, NotFound)


class Client:
    """A producer with a transactional id, and a group whose offsets it sends with its transactions."""

    def __init__(self, run: KafkaClientsRun, actor: Actor, decide: Decide, name: str) -> None:
        self.run = run
        self.actor = actor
        self.name = name
        self.group = f"group of {name}"
        self.servers = [TransactionCoordinator(run.root(actor, decide)) for _ in range(2)]
        self.is_v2 = actor.random.random() < 0.5
        self.producer = self.any_server().init(name, TIMEOUT_MS)
        self.position = self.committed()
        self.is_ending = False
        """EndTxn was sent for the transaction, so that its outcome may be unknown."""

    def any_server(self) -> TransactionCoordinator:
        return self.actor.random.choice(self.servers)

    def committed(self) -> int:
        """Return how far the group has read, once no transaction with its offsets is open."""
        return offset_of(Group(self.any_server().root, self.group).stable(2 * TIMEOUT_MS))

    def transaction(self) -> ClientTransaction:
        return ClientTransaction(self.any_server(), self.name, self.producer, self.is_v2)

    def send_offsets(self, attempt: Attempt, end: int) -> None:
        transaction = self.transaction()
        n = transaction.coordinator.checked_state(self.name, self.producer, is_v2=self.is_v2).newest + 1
        attempt.span, attempt.span_txn = (self.group, self.position, end), (self.name, n)
        transaction.add_offsets(Group(transaction.coordinator.root, self.group), None, {SOURCE: {0: end}})

    def end(self, attempt: Attempt, *, is_commit: bool) -> None:
        """End the transaction, and set the outcome of the attempt."""
        self.is_ending, is_unknown = True, False
        for number in range(END_ATTEMPTS):
            try:
                self.producer = self.any_server().end(self.name, self.producer, is_commit=is_commit, is_v2=self.is_v2)
                attempt.outcome = "committed" if is_commit else "aborted"
                return
            except NO_RESPONSE:
                is_unknown = True
                if number == END_ATTEMPTS - 1:
                    raise
            except REJECTIONS:
                if not is_unknown:
                    attempt.outcome = "aborted"
                raise

    def recover(self, error: Exception) -> None:
        """Continue after an error: abort, or begin the next epoch with the former producer."""
        is_abortable = isinstance(error, CodeError) and error.code is Code.TRANSACTION_ABORTABLE
        if is_abortable and self.actor.random.random() < 0.5:
            self.producer = self.any_server().end(self.name, self.producer, is_commit=False, is_v2=self.is_v2)
        else:
            self.producer = self.any_server().init(self.name, TIMEOUT_MS, self.producer)
        self.position = self.committed()


def produce(actor: Actor, transaction: ClientTransaction, attempt: Attempt, topic: str, pause_s: float = 0.0) -> None:
    """Produce to a topic, as `batch_commit` does, with a pause of the server."""
    root = transaction.coordinator.root
    log, txn = root.topic(topic).log, transaction.open(topic)
    if pause_s:
        actor.sleep(pause_s)
    target = log.append_target(refresh=False)
    log.commit_append(upload(actor, root, attempt, target), target, txn=txn)
    transaction.add_topic(txn, log)


def network(run: KafkaClientsRun, decide: Decide, rounds: int, pace_s: float) -> Body:
    """Deliver delayed Produce requests to a third server. No client gets the responses."""

    def body(actor: Actor) -> None:
        def life() -> None:
            server: TransactionCoordinator | None = None
            for _ in range(rounds):
                actor.sleep(actor.random.random() * pace_s)
                if not run.delayed:
                    continue
                sent, attempt, topic = run.delayed.pop(0)
                try:
                    server = server or TransactionCoordinator(run.root(actor, decide))
                    delayed = replace(sent, coordinator=server)
                    produce(actor, delayed, attempt, topic, actor.random.random() * pace_s)
                    run.count("late batch written")
                except REJECTIONS:
                    run.count("late batch rejected")
                except NO_RESPONSE:
                    run.count("late batch without response")

        restarted(run, actor, life)

    return body


def kafka_client(run: KafkaClientsRun, decide: Decide, name: str, rounds: int, pace_s: float) -> Body:
    """Transactions of a Kafka client, one after the other; clients of the same id fence one another."""

    def body(actor: Actor) -> None:
        left = iter(range(rounds))

        def life() -> None:
            client: Client | None = None
            for _ in left:
                attempt = Attempt()
                try:
                    client = client or Client(run, actor, decide, name)
                    run.attempts.append(attempt)
                    _transact(client, attempt, pace_s)
                    run.count(f"client {attempt.outcome}")
                except (*REJECTIONS, *NO_RESPONSE) as error:
                    actor.note(f"client: {error!r}")
                    run.count(f"client {getattr(error, 'code', error)}")
                    client = _recovered(client, attempt, error)

        restarted(run, actor, life)

    return body


def _transact(client: Client, attempt: Attempt, pace_s: float) -> None:
    random, end = client.actor.random, client.position + client.actor.random.randint(1, 5)
    client.is_ending = False
    for _ in range(random.randint(1, 4)):
        produce(client.actor, client.transaction(), attempt, random.choice(TOPICS[1:]))
        client.actor.sleep(random.random() * pace_s)
    client.send_offsets(attempt, end)
    is_late = client.is_v2 and random.random() < 0.3
    is_commit = not is_late and random.random() > 0.2
    if is_late:
        client.run.delayed.append((client.transaction(), attempt, random.choice(TOPICS[1:])))
        client.actor.sleep(random.random() * pace_s)
    client.end(attempt, is_commit=is_commit)
    client.position = end if is_commit else client.committed()


def _recovered(client: Client | None, attempt: Attempt, error: Exception) -> Client | None:
    """Return the client after it has recovered; None if it was fenced or failed, so that another instance begins."""
    if client is None or (isinstance(error, CodeError) and error.code is Code.PRODUCER_FENCED):
        return None
    try:
        client.recover(error)
        if not client.is_ending:
            attempt.outcome = "aborted"
        client.run.count("client recovered")
        return client
    except (*REJECTIONS, *NO_RESPONSE):
        return None


class HidingStore(WrapperStore):
    """A store that says that caches may hide objects."""

    hides_names = True


class KafkaClientsRun(TransactionsRun):
    """The roles of `TransactionsRun`, and one to three Kafka clients of one or two transactional ids."""

    STREAM = "kafka clients"
    delayed: list[tuple[ClientTransaction, Attempt, str]]
    """Produce requests that the network delays, with the files and the topic of each."""

    def client(self, store: Store, host: str) -> Store:
        """Return a connection. A store whose reads may miss an existing object is one that hides names."""
        opened = super().client(store, host)
        return HidingStore(opened) if FaultKind.ABSENT in self.kinds and not opened.hides_names else opened

    def draw(self) -> None:
        super().draw()
        self.delayed = []
        source, kinds = self.source, self.kinds
        for number in range(source.randint(1, 3)):
            label, name = f"client-{number}", source.choice(["k", "k", f"k{number}", "w"])
            plan = self.stalling_faults(label, [0.02, 0.06], kinds, self.stall_rate, 3 * TIMEOUT_MS)
            body = kafka_client(self, plan, name, source.randint(2, 5), source.choice([0.1, 3.0]))
            self.spawn(label, body, skews=[0, 0, source.randint(-3_600_000, 4 * 60_000)])
            watched = self.stalling_faults(f"{label}w", [0.02], kinds, 0.0, TIMEOUT_MS)
            delays = self.stalling_faults(f"{label}n", [0.02], kinds, 0.0, TIMEOUT_MS)
            self.spawn(f"{label}n", network(self, delays, 20, source.choice([0.2, 1.0, 4.0])))
            self.spawn(f"{label}w", watcher(self, watched, f"group of {name}", 6))


KAFKA_CLIENTS = Simulation(KafkaClientsRun, "tests/serve/test_transaction_simulation.py")
