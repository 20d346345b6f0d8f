"""The defaults of a root as an open handle knows them: read when one is first needed, and again when five minutes old.

Reading and following topics needs none of them. Who writes to a topic, creates one or describes it reads them with one
request, where the root has none; runs of jobs read the newest ones at their start, which a listing must confirm.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparklog.errors import NotFound, Unavailable
from sparklog.log.journal.clocks import Moment
from sparklog.log.journal.entry_log import EntryLog, Step
from sparklog.log.journal.journal import RootAccess
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.root_defaults import DEFAULTS, ID, RootDefaults

METADATA_MAX_AGE_MS = 300_000
"""Kafka's `metadata.max.age.ms`."""


@dataclass(frozen=True, slots=True)
class _Known:
    """Defaults, when they were looked at, and over them the configs of topics that were asked for."""

    looked: Moment
    defaults: RootDefaults
    of_topics: dict[str, TopicConfigs]


class DefaultsLog(EntryLog[RootDefaults]):
    """The journal of a root's defaults. Its entries stay: there are few. Threads may share it."""

    def __init__(self, root: RootAccess) -> None:
        super().__init__(root, DEFAULTS, ID)
        self._last: _Known | None = None

    def read(self, *, newest: bool = False) -> RootDefaults:
        """Return the defaults: the `newest`, or those that were read in the last five minutes."""
        return self._look(newest).defaults

    def of_topic(self, topic: str, configs: TopicConfigs, *, newest: bool = False) -> TopicConfigs:
        """Return the configs that were set on a topic, over the root's defaults for it."""
        last = self._look(newest)
        of_topic = last.of_topics.get(topic)
        if of_topic is None or of_topic.explicit is not configs.explicit:
            of_topic = last.of_topics[topic] = TopicConfigs(configs.explicit, last.defaults.of_topic(topic))
        return of_topic if of_topic.defaults else configs

    def change(self, step: Step[RootDefaults]) -> RootDefaults:
        """Write what the step makes of the newest defaults, if it makes something else of them."""
        self.refresh()
        now = self.env.now()
        return self._keep(now, self.write(step)).defaults

    def _look(self, newest: bool) -> _Known:
        last, now = self._last, self.env.now()
        if last is not None and not newest and now.elapsed_ms(last.looked) < METADATA_MAX_AGE_MS:
            return last
        return self._keep(now, self.refresh() if self._has_entries(sure=newest) else RootDefaults(ID))

    def _keep(self, now: Moment, defaults: RootDefaults) -> _Known:
        last = self._last
        is_same = last is not None and last.defaults.number == defaults.number
        self._last = _Known(now, defaults, last.of_topics if last is not None and is_same else {})
        return self._last

    def _has_entries(self, *, sure: bool) -> bool:
        """Look for the first entry: most roots have none. `sure`: a cache may hide it, and jobs delete by defaults."""
        state = self.known()
        if state is not None and state.number >= 0:
            return True
        try:
            self.store.get(self.key(0))
        except NotFound:
            if sure and next(iter(self.store.list(f"{self.prefix}/_log/")), None) is not None:
                raise Unavailable(f"{self.key(0)} is listed and cannot be read; try again later") from None
            return False
        return True
