"""The topics and partitions that a command reads, by name or by patterns as Kafka's tools take them."""

# Without `annotations` of the future: see `sparklog.cli.options`.
import re
from dataclasses import dataclass, replace
from typing import Annotated

from click import BadParameter

from sparklog.cli.locations import OpenFolder
from sparklog.cli.options import Topics, comma_separated
from sparklog.cli.parameters import Option
from sparklog.errors import NotFound
from sparklog.parsing import is_digits

INTERNAL = ("__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata")
RULE = re.compile(r"([^:,]*)(?::(?:([0-9]*)|([0-9]*)-([0-9]*)))?")
"""Kafka's: a pattern of topics, then a partition, or the first one and the one after the last."""


@dataclass
class TopicChoice(Topics):
    """Topics by name or by patterns."""

    include: Annotated[str | None, Option(metavar="PATTERN", help="Topics that the regular expression matches.")] = None
    exclude_internal: Annotated[
        bool, Option("--exclude-internal", "--exclude-internal-topics", help="Without __consumer_offsets and its like.")
    ] = False

    @property
    def pattern(self) -> str | None:
        """Return --include, or a --topic that is no name; None where all topics, or some by name, are meant."""
        from sparklog.log.journal.names import is_topic_name

        names = comma_separated(self.topic_option)
        pattern = "|".join(names) if self.include is None and not all(map(is_topic_name, names)) else self.include
        if pattern is not None and (self.topics or (self.include is not None and names)):
            raise BadParameter("give topics or --include, not both")
        return pattern

    @property
    def names(self) -> list[str] | None:
        """Return the topics that are named; None for all that `of` leaves."""
        if self.pattern is None:
            return super().names
        return None

    def of(self, source: OpenFolder, may_be_none: bool = False) -> OpenFolder:
        """Return the folder as if it had only the topics that are meant. `NotFound` if a pattern matches none."""
        pattern = None if self.pattern is None else _regex(self.pattern)

        def accepts(name: str) -> bool:
            is_left_out = self.exclude_internal and name in INTERNAL
            return not is_left_out and (pattern is None or pattern.fullmatch(name) is not None)

        folder = replace(source, accepts=accepts)
        if pattern is not None and not may_be_none and not folder.topics():
            where = source.view.location
            raise NotFound(f"no topic of {where} matches {self.pattern!r}: see `sparklog topics list`")
        return folder


def _regex(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text.replace(",", "|"))
    except re.error as error:
        raise BadParameter(f"expected a regular expression, found {text!r}: {error}") from None


@dataclass(frozen=True)
class PartitionRule:
    """Partitions from `first` to the one before `end` of the topics that match."""

    topics: re.Pattern[str]
    first: int
    end: int | None

    def holds(self, topic: str, partition: int) -> bool:
        is_in = self.first <= partition and (self.end is None or partition < self.end)
        return is_in and self.topics.fullmatch(topic) is not None


@dataclass
class PartitionChoice(TopicChoice):
    """Topics, and which of their partitions; `-t` is not theirs."""

    topic_option: Annotated[list[str] | None, Option("--topic", metavar="NAME", help="The same; or a pattern.")] = None
    partitions: Annotated[str | None, Option(metavar="N,...", help="Only these partitions.", show_default="all")] = None
    topic_partitions: Annotated[
        str | None, Option(metavar="TOPIC[:N|:N-M],...", help="Only these, the last one not included.")
    ] = None

    @property
    def pattern(self) -> str | None:
        if self.topic_partitions is None:
            return super().pattern
        if self.topics or self.topic_option or self.include or self.partitions:
            raise BadParameter("it says topics and partitions: leave out the others", param_hint="'--topic-partitions'")
        return "|".join(rule.topics.pattern for rule in self.rules())

    def rules(self) -> list[PartitionRule]:
        """Return what one of must hold for a partition; none: all are meant."""
        rules = []
        for text in comma_separated([self.topic_partitions or ""]):
            match = RULE.fullmatch(text)
            if match is None:
                expected = "TOPIC, TOPIC:0, TOPIC:0-3, TOPIC:1- or TOPIC:-3"
                raise BadParameter(f"expected {expected}, found {text!r}", param_hint="'--topic-partitions'")
            topic, one, first, end = match.groups()
            ends = (int(one), int(one) + 1) if one else (int(first or 0), int(end) if end else None)
            rules.append(PartitionRule(_regex(topic or ".*"), *ends))
        for text in comma_separated([self.partitions or ""]):
            if not is_digits(text):
                raise BadParameter(f"expected numbers with commas, found {text!r}", param_hint="'--partitions'")
            rules.append(PartitionRule(_regex(".*"), int(text), int(text) + 1))
        return rules
