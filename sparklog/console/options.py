"""Options that are shared by several commands and jobs, with the same name, meaning and help text, and the parsers of
their values.

Topics and partitions are selected by name, or by patterns as in Kafka's tools.
"""

# Do not use `from __future__ import annotations`, because data classes inherit fields whose annotations refer to names
# that are defined in another module.
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from click import BadParameter

from sparklog.common.parsing import INT32_MAX, INT64_MAX, is_digits
from sparklog.common.settings import int64
from sparklog.common.times import parse_iso_time, warn_of_seconds
from sparklog.console.locations import OpenLocation, resolve_root_name
from sparklog.console.parameters import Argument, Option
from sparklog.errors import NotFound

Isolation = Literal["read_committed", "read_uncommitted"]
CorruptRecords = Literal["fail", "skip", "truncate"]


def root_option(text: str) -> Any:
    return Option(
        "--root", "-r", envvar="SPARKLOG_ROOT", metavar="PATH", help=text, show_default=False, parser=resolve_root_name
    )


def integer_option(
    *names: str,
    text: str,
    low: int = 0,
    high: int = INT64_MAX,
    metavar: str = "N",
    default: bool | str = True,
    **rule: Any,
) -> Any:
    """Declare an integer option with values from `low` to `high`. Other values are usage errors.

    `rule` contains the arguments `excludes`, `needs` and `why` of `Option`.
    """
    return Option(*names, parser=int64(low, high), metavar=metavar, help=text, show_default=default, **rule)


RootOption = Annotated[str, root_option("Directory or URL of the root.")]
SourceOption = Annotated[
    str, root_option("Location to read: a root, topic directory, Kafka log directory or Kafka partition directory.")
]
TopicsOption = Annotated[
    list[str] | None,
    Option(
        "--topic",
        "-t",
        metavar="NAME",
        help="Topic to include. Repeat the option or separate names with commas.",
        show_default="all",
    ),
]
TopicOption = Annotated[
    str | None,
    Option("--topic", "-t", metavar="NAME", help="Topic name. May be given instead of TOPIC.", show_default=False),
]
CorruptOption = Annotated[
    CorruptRecords,
    Option(
        help="Action for a corrupt batch: fail, skip the batch with a warning, or (in Kafka directories)"
        " truncate the log before the batch."
    ),
]
IsolationOption = Annotated[
    Isolation,
    Option(
        "--isolation-level",
        help="Set to read_committed to read only committed records, or to read_uncommitted to read all records.",
    ),
]
AsOfOption = Annotated[
    str | None,
    Option(
        metavar="VERSION|TIME",
        help="Read the state as of this version, or as of this time in milliseconds or ISO 8601 (UTC if no time"
        " zone is given).",
        show_default="now",
    ),
]
LinkOption = Annotated[
    bool,
    Option(
        "--link",
        help="Create hard links instead of copies if source and target are on the same disk. Unlike copies,"
        " hard links do not protect against damage.",
    ),
]
ConfigOption = Annotated[
    list[str] | None,
    Option(
        "--config",
        "-c",
        metavar="NAME=VALUE",
        help="Topic config to set, such as retention.ms=3600000. May be repeated.",
    ),
]
PropertiesOption = Annotated[
    str | None,
    Option(
        metavar="FILE",
        help="Properties file with default settings, such as conf/sparklog.properties.",
        show_default=False,
    ),
]
QuickOption = Annotated[bool, Option("--quick", help="Check only the existence and size of data files.")]
DryRunOption = Annotated[bool, Option("--dry-run", help="Print what would be done, without making changes.")]
ExecuteOption = Annotated[
    bool,
    Option(
        "--execute",
        excludes="--dry-run",
        help="Make the changes. If this option is not given, the changes are only printed.",
    ),
]
QuietOption = Annotated[bool, Option("--quiet", "-q", help="Do not print progress to stderr.")]


def comma_separated(texts: Sequence[str] | None) -> tuple[str, ...]:
    """Split `["a,b", "c"]` into `("a", "b", "c")`, without duplicates."""
    names = [name.strip() for text in texts or () for name in text.split(",")]
    return tuple(dict.fromkeys(name for name in names if name))


def one_of(argument: str | None, option: str | None, names: str = "TOPIC --topic") -> str | None:
    """Return the value of an argument or an option. Raises a usage error if both are given and differ."""
    first, second = names.split()
    if argument is not None and option not in (None, argument):
        raise BadParameter(f"expected {first} once, found {argument!r} and {second} {option!r}: omit one of them")
    return option if argument is None else argument


def required(argument: str | None, option: str | None, names: str = "TOPIC --topic") -> str:
    """Return the value of an argument or an option. Raises a usage error if neither is given."""
    value = one_of(argument, option, names)
    if value is None:
        raise BadParameter(f"expected {names.split()[0]} as an argument or {names.split()[1]}, found none")
    return value


@dataclass
class OneTopic:
    """The topic of a command, given as an argument or with --topic."""

    topic: Annotated[str | None, Argument(metavar="TOPIC", help="Topic name. May also be given with --topic.")] = None
    topic_option: TopicOption = None

    @property
    def name(self) -> str:
        return required(self.topic, self.topic_option)


@dataclass
class TopicOrPattern(OneTopic):
    """The topics that a command changes. A single topic is changed immediately, and the topics of a pattern only with
    --execute.
    """

    pattern: Annotated[
        str | None,
        Option(
            metavar="REGEX",
            excludes="TOPIC --topic",
            help="Regular expression that matches the topics to change. See --execute.",
        ),
    ] = None
    execute: Annotated[
        bool,
        Option(
            needs="--pattern",
            excludes="--dry-run",
            help="Apply the changes to the topics that match --pattern. If this option is not given, the"
            " changes are only printed.",
        ),
    ] = False
    dry_run: DryRunOption = False

    @property
    def executes(self) -> bool:
        """Return True if the command makes changes."""
        return self.execute if self.pattern is not None else not self.dry_run

    def matching(self, topics: Callable[[], Sequence[str]], location: str) -> list[str]:
        """Return the topic, or the topics that match the pattern. Raises `NotFound` if no topic matches."""
        if self.pattern is None:
            if not re.fullmatch(r"[\w.-]*", self.name):
                expected = f"expected a topic, found {self.name!r}"
                raise BadParameter(
                    f"{expected}: specify a regular expression with --pattern, and --execute to make changes"
                )
            return [self.name]
        pattern = _regex(self.pattern, "--pattern")
        names = [name for name in topics() if pattern.fullmatch(name)]
        if not names:
            raise NotFound(f"no topic in {location} fully matches {self.pattern!r}: see `sparklog topics list`")
        return names


@dataclass
class SourceTopic(OneTopic):
    """The topic of a command that reads a location. It is optional if the location has only one topic."""

    topic: Annotated[
        str | None,
        Argument(metavar="[TOPIC]", help="Topic to read. May be omitted if the directory contains only one topic."),
    ] = None

    @property
    def name_or_none(self) -> str | None:
        return one_of(self.topic, self.topic_option)


@dataclass
class Topics:
    """The topics of a command, given as arguments or with --topic."""

    topics: Annotated[
        list[str] | None, Argument(metavar="[TOPIC]...", help="Topics to include. By default, all topics are included.")
    ] = None
    topic_option: Annotated[
        list[str] | None,
        Option(
            "--topic", "-t", metavar="NAME", help="Topic to include. Repeat the option or separate names with commas."
        ),
    ] = None

    @property
    def names(self) -> list[str] | None:
        """Return the topics, or None for all topics. Raises a usage error if the arguments and the option differ."""
        arguments, named = list(comma_separated(self.topics)), list(topic_names(self.topic_option))
        if arguments and named and set(arguments) != set(named):
            both = f"{' '.join(arguments)!r} and --topic {','.join(named)!r}"
            raise BadParameter(f"specify the topics only once, found {both}: omit one of them")
        return arguments or named or None


_ESCAPE = re.compile(rb"\\(?:([\\tnr])|x([0-9a-fA-F]{2})|(0[0-7]{0,2}))")
_ESCAPED = {b"t": b"\t", b"n": b"\n", b"r": b"\r", b"\\": b"\\"}


def unescaped(text: str) -> bytes:
    r"""Replace the escapes `\t \n \r \\`, `\x1f` and octal `\0 \033`, and return the bytes."""

    def replace(match: re.Match[bytes]) -> bytes:
        letter, hexadecimal, octal = match.groups()
        return _ESCAPED[letter] if letter else bytes([int(hexadecimal, 16) if hexadecimal else int(octal, 8)])

    return _ESCAPE.sub(replace, text.encode(errors="surrogateescape"))


def topic_names(texts: Sequence[str] | None) -> tuple[str, ...]:
    """Return the topics of `TopicsOption`. The result is empty if all topics are selected. Raises `BadRequest` if a
    name is invalid.
    """
    from sparklog.log.journal.names import check_topic_name

    return tuple(check_topic_name(name) for name in comma_separated(texts))


GROUP_STATES = ("Stable", "Empty", "Reconciling", "Dead", "PreparingRebalance", "CompletingRebalance", "Unknown")


def group_states(text: str) -> set[str]:
    """Parse comma-separated states, and convert them to lower case. An empty text means all states."""
    states = {state.lower() for state in GROUP_STATES}
    selected = {state.lower() for state in comma_separated([text])}
    if not selected <= states:
        raise BadParameter(f"expected {', '.join(GROUP_STATES)}, found {text!r}", param_hint="'--state'")
    return selected or states


def name_and_value(text: str, option: str, expected: str = "NAME=VALUE") -> tuple[str, str]:
    """Split `name=value` into the name and the value."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise BadParameter(f"expected {expected}, found {text!r}", param_hint=f"'{option}'")
    return name.strip(), value.strip()


def parse_configs(texts: list[str] | None) -> dict[str, str]:
    """Convert `["retention.ms=1000"]` to `{"retention.ms": "1000"}`, without checking the names."""
    return dict(name_and_value(text, "--config") for text in texts or ())


_UNITS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_age(text: str, option: str) -> int:
    """Convert `90s`, `45m`, `3h` or `2d` to milliseconds."""
    if len(text) < 2 or text[-1] not in _UNITS or not is_digits(text[:-1]) or int(text[:-1]) > INT32_MAX:
        raise BadParameter(f"expected a period such as 90s, 45m, 3h or 2d, found {text!r}", param_hint=f"'{option}'")
    return int(text[:-1]) * _UNITS[text[-1]]


VERSIONS = 10**10
"""Numbers below this limit are versions, and other numbers are times. 10^10 ms since the epoch is in April 1970."""


def parse_time(text: str, option: str = "--from-timestamp") -> int:
    """Convert milliseconds or an ISO 8601 time to ms since the epoch, rounded down. A time without a zone is in UTC."""
    if is_digits(text) and int(text) <= INT64_MAX:
        warn_of_seconds(**{option: text})
        return int(text)
    try:
        millis = parse_iso_time(text)
    except ValueError:
        raise BadParameter(
            f"expected milliseconds or a time such as 2026-01-31T12:00:00, found {text!r}", param_hint=f"'{option}'"
        ) from None
    if millis < 0:
        raise BadParameter(f"expected a time after 1970, found {text!r}", param_hint=f"'{option}'")
    return millis


def check_order(start: str, first: int, end: str, last: int) -> None:
    """Raise a usage error if a range ends before it starts. `start` and `end` are the options with their values."""
    if first > last:
        raise BadParameter(f"{start} is after {end}, so the range is empty: swap the values")


def parse_as_of(text: str | None) -> tuple[int | None, int | None]:
    """Return the version and the time (ms since the epoch). At most one of them is not None."""
    if text is None:
        return None, None
    if is_digits(text) and int(text) < VERSIONS:
        return int(text), None
    return None, parse_time(text, "--as-of")


INTERNAL = ("__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata")
RULE = re.compile(r"([^:,]*)(?::(?:([0-9]{0,10})|([0-9]{0,10})-([0-9]{0,10})))?")
"""The syntax of Kafka's tools: a topic pattern, followed by a partition or a range of partitions with an exclusive end.
"""


@dataclass
class TopicChoice(Topics):
    """The topics of a command, selected by name or by pattern."""

    include: Annotated[
        str | None,
        Option(
            metavar="PATTERN", excludes="TOPIC --topic", help="Regular expression that matches the topics to include."
        ),
    ] = None
    exclude_internal: Annotated[
        bool,
        Option(
            "--exclude-internal",
            "--exclude-internal-topics",
            help="Exclude internal topics such as __consumer_offsets.",
        ),
    ] = False

    @property
    def pattern(self) -> str | None:
        """Return the value of --include, or a --topic that is a pattern. Return None if topics are selected by name."""
        from sparklog.log.journal.names import is_topic_name

        names = comma_separated(self.topic_option)
        pattern = "|".join(names) if self.include is None and not all(map(is_topic_name, names)) else self.include
        if pattern is not None and self.topics:
            raise BadParameter(f"specify TOPIC or --topic {pattern!r}, not both: the pattern selects the topics")
        return pattern

    @property
    def names(self) -> list[str] | None:
        """Return the topics that are given by name, or None for all topics that `of` selects."""
        return super().names if self.pattern is None else None

    def of(self, source: OpenLocation, may_be_none: bool = False) -> OpenLocation:
        """Return the location restricted to the selected topics. Raises `NotFound` if no topic matches the pattern."""
        pattern = None if self.pattern is None else _topics_regex(self.pattern)

        def accepts(name: str) -> bool:
            is_excluded = self.exclude_internal and name in INTERNAL
            return not is_excluded and (pattern is None or pattern.fullmatch(name) is not None)

        selection = replace(source, accepts=accepts)
        if pattern is not None and not may_be_none and not selection.topics():
            location = source.view.location
            raise NotFound(f"no topic in {location} matches {self.pattern!r}: see `sparklog topics list`")
        return selection


def _regex(text: str, option: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        problem = f"expected a regular expression, found {text!r}: {error}"
        raise BadParameter(problem, param_hint=f"'{option}'") from None


def _topics_regex(text: str) -> re.Pattern[str]:
    """Compile a topic pattern, in which a comma means `|`, as in Kafka's tools."""
    return _regex(text.replace(",", "|"), "--include")


@dataclass(frozen=True)
class PartitionRule:
    """The partitions from `first` to `end` (exclusive) of the topics that match a pattern."""

    topics: re.Pattern[str]
    first: int
    end: int | None

    def matches(self, topic: str, partition: int) -> bool:
        in_range = self.first <= partition and (self.end is None or partition < self.end)
        return in_range and self.topics.fullmatch(topic) is not None


@dataclass
class PartitionChoice(TopicChoice):
    """The topics and partitions of a command. `-t` does not select topics, because `offsets` uses it for --time."""

    topic_option: Annotated[
        list[str] | None,
        Option(
            "--topic",
            metavar="NAME",
            help="Topic to include, or a regular expression that matches the topics to include.",
        ),
    ] = None
    partitions: Annotated[
        str | None, Option(metavar="N,...", help="Partitions to include, separated by commas.", show_default="all")
    ] = None
    topic_partitions: Annotated[
        str | None,
        Option(
            metavar="TOPIC[:N|:N-M],...",
            excludes="TOPIC --topic --include --partitions",
            why="it selects topics and partitions",
            help="Comma-separated list of topics and partitions to include. The range N-M does not include"
            " partition M.",
        ),
    ] = None

    @property
    def pattern(self) -> str | None:
        if self.topic_partitions is None:
            return super().pattern
        return "|".join(rule.topics.pattern for rule in self.rules())

    def rules(self) -> list[PartitionRule]:
        """Return the rules. A partition must match at least one rule. If there are no rules, all partitions are
        selected.
        """
        rules = []
        for text in comma_separated([self.topic_partitions or ""]):
            match = RULE.fullmatch(text)
            if match is None:
                expected = "TOPIC, TOPIC:0, TOPIC:0-3, TOPIC:1- or TOPIC:-3"
                raise BadParameter(f"expected {expected}, found {text!r}", param_hint="'--topic-partitions'")
            topic, one, first, end = match.groups()
            ends = (int(one), int(one) + 1) if one else (int(first or 0), int(end) if end else None)
            rules.append(PartitionRule(_topics_regex(topic or ".*"), *ends))
        for text in comma_separated([self.partitions or ""]):
            if not is_digits(text):
                raise BadParameter(f"expected numbers separated by commas, found {text!r}", param_hint="'--partitions'")
            rules.append(PartitionRule(_topics_regex(".*"), int(text), int(text) + 1))
        return rules
