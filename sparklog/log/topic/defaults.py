"""The root defaults that an open handle caches. They are read on first use, and refreshed after five minutes.

Readers and followers of topics do not need the defaults. The defaults are read by processes that create, describe,
export or write to a topic. Jobs read the latest defaults when they start.

`retain` uses the defaults to delete records, and a root without entries has no defaults. Therefore, it must be possible
to distinguish lost entries from a root without entries. `change` creates a copy of the new entry in another directory
(`_defaults`). Each process checks this directory once, and each run of a job checks it as well. If an entry is missing
but its copy exists, the defaults are unknown, and the job or write fails. An access policy that was created before
these copies existed may deny listing them. In this case, writers continue without the check, and jobs do not run.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from sparklog.errors import Corrupt, SparklogError, Unavailable
from sparklog.log.journal.clocks import ClockReading
from sparklog.log.journal.create_object import read_if_there
from sparklog.log.journal.entry_log import EntryLog, Step
from sparklog.log.journal.names import DEFAULTS_FOLDER, defaults_copy_key, numbers_below
from sparklog.log.journal.seen_state import RootAccess
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.root_defaults import DEFAULTS, ID, RootDefaults
from sparklog.storage.parallel_reads import request_both
from sparklog.storage.retries import Backoff

_LOG = logging.getLogger("sparklog.log")

METADATA_MAX_AGE_MS = 300_000
"""The age in ms after which cached defaults are read again. This is the default of Kafka's `metadata.max.age.ms`."""


@dataclass(frozen=True, slots=True)
class _CachedDefaults:
    """Cached defaults, the time at which they were read, and topic configs that were combined with these defaults."""

    read_at: ClockReading
    defaults: RootDefaults
    of_topics: dict[str, TopicConfigs]


class DefaultsLog(EntryLog[RootDefaults]):
    """The journal of the root defaults. Its entries are never deleted. Threads may share an instance."""

    def __init__(self, root: RootAccess) -> None:
        super().__init__(root, DEFAULTS, ID)
        self._cached: _CachedDefaults | None = None

    def read(self, *, latest: bool = False) -> RootDefaults:
        """Return the latest defaults or, if `latest` is false, the defaults that were read in the last five minutes."""
        return self._read(latest).defaults

    def read_for_job(self) -> RootDefaults:
        """Return the latest defaults, and ensure that a copy exists.

        Raises `Unavailable` if the copies cannot be listed.
        """
        defaults = self._read(latest=True, must_check=True).defaults
        if self.store.writable:
            self.ensure_copy()
        return defaults

    def of_topic(self, topic: str, configs: TopicConfigs, *, latest: bool = False) -> TopicConfigs:
        """Return the explicit configs of a topic, combined with the topic's root defaults."""
        last = self._read(latest)
        of_topic = last.of_topics.get(topic)
        if of_topic is None or of_topic.explicit is not configs.explicit:
            of_topic = last.of_topics[topic] = TopicConfigs(configs.explicit, last.defaults.of_topic(topic))
        return of_topic if of_topic.defaults else configs

    def change(self, step: Step[RootDefaults]) -> RootDefaults:
        """Apply a step to the latest defaults, and write the result if it differs from them."""
        self._checked(self.refresh(), self._copies())
        now = self.env.now()
        changed = self._cache(now, self.write(step)).defaults
        self.ensure_copy()
        return changed

    def ensure_copy(self) -> None:
        """Create a copy of the latest known entry if it does not exist, and delete older copies."""
        defaults = self.known()
        if defaults is None or defaults.number < 0:
            return
        try:
            copies = self._copies()
            if defaults.number not in copies:
                self.store.create(defaults_copy_key(defaults.number), self.kind.table.encode(defaults))
            for number in copies:
                if number < defaults.number:
                    self.store.delete(defaults_copy_key(number))
        except (SparklogError, OSError) as error:
            # The entry itself exists. The next change, or the next run of a job, creates the copy.
            _LOG.warning("cannot copy the defaults of %s: %s", self.store.location, error)

    def _read(self, latest: bool, must_check: bool = False) -> _CachedDefaults:
        last, now = self._cached, self.env.now()
        if last is not None and not latest and now.elapsed_ms(last.read_at) < METADATA_MAX_AGE_MS:
            return last
        # Writers check once per process. Jobs check each time, because they use the defaults to delete records.
        is_checked = latest or last is None
        if is_checked:
            has_entry, copies = request_both(self.store, self._has_first_entry, partial(self._copies, must_check))
        else:
            has_entry, copies = self._has_first_entry(), []
        has_entries = has_entry or (latest and any(self.store.list(f"{self.prefix}/_log/")))
        defaults = self.refresh() if has_entries else RootDefaults(ID)
        return self._cache(now, self._checked(defaults, copies) if is_checked else defaults)

    def _checked(self, defaults: RootDefaults, copies: Sequence[int]) -> RootDefaults:
        """Return the latest defaults. Raises `Corrupt` if an entry is missing but its copy exists."""
        backoff: Backoff | None = None
        while copies and copies[-1] > defaults.number:
            # The entry may be newer than the cached defaults, or a directory cache may hide it for a while.
            defaults = self.refresh()
            copies = self._copies()
            backoff = backoff or Backoff(self.env)
            if copies and copies[-1] > defaults.number and not backoff.wait():
                raise Corrupt(
                    f"the defaults of {self.store.location} are lost: entry {copies[-1]} is missing, but its copy "
                    f"{defaults_copy_key(copies[-1])} exists. Without the defaults, topics would have different "
                    f"configs, such as a retention.ms of 7 days. To restore the defaults, run sparklog repair "
                    f"{shlex.quote(self.store.location)} --execute",
                    file=self.key(copies[-1]),
                )
        return defaults

    def _copies(self, must_check: bool = False) -> list[int]:
        """List the copies. If permission to list them is denied, return an empty list, unless `must_check` is true."""
        try:
            return numbers_below(self.store, f"{DEFAULTS_FOLDER}/")
        except Unavailable as error:
            if must_check or not error.is_denied:
                raise
            _LOG.debug("cannot check whether the defaults of %s are lost: %s", self.store.location, error)
            return []

    def _has_first_entry(self) -> bool:
        """Return True if the first entry exists. Most roots have no entries."""
        state = self.known()
        return (state is not None and state.number >= 0) or read_if_there(self.store, self.key(0)) is not None

    def _cache(self, now: ClockReading, defaults: RootDefaults) -> _CachedDefaults:
        last = self._cached
        is_same = last is not None and last.defaults.number == defaults.number
        self._cached = _CachedDefaults(now, defaults, last.of_topics if last is not None and is_same else {})
        return self._cached
