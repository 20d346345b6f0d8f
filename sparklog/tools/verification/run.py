"""Verifying a root: its id, the logs of transactions and groups, the log of each topic, then every file these name.

In that order, because of who may write meanwhile: what a decision names was there before it. Logs are read one after
the other; one that seems to lack what another names is read again, for a newer state has more, never less. Files are
listed before the logs are read, so that what is in the listing and nowhere named is an upload in flight, or left over.
A file that is gone when it is its turn is looked for in a newer state of its topic: the vacuum may have deleted it by
right.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sparklog.common.units import size_text
from sparklog.errors import BadRequest, Corrupt, NotFound, SparklogError, did_you_mean
from sparklog.format.checksums import SUFFIXES
from sparklog.groups.group_state import GROUPS, GroupState
from sparklog.log.decisions.decision import DECISIONS, Decisions
from sparklog.log.decisions.expired_ids import entry_in, register_of
from sparklog.log.journal import names as naming
from sparklog.log.journal.clocks import SYSTEM, Env, reading_clock_ms
from sparklog.log.journal.documents import document_of
from sparklog.log.journal.entry_log import E, EntryKind
from sparklog.log.journal.probe_results import is_note, is_probe_result, lost_commits
from sparklog.log.journal.stored_object import read_object
from sparklog.log.state.history import History
from sparklog.log.topic.inventory import NamedFile, merged
from sparklog.maintenance.journals import JOURNAL_IN, JOURNALS
from sparklog.maintenance.work_items import InProcess, Runner
from sparklog.retention.vacuum_plan import data_file
from sparklog.storage.patient_store import patient
from sparklog.storage.retries import SETTLE_MS, Backoff, Pauses
from sparklog.storage.store import PROBE_FOLDER, ObjectInfo, Store, key_kind
from sparklog.tools.verification.checked_logs import REMEDY as BEYOND_GAP
from sparklog.tools.verification.checked_logs import CheckedLog, damage_of, read_entries
from sparklog.tools.verification.data_file import Verified, VerifyWork, missing_beside, pieces
from sparklog.tools.verification.defaults_copy import read_defaults_copy
from sparklog.tools.verification.findings import (
    MISSING,
    PROMISE,
    ROOT,
    SIZE,
    STATE,
    TRANSACTION,
    TWO_WINNERS,
    CheckCounts,
    Finding,
    Orphan,
    Report,
)
from sparklog.tools.verification.topic_log import CheckedTopic, read_topic

REWRITE = "let sparklog doctor try the store, write the commit's records again, then delete"
TOGETHER = "topics that share transactions are restored together: restore the one that is behind"


MAY_BE_HIDDEN = MISSING, STATE, TRANSACTION, PROMISE
"""Kinds of findings that a hidden object may explain."""
LOOKS = Pauses(3.0, 15.0, 1.0, 1.0)
"""Between two looks at logs in which something seems to be missing."""
StateOf = Callable[[str, int], Decisions | None]
"""The decisions of an id, read again where those known have not decided transaction `n`."""


def check_transactions(
    topics: Mapping[str, CheckedTopic], states: Mapping[str, Decisions], state_of: StateOf
) -> Iterator[Finding]:
    """Compare decisions, read before the topics, with the topics they name, and transactions of topics with them."""
    for state in states.values():
        yield from _named(state, topics)
    for topic in topics.values():
        if topic.state is None:
            continue
        for item in topic.state.open:
            what = f"slices of transaction {item.txn.n} of '{item.txn.id}' are open since version {item.version}"
            yield from _begun(
                naming.commit_key(topic.name, item.version), what, item.txn.n, state_of(item.txn.id, item.txn.n - 1)
            )
        yield from _recorded(topic, state_of)


def check_groups(
    groups: Mapping[str, GroupState], states: Mapping[str, Decisions], state_of: StateOf
) -> Iterator[Finding]:
    """Compare decisions, read before the groups, with the groups they name, and pending offsets of groups with them."""
    for state in states.values():
        for n, named in ((item.n, named) for item in state.commits for named in item.groups):
            newest = groups[named.group].number if named.group in groups else -1
            if named.number > newest:
                what = f"transaction {n} of '{state.id}' commits entry {named.number} of group '{named.group}'"
                yield _finding(_newest_entry(state), f"{what}, which ends at {newest}")
    for group in groups.values():
        for waiting in group.pending:
            what = f"offsets of transaction {waiting.n} of '{waiting.txn}' are pending since entry {waiting.number}"
            key = naming.commit_key(naming.groups_prefix(group.id), group.number)
            yield from _begun(key, what, waiting.n, state_of(waiting.txn, waiting.n - 1))


def _finding(key: str, message: str, remedy: str = TOGETHER) -> Finding:
    return Finding(TRANSACTION, key, message, remedy)


def _newest_entry(state: Decisions) -> str:
    return naming.commit_key(naming.transactions_prefix(state.id), state.number)


def _begun(key: str, what: str, n: int, before: Decisions | None) -> Iterator[Finding]:
    """Check that a transaction was begun after the one before it was decided."""
    newest = -1 if before is None else before.newest
    if n > newest + 1:
        yield _finding(key, f"{what}; its decisions end at {newest}")


def _named(state: Decisions, topics: Mapping[str, CheckedTopic]) -> Iterator[Finding]:
    """Check the prepares that a COMMIT names, as far as the topics' logs go back."""
    for n, named in ((item.n, named) for item in state.commits for named in item.prepares):
        topic = topics.get(named.topic)
        if topic is None or topic.state is None or topic.state.topic_id != named.topic_id:
            continue
        what = f"transaction {n} of '{state.id}' commits version {named.version} of topic '{named.topic}'"
        if named.version > topic.newest:
            yield _finding(_newest_entry(state), f"{what}, which ends at {topic.newest}")
            continue
        prepared, key = topic.prepares.get(named.version), naming.commit_key(named.topic, named.version)
        damaged = prepared is None and any(finding.file == key for finding in topic.findings)
        if named.version >= topic.first and not damaged and prepared != (named.commit_id, state.id, n):
            yield _finding(key, f"{what}; that commit is another one", f"{TOGETHER}; {TWO_WINNERS}")


def _recorded(topic: CheckedTopic, state_of: StateOf) -> Iterator[Finding]:
    """Compare outcomes in the topic's commits with the decisions, as far as these still have them."""
    for version, topic_id, item in topic.outcomes:
        state = state_of(item.id, item.n)
        if state is None:
            continue
        key = naming.commit_key(topic.name, version)
        what = f"version {version} records an outcome of transaction {item.n} of '{item.id}'"
        decided = state.commit_of(item.n)
        if not state.decided(item.n):
            yield _finding(key, f"{what}; its decisions end at {state.newest}")
        elif decided is not None:
            here = (topic.name, topic_id)
            named = {prepare.version for prepare in decided.prepares if (prepare.topic, prepare.topic_id) == here}
            if others := sorted(set(item.committed) - named):
                yield _finding(key, f"{what}: versions {others} are not among its prepares")
        elif item.committed and state.surely_aborted(item.n):
            yield _finding(key, f"{what} as committed; it was aborted")


def check_siblings(store: Store, topics: Mapping[str, CheckedTopic]) -> Iterator[Finding]:
    """Check that no topic is behind the version that a transaction with another topic has seen."""
    for topic in topics.values():
        for name, version in {} if topic.state is None else topic.state.siblings.items():
            other = topics.get(name)
            if other is None or version <= other.newest:
                continue
            versions = History(store, name).commits.version
            newest = int(versions[-1]) if len(versions) else -1
            if version > newest:
                seen = f"a transaction with topic '{topic.name}' has seen version {version}"
                yield _finding(naming.commit_key(name, version), f"topic '{name}' ends at version {newest}; {seen}")


def find_lost(store: Store, topics: Collection[str]) -> Iterator[Finding]:
    """Name the commits that their writers have missed, in these topics, or in all logs."""
    for note, commit in lost_commits(store):
        if not topics or naming.key_topic(commit.key) in topics:
            message = f"commit {commit.commit_id} was acknowledged to its writer under this name, and is not there"
            yield Finding(
                PROMISE, commit.key, f"{message}: the store did not create objects exclusively", f"{REWRITE} {note}"
            )


def sort_unreferenced(
    store: Store, listing: Sequence[ObjectInfo], named: Collection[str], topics: Mapping[str, CheckedTopic], now_ms: int
) -> tuple[tuple[Orphan, ...], tuple[Orphan, ...]]:
    """Sort the unreferenced files of a listing: sparklog's, and foreign ones. `now_ms`: the store's clock.

    Files that were written meanwhile are neither.
    """

    def orphan(info: ObjectInfo, why: str) -> Orphan:
        return Orphan(info.key, info.size, max(0, now_ms - info.modified_ms), why)

    others = (info for info in listing if info.key not in named and not _is_kept(info.key))
    unnamed = [(info, _why(info, topics)) for info in others]
    orphans = [orphan(info, why) for info, why in unnamed if why is not None]
    orphans += [orphan(info, "temporary file: being written, or left") for info in store.temporary_files("")]
    foreign = [orphan(info, "sparklog gives no such name") for info, why in unnamed if why is None]
    return tuple(orphans), tuple(foreign)


def _is_kept(key: str) -> bool:
    """True for verdicts of probes, notes of lost commits and what repairs set aside: they are there for good."""
    return is_probe_result(key) or is_note(key) or key.startswith(f"{naming.REPAIR_FOLDER}/")


def _why(info: ObjectInfo, topics: Mapping[str, CheckedTopic]) -> str | None:
    """Say what an unreferenced file may be; None if it is not sparklog's."""
    owner, _, below = info.key.partition("/")
    if owner == PROBE_FOLDER:
        return "of a probe that is at work, or died"
    kind = key_kind(info.key)
    if owner in JOURNAL_IN:
        return "written just now" if kind in ("commit", "checkpoint") and naming.LOG_FOLDER in below else None
    topic = naming.key_topic(info.key)
    if topic is None:
        return None
    log = topics.get(topic)
    if below.startswith(f"{naming.LOG_FOLDER}/"):
        if kind == "checkpoint" and naming.is_checkpoint_table_name(info.key.rsplit("/", 1)[-1]):
            return "slice table that no checkpoint names: its writer died, or writes the checkpoint now"
        if kind == "commit" and log is not None and int(info.key[-25:-5]) < log.first:
            return "commits after it are not there and no version needs it: the vacuum removes it"
        return "written just now, or deleted since" if kind == "commit" or info.key.endswith(".json") else None
    file = data_file(info)
    if file is None:
        return None
    if log is None or log.state is None:
        return "no state of its topic can be rebuilt"
    if log.state.deleted:
        return "its topic was deleted: the vacuum removes it"
    if file.read_version < log.state.floor:
        return "replaced, expired or never committed: the vacuum removes it"
    return "upload in flight, or left by a writer that died: the vacuum removes it later"


Say = Callable[[str], None]
"""Gets a line for each step."""


def verify_root(
    store: Store,
    *,
    topics: Sequence[str] = (),
    quick: bool = False,
    runner: Runner | None = None,
    say: Say = lambda line: None,
    env: Env = SYSTEM,
    confirmed: Collection[Finding] = (),
) -> Report:
    """Read everything of the root in `store`, or of these topics, and report damage.

    `quick`: logs are read whole, of files only existence and size are checked. `runner` reads the files. `say` prints
    progress. `confirmed`: findings of an earlier look, which need no second one. `NotFound` if there is no root, or no
    such topic, `BadRequest` if backups are there; damage is never raised.
    """
    runner = InProcess() if runner is None else runner
    return _Verification(store, tuple(topics), quick, runner, say, env, frozenset(confirmed)).run()


def _may_be_hidden(finding: Finding) -> bool:
    return finding.kind in MAY_BE_HIDDEN or finding.remedy == BEYOND_GAP


def _subject(finding: Finding) -> tuple[str, ...]:
    """Return what tells a finding from others at each look, while the newest numbers in its message may grow."""
    if finding.kind == TRANSACTION:
        return finding.kind, re.sub("[0-9]+", "", finding.message)
    return finding.kind, finding.file


def _nbytes(work: VerifyWork) -> int:
    return sum(file.size for file in work.files)


@dataclass
class _Verification:
    """One run. `reread`: decisions that were read again, after the topics; `hidden`: the time that caches last."""

    store: Store
    chosen: tuple[str, ...]
    quick: bool
    runner: Runner
    say: Say
    env: Env
    confirmed: frozenset[Finding]
    findings: list[Finding] = field(default_factory=list)
    counts: CheckCounts = field(default_factory=CheckCounts)
    logs: dict[str, CheckedTopic] = field(default_factory=dict)
    states: dict[str, Decisions] = field(default_factory=dict)
    reread: dict[str, Decisions] = field(default_factory=dict)
    groups: dict[str, GroupState] = field(default_factory=dict)
    named: set[str] = field(default_factory=lambda: {naming.ROOT_KEY})
    hidden: Backoff = field(init=False)
    logs_store: Store = field(init=False)
    """Reads of logs wait for what a cache of names denies."""

    def __post_init__(self) -> None:
        self.logs_store = patient(self.store, self.env)
        self.hidden = Backoff(self.env, SETTLE_MS if self.store.hides_names else 0, pauses=LOOKS)

    def run(self) -> Report:
        begun = self.env.boot_ms()
        self._root()
        names = self._names()
        now_ms = reading_clock_ms(self.store, self.env)
        folders = [f"{naming.topic_folder(name)}/" for name in names] if self.chosen else [""]
        listing = [info for folder in folders for info in self.store.list(folder)]
        self._read_logs(names, now_ms)
        self._files({info.key: info for info in listing})
        now_ms = reading_clock_ms(self.store, self.env)
        orphans, foreign = sort_unreferenced(self.store, listing, self.named, self.logs, now_ms)
        seconds = (self.env.boot_ms() - begun) / 1000
        findings = tuple(dict.fromkeys(self.findings))
        return Report(self.store.location, findings, orphans, foreign, self.counts, self.quick, seconds)

    # -- logs

    def _read_logs(self, names: Sequence[str], now_ms: int) -> None:
        """Read all logs, and compare them with each other.

        A mount may show an old listing. So what seems to be missing is believed if it is missing in all logs that are
        read as long as caches last.
        """
        before = self.findings, self.counts, self.named
        suspects: set[tuple[str, ...]] | None = None
        while True:
            self.findings, self.counts, self.named = list(before[0]), before[1], set(before[2])
            self.logs, self.states, self.reread, self.groups = {}, {}, {}, {}
            self._read_logs_once(names, now_ms)
            missing = {_subject(each) for each in self.findings if _may_be_hidden(each) and each not in self.confirmed}
            suspects = missing if suspects is None else suspects & missing
            if not suspects or not self.hidden.wait():
                break
        still = suspects | {_subject(each) for each in self.confirmed}
        self.findings = [each for each in self.findings if not _may_be_hidden(each) or _subject(each) in still]

    def _read_logs_once(self, names: Sequence[str], now_ms: int) -> None:
        if not self.chosen:
            newest = {kind.folder: self._entries_of(kind) for kind in JOURNALS}
            self.states, self.groups = newest[DECISIONS.folder], newest[GROUPS.folder]
            self._take(read_defaults_copy(self.logs_store))
        for name in names:
            self.say(f"reading the log of {name}")
            log = self.logs[name] = read_topic(self.logs_store, name, now_ms)
            self._take(log)
            for file in log.files:
                self.named |= {file.key, *(file.index_key(suffix) for suffix in SUFFIXES if file.sealed)}
                self.named |= {naming.filter_path(file.key)} if file.filtered else set()
        if not self.chosen:
            self.findings += check_transactions(self.logs, self.states, self._state_of)
            self.findings += check_groups(self.groups, self.states, self._state_of)
        self.findings += check_siblings(self.store, self.logs)
        self.findings += find_lost(self.store, self.chosen)

    def _take(self, log: CheckedLog) -> None:
        self.findings += log.findings
        self.counts += log.counts
        self.named |= log.objects

    def _root(self) -> None:
        try:
            stored = read_object(self.store, naming.ROOT_KEY, naming.ROOT_JSON.decode)
        except NotFound:
            if self.store.stat(naming.PLACE_KEY) is not None:
                raise BadRequest(
                    f"backups are in {self.store.location}, and no root: restore one into another folder, which "
                    "checks every byte, or verify that"
                ) from None
            no_root = f"{self.store.location} is no sparklog root: it has no {naming.ROOT_KEY}"
            if not any(naming.topic_names(self.store)):
                raise NotFound(f"{no_root}; check the path") from None
            if not any(self._has_log(name) and self._is_topic(name) for name in naming.topic_names(self.store)):
                raise NotFound(f"{no_root}, and no folder in it is a topic; check the path") from None
            self.findings.append(Finding(MISSING, naming.ROOT_KEY, "expected the root's id, found none beside topics"))
            return
        self.counts += CheckCounts(files=1, nbytes=len(stored.data))
        self.findings += damage_of(ROOT, stored)

    def _has_log(self, name: str) -> bool:
        return next(iter(self.store.list(naming.log_folder(name))), None) is not None

    def _is_topic(self, name: str) -> bool:
        """Not a group's or transactional id's log: `_groups` itself is no root, and nothing in it is damaged."""
        for info in self.store.list(naming.log_folder(name)):
            try:
                return "number" not in json.loads(document_of(self.store.get(info.key)))
            except (ValueError, NotFound, Corrupt):
                continue
        return True

    def _names(self) -> list[str]:
        existing = [name for name in naming.topic_names(self.store) if self._has_log(name)]
        for name in self.chosen:
            naming.check_topic_name(name)
            if name not in existing:
                hint = did_you_mean(name, existing)
                raise NotFound(f"topic '{name}' does not exist in {self.store.location}{hint}; check --topic")
        return list(dict.fromkeys(self.chosen)) or existing

    def _entries_of(self, kind: EntryKind[E]) -> dict[str, E]:
        """Check all journals of a kind; return the newest entry of each by its id."""
        newest: dict[str, E] = {}
        for folder in self.store.list_folders(f"{kind.folder}/"):
            log = read_entries(self.logs_store, kind, folder)
            self._take(log)
            if log.newest is not None:
                newest[log.newest.id] = log.newest
        return newest

    def _state_of(self, id_: str, n: int) -> Decisions | None:
        state = self.reread.get(id_) or self.states.get(id_)
        if state is None or n > state.newest:
            newer = read_entries(self.logs_store, DECISIONS, naming.id_folder(id_)).newest
            register = self.states.get(register_of(id_))
            newer = newer or (None if register is None else entry_in(register, id_))
            if newer is not None:
                state = self.reread[id_] = newer
        return state

    # -- files

    def _files(self, sizes: dict[str, ObjectInfo]) -> None:
        """Sizes of all files first, then, unless it is to be quick, every byte."""
        whole = _files_of(self.logs.values())
        gone: list[str] = []
        by_topic: dict[str, list[NamedFile]] = {}
        for file in whole:
            if self._measured(file, sizes, gone):
                by_topic.setdefault(naming.key_topic(file.key) or "", []).append(file)
        works: list[VerifyWork] = []
        for name, files in by_topic.items() if not self.quick else ():
            log = self.logs.get(name)
            topic_id = "" if log is None or log.state is None else log.state.topic_id
            works += [VerifyWork(self.store, name, topic_id, piece) for piece in pieces(files, self.store.limits)]
        totals, done = [sum(len(work.files) for work in works), sum(map(_nbytes, works))], [0, 0]
        for work, result in self.runner.run(works):
            assert isinstance(work, VerifyWork)
            done = [done[0] + len(work.files), done[1] + _nbytes(work)]
            of_total = f"{size_text(done[1])} of {size_text(totals[1])}"
            self.say(f"{done[0]:,} of {totals[0]:,} files, {of_total} ({work.title})")
            if isinstance(result, SparklogError):
                raise result
            if isinstance(result, Verified):
                self.findings += result.findings
                self.counts += result.counts
                gone += result.gone
        if gone:
            self._gone(gone)

    def _measured(self, file: NamedFile, sizes: dict[str, ObjectInfo], gone: list[str]) -> bool:
        """True if a file exists and is as long as it should be."""
        info = sizes.get(file.key)
        if info is None or info.size != file.size:
            # The file was made after the listing, or a cache of names hid its size there.
            info = self.store.stat(file.key)
        if info is None:
            gone.append(file.key)
            return False
        if info.size != file.size:
            message = f"expected {file.size} bytes, found {info.size}"
            self.findings.append(Finding(SIZE, file.key, message, position=min(info.size, file.size)))
            return False
        if self.quick:
            self.counts += CheckCounts(files=1, slices=len(file.claims))
            self.findings += missing_beside(self.store, file, sizes)
        return True

    def _gone(self, keys: Sequence[str]) -> None:
        """Report files that are missing, and that a newer state of the topics that named them still needs."""
        topics = sorted(
            log.name for log in self.logs.values() if not {*keys}.isdisjoint(file.key for file in log.files)
        )
        logs = [read_topic(self.logs_store, name, reading_clock_ms(self.store, self.env)) for name in topics]
        needed_files = {file.key: file for file in _files_of(logs)}
        for key in dict.fromkeys(keys):
            file = needed_files.get(key)
            if file is None or self._exists(file.key):
                continue
            offset = min((claim.base for claim in file.claims), default=None)
            message = f"expected a file of {file.size} bytes with {len(file.claims)} slices, found none"
            self.findings.append(Finding(MISSING, key, message, offset=offset))

    def _exists(self, key: str) -> bool:
        """Return whether a file exists, after as long as a cache of names may hide it."""
        while self.logs_store.stat(key) is None:
            if not self.hidden.wait():
                return False
        return True


def _files_of(logs: Iterable[CheckedTopic]) -> list[NamedFile]:
    """Return every file once, in the order of their keys, with all that topics say of it."""
    return [file for _, file in sorted(merged(file for log in logs for file in log.files).items())]
