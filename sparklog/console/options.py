"""Options that several commands and jobs share: one name, one meaning, one help text; and what their texts mean.

Topics and partitions are chosen by name, or by patterns as Kafka's tools take them.
"""

# Without `annotations` of the future: a data class may have fields of a class of another module.
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from click import BadParameter

from sparklog.common.parsing import INT32_MAX, INT64_MAX, is_digits
from sparklog.common.settings import whole
from sparklog.common.times import parse_iso_time, warn_of_seconds
from sparklog.console.locations import OpenFolder, root_of_name
from sparklog.console.parameters import Argument, Option
from sparklog.errors import NotFound

Isolation = Literal["read_committed", "read_uncommitted"]
CorruptRecords = Literal["fail", "skip", "truncate"]


def root_option(text: str) -> Any:
    return Option(
        "--root", "-r", envvar="SPARKLOG_ROOT", metavar="PATH", help=text, show_default=False, parser=root_of_name
    )


def whole_number(
    *names: str,
    text: str,
    low: int = 0,
    high: int = INT64_MAX,
    metavar: str = "N",
    default: bool | str = True,
    **rule: Any,
) -> Any:
    """Return an option for a whole number from `low` to `high`; other values are a usage error.

    `rule`: the arguments `excludes`, `needs` and `why` of `Option`.
    """
    return Option(*names, parser=whole(low, high), metavar=metavar, help=text, show_default=default, **rule)


RootOption = Annotated[str, root_option("Folder of the topics.")]
SourceOption = Annotated[
    str, root_option("A root, one topic's folder, a Kafka log directory or one Kafka partition folder.")
]
TopicsOption = Annotated[
    list[str] | None,
    Option(
        "--topic", "-t", metavar="NAME", help="Only this topic; several with commas, or repeated.", show_default="all"
    ),
]
TopicOption = Annotated[
    str | None, Option("--topic", "-t", metavar="NAME", help="The same as TOPIC.", show_default=False)
]
CorruptOption = Annotated[
    CorruptRecords,
    Option(
        help="If a batch is corrupt: fail, skip it with a warning, or truncate the log of a Kafka directory before it."
    ),
]
IsolationOption = Annotated[
    Isolation, Option("--isolation-level", help="Whether to see records of open and aborted transactions.")
]
AsOfOption = Annotated[
    str | None,
    Option(
        metavar="VERSION|TIME",
        help="As the topic was: a version, or milliseconds or 2026-01-31T12:00:00 (UTC unless it says).",
        show_default="now",
    ),
]
LinkOption = Annotated[
    bool, Option("--link", help="Hard links instead of copies, on the same disk: no protection from damage.")
]
ConfigOption = Annotated[
    list[str] | None,
    Option("--config", "-c", metavar="NAME=VALUE", help="A topic config under Kafka's name; may be repeated."),
]
PropertiesOption = Annotated[
    str | None,
    Option(metavar="FILE", help="Defaults under Kafka's names, as conf/sparklog.properties.", show_default=False),
]
QuickOption = Annotated[
    bool, Option("--quick", help="Read only the logs; of files check whether they exist and how long they are.")
]
DryRunOption = Annotated[bool, Option("--dry-run", help="Change nothing: check, and print what would be done.")]
ExecuteOption = Annotated[bool, Option("--execute", excludes="--dry-run", help="Make the changes.")]
QuietOption = Annotated[bool, Option("--quiet", "-q", help="No progress on stderr.")]


def comma_separated(texts: Sequence[str] | None) -> tuple[str, ...]:
    """Split `["a,b", "c"]` into `("a", "b", "c")`, each once."""
    names = [name.strip() for text in texts or () for name in text.split(",")]
    return tuple(dict.fromkeys(name for name in names if name))


def one_of(argument: str | None, option: str | None, names: str = "TOPIC --topic") -> str | None:
    """Return what was given as an argument, or as an option instead; a usage error if they differ."""
    first, second = names.split()
    if argument is not None and option not in (None, argument):
        raise BadParameter(f"expected {first} once, found {argument!r} and {second} {option!r}: leave one out")
    return option if argument is None else argument


def required(argument: str | None, option: str | None, names: str = "TOPIC --topic") -> str:
    """Return what `one_of` does; a usage error if there is none."""
    value = one_of(argument, option, names)
    if value is None:
        raise BadParameter(f"expected {names.split()[0]}, as an argument or with {names.split()[1]}; found none")
    return value


@dataclass
class OneTopic:
    """The topic of a command, as an argument or by --topic."""

    topic: Annotated[str | None, Argument(metavar="TOPIC", help="Topic, or --topic NAME.")] = None
    topic_option: TopicOption = None

    @property
    def name(self) -> str:
        return required(self.topic, self.topic_option)


@dataclass
class TopicOrPattern(OneTopic):
    """The topic that a command changes at once, or all that a pattern matches: of these nothing without --execute."""

    pattern: Annotated[
        str | None,
        Option(
            metavar="REGEX",
            excludes="TOPIC --topic",
            help="Instead of TOPIC: all topics with a matching name; see --execute.",
        ),
    ] = None
    execute: Annotated[
        bool,
        Option(
            needs="--pattern",
            excludes="--dry-run",
            help="With --pattern: make the changes instead of only showing them.",
        ),
    ] = False
    dry_run: DryRunOption = False

    @property
    def executes(self) -> bool:
        """True if something is to be changed."""
        return self.execute if self.pattern is not None else not self.dry_run

    def matching(self, topics: Callable[[], Sequence[str]], location: str) -> list[str]:
        """Return the topics that are meant, of those there are. `NotFound` if a pattern matches none."""
        if self.pattern is None:
            if not re.fullmatch(r"[\w.-]*", self.name):
                expected = f"expected a topic, found {self.name!r}"
                raise BadParameter(f"{expected}: --pattern takes a regular expression, and changes with --execute")
            return [self.name]
        pattern = _regex(self.pattern, "--pattern")
        names = [name for name in topics() if pattern.fullmatch(name)]
        if not names:
            raise NotFound(f"no topic in {location} has a name that {self.pattern!r} matches as a whole; list them")
        return names


@dataclass
class TopicOfFolder(OneTopic):
    """The topic of a command that reads a folder, which may hold only one."""

    topic: Annotated[
        str | None, Argument(metavar="[TOPIC]", help="Topic; may be left out where the folder holds only one.")
    ] = None

    @property
    def name_or_none(self) -> str | None:
        return one_of(self.topic, self.topic_option)


@dataclass
class Topics:
    """The topics of a command, as arguments or by --topic."""

    topics: Annotated[list[str] | None, Argument(metavar="[TOPIC]...", help="Topics; none means all.")] = None
    topic_option: Annotated[
        list[str] | None, Option("--topic", "-t", metavar="NAME", help="The same; with commas, or repeated.")
    ] = None

    @property
    def names(self) -> list[str] | None:
        """Return the topics, None for all; a usage error if arguments and option differ."""
        arguments, named = list(comma_separated(self.topics)), list(topic_names(self.topic_option))
        if arguments and named and set(arguments) != set(named):
            both = f"{' '.join(arguments)!r} and --topic {','.join(named)!r}"
            raise BadParameter(f"expected topics once, found {both}: leave one out")
        return arguments or named or None


_ESCAPE = re.compile(rb"\\(?:([\\tnr])|x([0-9a-fA-F]{2})|(0[0-7]{0,2}))")
_ESCAPED = {b"t": b"\t", b"n": b"\n", b"r": b"\r", b"\\": b"\\"}


def unescaped(text: str) -> bytes:
    r"""Return a text's bytes, with `\t \n \r \\`, `\x1f` and octal `\0 \033` replaced; other backslashes stay."""

    def replace(match: re.Match[bytes]) -> bytes:
        letter, hexadecimal, octal = match.groups()
        return _ESCAPED[letter] if letter else bytes([int(hexadecimal, 16) if hexadecimal else int(octal, 8)])

    return _ESCAPE.sub(replace, text.encode(errors="surrogateescape"))


def topic_names(texts: Sequence[str] | None) -> tuple[str, ...]:
    """Return the topics of `TopicsOption`; empty: all. Usage errors for what cannot be a topic's name."""
    from sparklog.log.journal.names import check_topic_name

    return tuple(check_topic_name(name) for name in comma_separated(texts))


GROUP_STATES = ("Stable", "Empty", "Reconciling", "Dead", "PreparingRebalance", "CompletingRebalance", "Unknown")


def group_states(text: str) -> set[str]:
    """Return the states that are named, with commas between them, in lower case; all for an empty text."""
    states = {state.lower() for state in GROUP_STATES}
    named = {state.lower() for state in comma_separated([text])}
    if not named <= states:
        raise BadParameter(f"expected {', '.join(GROUP_STATES)}, found {text!r}", param_hint="'--state'")
    return named or states


def name_and_value(text: str, option: str, expected: str = "NAME=VALUE") -> tuple[str, str]:
    """Split `name=value`."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise BadParameter(f"expected {expected}, found {text!r}", param_hint=f"'{option}'")
    return name.strip(), value.strip()


def parse_configs(texts: list[str] | None) -> dict[str, str]:
    """Turn `["retention.ms=1000"]` into `{"retention.ms": "1000"}`; the topic checks the names, not this."""
    return dict(name_and_value(text, "--config") for text in texts or ())


_UNITS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_age(text: str, option: str) -> int:
    """Return milliseconds of `90s`, `45m`, `3h` or `2d`."""
    if len(text) < 2 or text[-1] not in _UNITS or not is_digits(text[:-1]) or int(text[:-1]) > INT32_MAX:
        raise BadParameter(f"expected a time such as 90s, 45m, 3h or 2d, found {text!r}", param_hint=f"'{option}'")
    return int(text[:-1]) * _UNITS[text[-1]]


VERSIONS = 10**10
"""A number below is a version, from it on a time: 10^10 ms after 1970 is April 1970."""


def parse_time(text: str, option: str = "--from-timestamp") -> int:
    """Return milliseconds since the epoch of `1700000000000` or ISO 8601 (UTC unless it names a zone), floored."""
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
    """Raise a usage error if a range ends before it begins; `start` and `end`: the options with their values."""
    if first > last:
        raise BadParameter(f"{start} is after {end}, so the range is empty: swap the values")


def parse_as_of(text: str | None) -> tuple[int | None, int | None]:
    """Return version and time (ms since the epoch), at most one of them."""
    if text is None:
        return None, None
    if is_digits(text) and int(text) < VERSIONS:
        return int(text), None
    return None, parse_time(text, "--as-of")


INTERNAL = ("__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata")
RULE = re.compile(r"([^:,]*)(?::(?:([0-9]{0,10})|([0-9]{0,10})-([0-9]{0,10})))?")
"""Kafka's: a pattern of topics, then a partition, or the first one and the one after the last."""


@dataclass
class TopicChoice(Topics):
    """Topics by name or by patterns."""

    include: Annotated[
        str | None,
        Option(
            metavar="PATTERN", excludes="TOPIC --topic", help="Topics with names that match the regular expression."
        ),
    ] = None
    exclude_internal: Annotated[
        bool, Option("--exclude-internal", "--exclude-internal-topics", help="Without __consumer_offsets and its like.")
    ] = False

    @property
    def pattern(self) -> str | None:
        """Return --include, or a --topic that is no name; None where all topics, or some by name, are meant."""
        from sparklog.log.journal.names import is_topic_name

        names = comma_separated(self.topic_option)
        pattern = "|".join(names) if self.include is None and not all(map(is_topic_name, names)) else self.include
        if pattern is not None and self.topics:
            raise BadParameter(f"give TOPIC or --topic {pattern!r}, not both: the pattern selects the topics")
        return pattern

    @property
    def names(self) -> list[str] | None:
        """Return the topics that are named; None for all that `of` leaves."""
        if self.pattern is None:
            return super().names
        return None

    def of(self, source: OpenFolder, may_be_none: bool = False) -> OpenFolder:
        """Return the folder as if it had only the topics that are meant. `NotFound` if a pattern matches none."""
        pattern = None if self.pattern is None else _topics_regex(self.pattern)

        def accepts(name: str) -> bool:
            is_left_out = self.exclude_internal and name in INTERNAL
            return not is_left_out and (pattern is None or pattern.fullmatch(name) is not None)

        folder = replace(source, accepts=accepts)
        if pattern is not None and not may_be_none and not folder.topics():
            where = source.view.location
            raise NotFound(f"no topic of {where} matches {self.pattern!r}: see `sparklog topics list`")
        return folder


def _regex(text: str, option: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        problem = f"expected a regular expression, found {text!r}: {error}"
        raise BadParameter(problem, param_hint=f"'{option}'") from None


def _topics_regex(text: str) -> re.Pattern[str]:
    """Compile an expression in which a comma means `|`, as in Kafka's tools."""
    return _regex(text.replace(",", "|"), "--include")


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
        str | None,
        Option(
            metavar="TOPIC[:N|:N-M],...",
            excludes="TOPIC --topic --include --partitions",
            why="it selects topics and partitions",
            help="Only these partitions; M is exclusive.",
        ),
    ] = None

    @property
    def pattern(self) -> str | None:
        if self.topic_partitions is None:
            return super().pattern
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
            rules.append(PartitionRule(_topics_regex(topic or ".*"), *ends))
        for text in comma_separated([self.partitions or ""]):
            if not is_digits(text):
                raise BadParameter(f"expected numbers with commas, found {text!r}", param_hint="'--partitions'")
            rules.append(PartitionRule(_topics_regex(".*"), int(text), int(text) + 1))
        return rules
