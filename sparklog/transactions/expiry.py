"""Expiry of transactional ids, Kafka's `transactional.id.expiration.ms`, in three steps of as many passes.

1. An id that was idle for so long gets an entry, `expire`, which aborts the transaction that was to come. Only an id
   expires of which nothing is open and whose COMMITs all topics and groups have recorded.
2. That entry goes into a register (`sparklog.log.decisions.expired_ids`).
3. The objects of the id are deleted once the register has had that entry for a week: so long processes may know the
   state from before. Numbers up to that of the entry are never used again, so a pass that was stopped on its way may
   delete them whenever it goes on, and one that was killed leaves nothing behind that is read.

A later use of the id, if there is one, goes on with the next number.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial

from sparklog.errors import Corrupt, SparklogError
from sparklog.format import crc32c
from sparklog.groups.group_state import GROUPS
from sparklog.log.decisions.decision import DECISION_JSON, DECISIONS, EXPIRE, Decisions, expire
from sparklog.log.decisions.decision_log import DecisionLog
from sparklog.log.decisions.expired_ids import OF_SPARKLOG, REGISTER, entry_in, keep_newer, register_of
from sparklog.log.journal.chain import EntryChain, ids_of
from sparklog.log.journal.entry_log import KEEP_MS
from sparklog.log.journal.names import CHECKPOINT_FOLDER, LOG_FOLDER, entry_number, id_folder
from sparklog.log.topic.root import Root
from sparklog.storage.store import ObjectInfo

Recorded = Callable[[Decisions], Collection[int]]
"""Returns the numbers of the COMMITs of a state that all topics and groups they name have recorded."""


@dataclass
class ExpiryPass:
    """A pass over the ids of a root. `now_ms`: the store's clock; `expiration_ms`: None: no id expires."""

    root: Root
    now_ms: int
    expiration_ms: int | None
    recorded: Recorded

    def __post_init__(self) -> None:
        self.expired: list[Decisions] = []
        self._in_use: frozenset[str] | None = None

    def visit(self, log: DecisionLog) -> None:
        """Expire an id if it is due; remember one that has expired for `keep`."""
        if self.expiration_ms is None or log.id.startswith(OF_SPARKLOG):
            return
        state = log.refresh()
        if state.op != EXPIRE and self._is_due(log, state, self.expiration_ms):
            number, recorded = state.number, self.recorded(state)
            state = log.write(lambda base: expire(base, number, recorded))
        # Without its entry it is in the register.
        if state.op == EXPIRE and self.root.store.stat(log.key(state.number)) is not None:
            log.write_checkpoint()
            self.expired.append(state)

    def _is_due(self, log: DecisionLog, state: Decisions, expiration_ms: int) -> bool:
        info = self.root.store.stat(log.key(state.number)) if state.number >= 0 else None
        if info is None or self.now_ms - info.modified_ms <= expiration_ms:
            return False
        if self._in_use is None:
            self._in_use = frozenset(_in_use(self.root))
        return state.id not in self._in_use

    def keep(self, failures: list[SparklogError]) -> None:
        """Put the entries of ids that have expired into their registers, where they are not yet."""
        registers: dict[str, dict[str, Decisions]] = {}
        for state in self.expired:
            if crc32c.crc32c(DECISION_JSON.encode(state)) != state.crc:
                key = self.root.engine.decisions.log(state.id).key(state.number)
                failures.append(Corrupt(f"the newest entry of '{state.id}' is not as sparklog writes it", file=key))
                continue
            registers.setdefault(register_of(state.id), {})[state.id] = state
        for name, entries in sorted(registers.items()):
            try:
                log = self.root.engine.decisions.log(name)
                before = log.refresh().number
                if log.write(partial(keep_newer, entries=entries)).number > before:
                    # Older entries are collected below the second newest checkpoint.
                    log.write_checkpoint()
            except SparklogError as error:
                failures.append(error)

    def delete(self, failures: list[SparklogError], *, dry_run: bool) -> tuple[int, int]:
        """Delete what registers have had for a week; return objects and bytes."""
        objects = nbytes = 0
        folders = set(self.root.store.list_folders(f"{DECISIONS.folder}/"))
        for name in (f"{REGISTER}{digit:x}" for digit in range(16)):
            if id_folder(name) not in folders:
                continue
            try:
                for info in _deletable(self.root, name, folders, self.now_ms):
                    objects, nbytes = objects + 1, nbytes + info.size
                    if not dry_run:
                        self.root.store.delete(info.key)
            except SparklogError as error:
                failures.append(error)
        return objects, nbytes


def _in_use(root: Root) -> Iterator[str]:
    """Yield the ids with a transaction open in a topic, or pending offsets in a group."""
    for name in root.topics():
        yield from (item.txn.id for item in root.engine.log(name).head(refresh=False).open)
    for name in ids_of(root.store, GROUPS):
        yield from (item.txn for item in root.engine.entries(GROUPS, name).refresh().pending)


def _deletable(root: Root, register: str, folders: Collection[str], now_ms: int) -> Iterator[ObjectInfo]:
    """Yield objects of ids up to the entry that the register has had for a week, the lowest numbers first."""
    chain = EntryChain(root.store, DECISIONS, register)
    number = chain.number_before(now_ms - KEEP_MS)
    state = None if number is None else chain.state_at(number)
    for name in () if state is None else state.expired:
        entry = None if state is None or id_folder(name) not in folders else entry_in(state, name)
        if entry is None:
            continue
        numbered: list[tuple[int, bool, ObjectInfo]] = []
        for info in root.store.list(f"{DECISIONS.prefix(name)}/{LOG_FOLDER}/"):
            number = entry_number(info.key)
            if number is not None and number <= entry.number:
                numbered.append((number, f"/{CHECKPOINT_FOLDER}/" in info.key, info))
        # The copy of the last entry goes last: until then it is a journal like any other.
        yield from (info for _, _, info in sorted(numbered, key=lambda item: item[:2]))
