"""Verification of a root: the root id, the journals of transactions and groups, the logs of topics, and all data files.

The steps are performed in this order because writers may be active:

* A decision only references objects that were written earlier, so decisions are read first.
* If an object that another log references is not found in a log, the log is read again. A later state of the log
  contains every object of an earlier state.
* Files are listed before the logs are read. An unreferenced file in the listing is therefore an upload in flight or a
  left-over file.
* A missing file is checked against a later state of its topic, because the vacuum may have deleted the file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from sparklog.common.units import size_text
from sparklog.errors import BadRequest, Corrupt, NotFound, SparklogError, did_you_mean
from sparklog.format.checksums import SUFFIXES
from sparklog.groups.group_state import GROUPS, GroupState
from sparklog.log.decisions.decision import DECISIONS, Decisions
from sparklog.log.decisions.expired_ids import archive_of, entry_in
from sparklog.log.journal import names as naming
from sparklog.log.journal.clocks import SYSTEM, Env, reading_clock_ms
from sparklog.log.journal.documents import document_of
from sparklog.log.journal.entry_log import E, EntryKind
from sparklog.log.journal.stored_object import read_object
from sparklog.log.topic.inventory import ReferencedFile, merge_files
from sparklog.maintenance.journals import JOURNALS
from sparklog.maintenance.work_items import InProcess, Runner
from sparklog.retention.vacuum_plan import data_file
from sparklog.storage.patient_store import patient
from sparklog.storage.retries import SETTLE_MS, Backoff, Pauses
from sparklog.storage.store import ObjectInfo, Store
from sparklog.tools.verification.checked_logs import BEYOND_GAP, CheckedLog, findings_of, read_entries
from sparklog.tools.verification.cross_checks import (
    check_groups,
    check_participants,
    check_transactions,
    find_lost_commits,
)
from sparklog.tools.verification.data_file import Verified, VerifyWork, find_missing_companions, groups_of
from sparklog.tools.verification.defaults_copy import read_defaults_copy
from sparklog.tools.verification.findings import (
    GUARANTEE,
    MISSING,
    ROOT,
    SIZE,
    STATE,
    TRANSACTION,
    CheckCounts,
    Finding,
    Report,
)
from sparklog.tools.verification.topic_log import CheckedTopic, read_topic
from sparklog.tools.verification.unreferenced import classify_unreferenced

CAN_BE_HIDDEN = MISSING, STATE, TRANSACTION, GUARANTEE
"""Kinds of findings that occur if a cache temporarily hides an existing object."""
RESTORE_LOG = "restore the topic's _log directory from a backup, or delete the topic's directory"
PAUSES = Pauses(3.0, 15.0, 1.0, 1.0)
"""Pauses before the logs are read again because objects seem to be missing."""
Say = Callable[[str], None]
"""A function that is called with a line of text for each step."""


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
    """Verify the root in `store`, or some of its topics. Corruption is reported and never raised.

    Args:
        topics: names of the topics to verify. If empty, all topics are verified.
        quick: read all logs, but check only the existence and size of data files.
        runner: runs the work items that read data files.
        say: called with a line of text for each step.
        confirmed: findings of an earlier verification, which are reported again without waiting for caches.

    Raises:
        NotFound: If the root or a topic does not exist.
        BadRequest: If the location is a backup repository.
    """
    runner = InProcess() if runner is None else runner
    return _Verification(store, tuple(topics), quick, runner, say, env, frozenset(confirmed)).run()


def _can_be_hidden(finding: Finding) -> bool:
    return finding.kind in CAN_BE_HIDDEN or finding.remedy == BEYOND_GAP


def _identity(finding: Finding) -> tuple[str, ...]:
    """Return the fields of a finding that do not change when the log grows and is read again."""
    if finding.kind == TRANSACTION:
        return finding.kind, re.sub("[0-9]+", "", finding.message)
    return finding.kind, finding.file


def _other_folders(listing: Iterable[ObjectInfo], names: Iterable[str]) -> list[str]:
    """Return the directories with data files that do not belong to the topics in `names`."""
    known = {naming.topic_folder(name) for name in names}
    others = (info for info in listing if info.key.partition("/")[0] not in known)
    return sorted({info.key.partition("/")[0] for info in others if data_file(info) is not None})


@dataclass
class _Verification:
    """The state of a verification.

    Attributes:
        reread: decisions that were read again after the topics.
        referenced: keys of all objects that belong to the root.
        cache_wait: the pauses during which caches may still hide an object.
        logs_store: the store for reading logs, which retries if a cache of names hides an object.
    """

    store: Store
    topics: tuple[str, ...]
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
    referenced: set[str] = field(default_factory=lambda: {naming.ROOT_KEY})
    cache_wait: Backoff = field(init=False)
    logs_store: Store = field(init=False)

    def __post_init__(self) -> None:
        self.logs_store = patient(self.store, self.env)
        self.cache_wait = Backoff(self.env, SETTLE_MS if self.store.hides_names else 0, pauses=PAUSES)

    def run(self) -> Report:
        started_ms = self.env.boot_ms()
        self._check_root_id()
        names = self._names()
        now_ms = reading_clock_ms(self.store, self.env)
        folders = [f"{naming.topic_folder(name)}/" for name in names] if self.topics else [""]
        listing = [info for folder in folders for info in self.store.list(folder)]
        self._read_logs(names, _other_folders(listing, names), now_ms)
        self._check_files({info.key: info for info in listing})
        now_ms = reading_clock_ms(self.store, self.env)
        unreferenced, foreign = classify_unreferenced(self.store, listing, self.referenced, self.logs, now_ms)
        seconds = (self.env.boot_ms() - started_ms) / 1000
        findings = tuple(dict.fromkeys(self.findings))
        return Report(self.store.location, findings, unreferenced, foreign, self.counts, self.quick, seconds)

    # -- logs

    def _read_logs(self, names: Sequence[str], other_folders: Sequence[str], now_ms: int) -> None:
        """Read all logs and compare them with each other.

        A mount may return an outdated listing. Therefore the logs are read repeatedly until cached listings have
        expired. An object is reported as missing only if it is missing in every read.
        """
        before = self.findings, self.counts, self.referenced
        suspects: set[tuple[str, ...]] | None = None
        while True:
            self.findings, self.counts, self.referenced = list(before[0]), before[1], set(before[2])
            self.logs, self.states, self.reread, self.groups = {}, {}, {}, {}
            self._read_logs_once(names, now_ms)
            self._find_lost_logs(other_folders)
            unconfirmed = (finding for finding in self.findings if finding not in self.confirmed)
            missing = {_identity(finding) for finding in unconfirmed if _can_be_hidden(finding)}
            suspects = missing if suspects is None else suspects & missing
            if not suspects or not self.cache_wait.wait():
                break
        known = suspects | {_identity(finding) for finding in self.confirmed}
        self.findings = [
            finding for finding in self.findings if not _can_be_hidden(finding) or _identity(finding) in known
        ]

    def _read_logs_once(self, names: Sequence[str], now_ms: int) -> None:
        if not self.topics:
            latest = {kind.folder: self._latest_entries(kind) for kind in JOURNALS}
            self.states, self.groups = latest[DECISIONS.folder], latest[GROUPS.folder]
            self._add(read_defaults_copy(self.logs_store))
        for name in names:
            self.say(f"reading the log of {name}")
            log = self.logs[name] = read_topic(self.logs_store, name, now_ms)
            self._add(log)
            for file in log.files:
                self.referenced |= {file.key, *(file.index_key(suffix) for suffix in SUFFIXES if file.sealed)}
                self.referenced |= {naming.filter_path(file.key)} if file.filtered else set()
        if not self.topics:
            self.findings += check_transactions(self.logs, self.states, self._state_of)
            self.findings += check_groups(self.groups, self.states, self._state_of)
        self.findings += check_participants(self.store, self.logs)
        self.findings += find_lost_commits(self.store, self.topics)

    def _find_lost_logs(self, folders: Sequence[str]) -> None:
        """Report topics that have data files, but no log. The first commit of a topic precedes its first data file, and
        the vacuum retains the latest commit of a deleted topic.
        """
        for folder in folders:
            name = naming.folder_topic(folder)
            # A topic that was created after the names were listed has a log.
            if name is not None and not self._has_log(name):
                key = naming.commit_key(name, 0)
                self.findings.append(Finding(MISSING, key, "the topic has data files, but no log", RESTORE_LOG))

    def _add(self, log: CheckedLog) -> None:
        self.findings += log.findings
        self.counts += log.counts
        self.referenced |= log.objects

    def _check_root_id(self) -> None:
        try:
            stored = read_object(self.store, naming.ROOT_KEY, naming.ROOT_JSON.decode)
        except NotFound:
            if self.store.stat(naming.REPOSITORY_KEY) is not None:
                raise BadRequest(
                    f"{self.store.location} is a backup repository, not a root; to verify a backup, restore it to "
                    "another directory, which checks every byte"
                ) from None
            no_root = f"{self.store.location} is not a sparklog root: it has no {naming.ROOT_KEY}"
            if not any(naming.topic_names(self.store)):
                raise NotFound(f"{no_root}; check the path") from None
            if not any(self._has_log(name) and self._is_topic(name) for name in naming.topic_names(self.store)):
                raise NotFound(f"{no_root} and no topics; check the path") from None
            self.findings.append(Finding(MISSING, naming.ROOT_KEY, "the root has topics, but no file with the root id"))
            return
        self.counts += CheckCounts(files=1, nbytes=len(stored.data))
        self.findings += findings_of(ROOT, stored)

    def _has_log(self, name: str) -> bool:
        return next(iter(self.store.list(naming.log_folder(name))), None) is not None

    def _is_topic(self, name: str) -> bool:
        """Return False if the name is a directory of journals, such as `_groups`, which is not a topic."""
        for info in self.store.list(naming.log_folder(name)):
            try:
                return "number" not in json.loads(document_of(self.store.get(info.key)))
            except (ValueError, NotFound, Corrupt):
                continue
        return True

    def _names(self) -> list[str]:
        existing = [name for name in naming.topic_names(self.store) if self._has_log(name)]
        for name in self.topics:
            naming.check_topic_name(name)
            if name not in existing:
                hint = did_you_mean(name, existing)
                raise NotFound(f"topic '{name}' does not exist in {self.store.location}{hint}; check --topic")
        return list(dict.fromkeys(self.topics)) or existing

    def _latest_entries(self, kind: EntryKind[E]) -> dict[str, E]:
        """Check all journals of a kind. Return the latest entry of each journal by its id."""
        latest: dict[str, E] = {}
        for folder in self.store.list_folders(f"{kind.folder}/"):
            log = read_entries(self.logs_store, kind, folder)
            self._add(log)
            if log.latest is not None:
                latest[log.latest.id] = log.latest
        return latest

    def _state_of(self, id_: str, n: int) -> Decisions | None:
        state = self.reread.get(id_) or self.states.get(id_)
        if state is None or n > state.newest:
            later = read_entries(self.logs_store, DECISIONS, naming.id_folder(id_)).latest
            archive = self.states.get(archive_of(id_))
            later = later or (None if archive is None else entry_in(archive, id_))
            if later is not None:
                state = self.reread[id_] = later
        return state

    # -- files

    def _check_files(self, listed: dict[str, ObjectInfo]) -> None:
        """Check the sizes of all files and, unless `quick` is set, their contents."""
        missing: list[str] = []
        by_topic: dict[str, list[ReferencedFile]] = {}
        for file in _files_of(self.logs.values()):
            if self._has_right_size(file, listed, missing):
                by_topic.setdefault(naming.key_topic(file.key) or "", []).append(file)
        works: list[VerifyWork] = []
        for name, files in by_topic.items() if not self.quick else ():
            log = self.logs.get(name)
            topic_id = "" if log is None or log.state is None else log.state.topic_id
            works += [VerifyWork(self.store, name, topic_id, group) for group in groups_of(files, self.store.limits)]
        all_files, all_bytes = sum(work.file_count for work in works), sum(work.nbytes for work in works)
        files_done = bytes_done = 0
        for work, result in self.runner.run(works):
            assert isinstance(work, VerifyWork)
            files_done, bytes_done = files_done + work.file_count, bytes_done + work.nbytes
            progress = f"{files_done:,} of {all_files:,} files, {size_text(bytes_done)} of {size_text(all_bytes)}"
            self.say(f"{progress} ({work.title})")
            if isinstance(result, SparklogError):
                raise result
            if isinstance(result, Verified):
                self.findings += result.findings
                self.counts += result.counts
                missing += result.missing
        if missing:
            self._report_missing(missing)

    def _has_right_size(self, file: ReferencedFile, listed: dict[str, ObjectInfo], missing: list[str]) -> bool:
        """Return True if a file exists and has the correct size. Otherwise add the file to `missing` or to the
        findings.
        """
        info = listed.get(file.key)
        if info is None or info.size != file.size:
            # The file was written after the listing, or a cache returned an outdated listing.
            info = self.store.stat(file.key)
        if info is None:
            missing.append(file.key)
            return False
        if info.size != file.size:
            message = f"expected {file.size} bytes, found {info.size}"
            self.findings.append(Finding(SIZE, file.key, message, position=min(info.size, file.size)))
            return False
        if self.quick:
            self.counts += CheckCounts(files=1, slices=len(file.claims))
            self.findings += find_missing_companions(self.store, file, listed)
        return True

    def _report_missing(self, keys: Sequence[str]) -> None:
        """Report missing files that a later state of their topics still references."""
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
        """Return True if a file exists. If the file is not found, retry until caches have expired."""
        while self.logs_store.stat(key) is None:
            if not self.cache_wait.wait():
                return False
        return True


def _files_of(logs: Iterable[CheckedTopic]) -> list[ReferencedFile]:
    """Return the files of all logs, sorted by key.

    The claims of a file come from all topics that reference the file.
    """
    return [file for _, file in sorted(merge_files(file for log in logs for file in log.files).items())]
