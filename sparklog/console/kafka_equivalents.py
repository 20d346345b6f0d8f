"""Equivalents of the options of Kafka's tools and kcat, and the translation of their command lines.

An option with the same name as in Kafka does not require an entry. `docs/reference/kafka-words.md` is generated from
these tables. If an option has equivalent arguments, the arguments replace the option before the command parses its
options. Otherwise, a one-line usage error reports the command to use instead, or why there is no equivalent. For a kcat
command line, the error reports the equivalent command.
"""

from __future__ import annotations

import shlex
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from getopt import GetoptError, gnu_getopt

from click import UsageError

from sparklog.console.terminal import BROKER_OPTIONS, NO_BROKER, warn

TOOLS = {
    "kafka-topics": "topics",
    "kafka-configs": "configs",
    "kafka-console-consumer": "consume",
    "kafka-console-producer": "produce",
    "kafka-consumer-groups": "groups",
    "kafka-get-offsets": "offsets",
    "kafka-delete-records": "delete-records",
    "kafka-log-dirs": "log-dirs",
    "kafka-dump-log": "dump-log",
    "kafka-transactions": "transactions",
    "kafka-producer-perf-test": "perf produce",
    "kafka-consumer-perf-test": "perf consume",
}


@dataclass(frozen=True, slots=True)
class Equivalent:
    """The equivalent of an option or property of Kafka.

    Attributes:
        arguments: The arguments that replace the option, or a mapping from each value to its arguments, or None if
            there is no equivalent. VALUE is replaced by the value of the option, and TEXT by the value with escaped
            backslashes, because the options of Kafka do not support escapes.
        reason: The error message if there is no equivalent. If the arguments are empty, the reason why the option has
            no effect.
        value: True if the option has a value. A string is the default for a missing value.
    """

    arguments: str | Mapping[str, str] | None
    reason: str = ""
    value: bool | str = True


def _none(why: str) -> Equivalent:
    return Equivalent(None, why)


def _unused(why: str, value: bool = True) -> Equivalent:
    return Equivalent("", why, value)


def _all(names: str, equivalent: Equivalent) -> dict[str, Equivalent]:
    return dict.fromkeys(names.split(), equivalent)


def _texts(names: str) -> dict[str, Equivalent]:
    return {name: Equivalent(f"--{name.replace('.', '-')} TEXT") for name in names.split()}


def _flag(option: str) -> Equivalent:
    return Equivalent({"true": option, "false": ""}, "expected true or false")


def _classes(part: str, last: str, why: str) -> Equivalent:
    names = ("Short", "Integer", "Long", "Float", "Double")
    words = {name: f"--{part}-format {name.lower()}" for name in names} | {"String": "", "ByteArray": ""}
    return Equivalent(
        {f"org.apache.kafka.common.serialization.{name}{last}": item for name, item in words.items()}, why
    )


CLIENT = _none(
    "there is no broker to connect to: omit the option, and configure a bucket in its URL or in the environment"
)
REPLICAS = _none("sparklog has no replicas; `sparklog verify` checks every byte")
QUOTAS = _none("only topics and the root have configs; sparklog has no quotas, and no users or clients with configs")
MEMORY = _unused("lines are appended as soon as 16 MiB are read, or after --linger-ms")
RETRIES = _unused("the store decides how often to retry")
ACKS = _unused("appended records are durable, as with acks=all")
SOCKET = _unused("there is no broker")
SYSTEST = _unused("the option is for Kafka's own tests", value=False)
METRICS = _unused("sparklog clients have no metrics", value=False)
FORMATS = (
    "--{}-format accepts string, short, integer, long, float, double, json, hex, base64, avro, json-schema and protobuf"
)
KEY_CLASS, VALUE_CLASS = (_classes(part, "Deserializer", FORMATS.format(part)) for part in ("key", "value"))
ONE_GROUP = _none("specify one group; `sparklog groups list` lists all groups")
INSTEAD = "use options instead: "

COMMON = {"--version": _none("use `sparklog --version`"), "--command-config": CLIENT}
ACTIONS: Mapping[str, Mapping[str, Equivalent]] = {
    "topics": {f"--{name}": Equivalent(name) for name in ("list", "create", "describe", "alter", "delete")},
    "configs": {f"--{name}": Equivalent(name) for name in ("describe", "alter")},
    "groups": {
        **{f"--{name}": Equivalent(name) for name in ("list", "describe", "delete", "delete-offsets")},
        "--reset-offsets": Equivalent("reset"),
        "--validate-regex": _none(
            "sparklog's consumers use Python's regular expressions; test with `sparklog consume --include REGEX`"
        ),
    },
    "transactions": {
        "forceTerminateTransaction": Equivalent("abort"),
        "find-hanging": Equivalent("list --open"),
        "describe-producers": _none(
            "use `sparklog transactions list --open`, which lists the transactions that block readers"
        ),
    },
}
"""The options that select the action of a tool, and the commands for these actions."""
WORDS: Mapping[str, Mapping[str, Equivalent]] = {
    "topics": {
        **_all("--at-min-isr-partitions --unavailable-partitions --under-min-isr-partitions", REPLICAS),
        "--under-replicated-partitions": REPLICAS,
        "--delete-config": _none("use `sparklog configs alter TOPIC --delete-config NAME`"),
        "--partition-size-limit-per-response": _unused("all partitions are shown"),
        "--replica-assignment": _none("partitions are not assigned to brokers: use --partitions"),
        "--topic-id": _none("use the topic's name; `sparklog topics describe` shows the ids of all topics"),
    },
    "configs": {
        **_all("--broker --broker-logger --group --ip --ip-defaults", QUOTAS),
        **_all("--client --client-defaults --client-metrics --user --user-defaults", QUOTAS),
        "--broker-defaults": Equivalent("--root-defaults", value=False),
        "--entity-default": Equivalent("", value=False),
        "--entity-name": Equivalent("--topic VALUE"),
        "--entity-type": Equivalent({"topics": "", "brokers": "--root-defaults"}, QUOTAS.reason),
    },
    "consume": {
        "--consumer.config": _none(f"{INSTEAD}--group, --isolation-level, --from-beginning"),
        "--enable-systest-events": SYSTEST,
        "--formatter": Equivalent(
            dict.fromkeys(
                ("org.apache.kafka.tools.consumer.DefaultMessageFormatter", "kafka.tools.DefaultMessageFormatter"), ""
            ),
            "use --format TEXT or --json; `sparklog dump-log` decodes Kafka's internal topics",
        ),
        "--formatter-config": _none(f"{INSTEAD}--property NAME=VALUE"),
        "--key-deserializer": KEY_CLASS,
        "--skip-message-on-error": _none("use --corrupt-records skip"),
        "--value-deserializer": VALUE_CLASS,
        "--whitelist": Equivalent("--include VALUE"),
    },
    "produce": {
        **_all("--batch-size --max-block-ms --max-memory-bytes --max-partition-memory-bytes", MEMORY),
        **_all("--message-send-max-retries --retry-backoff-ms", RETRIES),
        **_all("--metadata-expiry-ms --request-timeout-ms --socket-buffer-size", SOCKET),
        "--compression-codec": Equivalent("--compression VALUE", value="gzip"),
        "--line-reader": Equivalent(
            dict.fromkeys(
                ("org.apache.kafka.tools.LineMessageReader", "kafka.tools.ConsoleProducer$LineMessageReader"), ""
            ),
            "sparklog reads lines of text, or JSON with --json",
        ),
        "--producer.config": _none(f"{INSTEAD}--compression, --linger-ms"),
        "--reader-config": _none(f"{INSTEAD}--property NAME=VALUE"),
        "--request-required-acks": ACKS,
        "--sync": Equivalent("--linger-ms 0", value=False),
        "--timeout": Equivalent("--linger-ms VALUE"),
    },
    "groups": {
        "--offsets": Equivalent("", value=False),
        "--timeout": _unused("there is no coordinator to wait for"),
        "--type": _none("all groups have the same type; use --state to list their states"),
    },
    **{f"groups {name}": {"--all-groups": ONE_GROUP} for name in ("delete", "delete-offsets", "reset")},
    **{name: {} for name in ("offsets", "delete-records", "dump-log")},
    "log-dirs": {"--describe": Equivalent("", value=False)},
    "transactions": {
        "--duration-filter": _none(
            "use `sparklog transactions list --open`, which lists the transactions that block readers"
        ),
        "--transactional-id": Equivalent("VALUE"),
        "--transactional-id-pattern": _none("the command lists all ids: filter the output"),
        "--transactionalId": Equivalent("VALUE"),
    },
    "transactions list": {
        **_all("--broker-id --partition --topic", _unused("the command reads all topics")),
        "--max-transaction-timeout": _unused(
            "the list contains all open transactions, which the next commit aborts after their timeout"
        ),
    },
    "transactions abort": _all(
        "--topic --partition --start-offset --producer-id --producer-epoch --coordinator-epoch",
        _none("use `sparklog transactions abort ID`; `sparklog transactions list --open` lists the ids"),
    ),
    "perf produce": {
        "--command-property": Equivalent("--producer-props VALUE"),
        "--print-metrics": METRICS,
        "--producer.config": _none(f"{INSTEAD}--producer-props NAME=VALUE"),
    },
    "perf consume": {
        "--consumer.config": _none("the command has no consumer properties: omit the option"),
        "--date-format": _none("timestamps have Kafka's default format: omit the option"),
        **_all("--fetch-size --socket-buffer-size", SOCKET),
        "--num-records": Equivalent("--messages VALUE"),
        "--print-metrics": METRICS,
    },
}
"""Maps a command, or its first word, to the options of Kafka's tool and their equivalents. `COMMON` applies to all
commands.
"""

FORMATTER = {
    **{f"print.{name}": _flag(f"--print-{name}") for name in ("timestamp", "partition", "offset", "headers", "key")},
    "print.value": Equivalent({"true": "", "false": "--no-print-value"}, "expected true or false"),
    "print.epoch": Equivalent({"false": ""}, "`sparklog dump-log` shows leader epochs"),
    **_texts("key.separator line.separator headers.separator null.literal"),
    "key.deserializer": KEY_CLASS,
    "value.deserializer": VALUE_CLASS,
}
READER = {
    "parse.key": Equivalent({"true": "", "false": ""}, "expected true or false"),
    "parse.headers": _flag("--headers"),
    **_texts("key.separator headers.delimiter headers.separator headers.key.separator null.marker"),
    "ignore.error": _flag("--ignore-error"),
}
_CLIENTS = {
    "bootstrap.servers": _none(NO_BROKER),
    **_all("security. sasl. ssl.", CLIENT),
    **_all("client. connections. metadata. metric. metrics. receive. reconnect. request. send.", SOCKET),
    "retry.": RETRIES,
}
CONSUMER = {
    "group.id": Equivalent("--group VALUE"),
    "isolation.level": Equivalent("--isolation-level VALUE"),
    "auto.offset.reset": Equivalent(
        {"earliest": "--from-beginning", "latest": "--follow"}, "expected earliest or latest; latest means --follow"
    ),
    "enable.auto.commit": Equivalent(
        {"true": ""},
        "offsets of printed records are committed if --group is given; otherwise, no offsets are committed",
    ),
    **_all("fetch. heartbeat. max.partition. max.poll. session.", SOCKET),
    **_CLIENTS,
}
PRODUCER = {
    "acks": ACKS,
    "linger.ms": Equivalent("--linger-ms VALUE"),
    "compression.type": Equivalent("--compression VALUE"),
    "enable.idempotence": _unused("retries never append a record twice"),
    "transactional.id": _none("write transactions with `sparklog.transactional` in Python, or `sparklog perf produce`"),
    **_all("batch. buffer. max.block. max.request.", MEMORY),
    **_all("delivery. max.in.flight. retries", RETRIES),
    **_CLIENTS,
}
PROPERTIES: Mapping[str, Mapping[str, Mapping[str, Equivalent]]] = {
    "consume": dict.fromkeys(("--property", "--formatter-property"), FORMATTER)
    | dict.fromkeys(("--consumer-property", "--command-property"), CONSUMER),
    "produce": dict.fromkeys(("--property", "--reader-property"), READER)
    | dict.fromkeys(("--producer-property", "--command-property"), PRODUCER),
}
"""Maps a command and its option to the properties of Kafka's tool and their equivalents. A name that ends with a dot is
a prefix.
"""

KCAT_MODES = {"-C": "consume", "-P": "produce", "-L": "topics describe", "-Q": "offsets", "-G": "consume"}
_UNUSED = ("-d:", "-m:", "-E", "-F:", "-X:", "-q", "-u", "-v")
_KCAT = {"-b:": "--root PATH", "-t:": "--topic VALUE", **dict.fromkeys(_UNUSED, "")}
_RECORDS = _KCAT | {"-p:": "--partition VALUE"}
KCAT: Mapping[str, Mapping[str, str]] = {
    "consume": _RECORDS | {
        "-c:": "--max-messages VALUE", "-f:": "--format VALUE", "-J": "--json", "-G:": "--group VALUE",
        "-K:": "--print-key --key-separator VALUE", "-D:": "--line-separator VALUE", "-Z": "--null-literal NULL",
        "-o:": "", "-e": "",
    },
    "produce": _RECORDS | {
        "-K:": "--key-separator VALUE", "-Z": "--null-marker VALUE", "-z:": "--compression VALUE", "-l": "",
    },
    "topics describe": _KCAT | {"-J": "--json"},
    "offsets": _KCAT | {"-t:": "--topic-partitions VALUE"},
}  # fmt: skip
"""Maps a command to the options of kcat and the equivalent arguments. An option with a value ends with a colon.

`_kcat_equivalent` handles the options -o, -e and -s, and the timestamps of -t.
"""
KCAT_NUMBERS = {"h": "short", "i": "integer", "q": "long"}


def translate_command(words: Sequence[str]) -> list[str]:
    """Replace the name of a Kafka tool and the option for its action, such as `--list`, by a sparklog command."""
    if not words:
        return []
    first, *rest = words
    if first in ("kcat", "kafkacat") or first[:2] in KCAT_MODES:
        raise UsageError(f"kcat's options differ: use {_kcat_equivalent(rest if first[0] == 'k' else words)}")
    line = [*TOOLS.get(first.removesuffix(".sh"), first).split(), *rest]
    actions = ACTIONS.get(line[0])
    if actions is None or not (line[1:2] and (line[1] in actions or line[1].startswith("-"))):
        return line
    equivalents = {**COMMON, **actions}
    index = next((index for index, word in enumerate(line) if word in equivalents), 0)
    if not index:
        return line
    word = line.pop(index)
    return [line[0], *_replacement(word, equivalents[word], ""), *line[1:]]


def remove_broker_options(words: Sequence[str], options: Mapping[str, bool]) -> list[str]:
    """Remove broker options from the arguments of a command whose root is set, and print a note for each option."""
    result: list[str] = []
    rest = deque(words)
    while rest:
        word = rest.popleft()
        name, equals, _ = word.partition("=")
        if name in BROKER_OPTIONS and name.startswith("--") and name not in options:
            value = word if equals else f"{word} {rest.popleft()}" if rest else word
            warn(f"{value} has no effect, because there is no broker and the topics are in the root")
            continue
        result.append(word)
        if options.get(name) and not equals and rest:
            result.append(rest.popleft())
    return result


def translate_options(command: str, words: Sequence[str], options: Mapping[str, bool]) -> list[str]:
    """Replace Kafka's options among the arguments of a command.

    `options` contains the options of the command, and whether each option takes the next word as its value.
    """
    tool = command if command in WORDS else command.partition(" ")[0]
    if tool not in WORDS:
        return list(words)
    equivalents = {**COMMON, **WORDS.get(command.partition(" ")[0], {}), **WORDS[tool]}
    line = " ".join(words).replace("=", " ")
    if tool == "configs" and "--entity-type brokers" in line and "--entity-name" in line:
        raise UsageError("there are no brokers; use `sparklog configs describe --root-defaults` for root defaults")
    tables = PROPERTIES.get(command, {})
    properties: dict[str, dict[str, str]] = {}
    result: list[str] = []
    rest = deque(words)
    while rest and rest[0] != "--":
        word = rest.popleft()
        name, equals, text = word.partition("=")
        if name in options or not (name in equivalents or name in tables):
            result.append(word)
            if options.get(name) and not equals and rest:
                result.append(rest.popleft())
        elif name in tables:
            text = text if equals else _value_of(name, Equivalent(""), rest)
            key, is_pair, value = text.partition("=")
            if not is_pair:
                raise UsageError(f"{name}: expected NAME=VALUE, found {text!r}")
            first = next(option for option in tables if tables[option] is tables[name])
            properties.setdefault(first, {})[key.strip()] = value
        else:
            value = text if equals else _value_of(name, equivalents[name], rest)
            result += _replacement(f"{name} {value}".strip(), equivalents[name], value)
    front = [
        word for option, pairs in properties.items() for word in _property_arguments(option, tables[option], pairs)
    ]
    return [*front, *result, *rest]


def _value_of(option: str, equivalent: Equivalent, rest: deque[str]) -> str:
    """Remove the value of an option from the remaining words, and return the value."""
    if equivalent.arguments is None or equivalent.value is False:
        return ""
    if isinstance(equivalent.value, str) and (not rest or rest[0].startswith("-")):
        return equivalent.value
    if not rest:
        raise UsageError(f"Option '{option}' requires an argument.")
    return rest.popleft()


def _replacement(shown: str, equivalent: Equivalent, value: str) -> list[str]:
    """Return the equivalent arguments. If the option has no effect, print a note on stderr.

    `shown` is the option with its value. Raises `UsageError` if there is no equivalent.
    """
    arguments = equivalent.arguments
    if isinstance(arguments, Mapping):
        arguments = arguments.get(value.strip(), arguments.get(value.strip().lower()))
    elif arguments == "" and equivalent.reason:
        warn(f"{shown} has no effect: {equivalent.reason}")
    if arguments is None:
        raise UsageError(f"{shown}: {equivalent.reason}")
    return _with_value(arguments, value)


def _with_value(arguments: str, value: str) -> list[str]:
    """Split arguments into words, and replace VALUE and TEXT."""
    values = {"VALUE": value, "TEXT": value.replace("\\", "\\\\")}
    return [values.get(word, word) for word in arguments.split()]


def _property_arguments(option: str, table: Mapping[str, Equivalent], pairs: dict[str, str]) -> list[str]:
    if table is READER:
        parsed = [pairs.get(f"parse.{part}", "").strip().lower() == "true" for part in ("key", "headers")]
        has_keys, has_headers = parsed
        if has_keys:
            pairs.setdefault("key.separator", "\t")
        # Kafka ignores the separators of parts that are not parsed.
        unused = {"key.separator": has_keys, "headers.": has_headers, "ignore.error": any(parsed)}
        absent = tuple(name for name, is_used in unused.items() if not is_used)
        pairs = {name: value for name, value in pairs.items() if not name.startswith(absent)}
    result = []
    for name, value in pairs.items():
        entry = next((entry for entry in table if entry == name or (entry[-1] == "." and name.startswith(entry))), None)
        if entry is None:
            raise UsageError(f"{option}: expected one of {', '.join(table)}, found {name!r}")
        result += _replacement(f"{option} {name}={value}", table[entry], value)
    return result


def _kcat_equivalent(words: Sequence[str]) -> str:
    """Return the equivalent of a kcat command line."""
    try:
        pairs, arguments = gnu_getopt(
            list(words), "CPLQs:" + "".join(letter[1:] for table in KCAT.values() for letter in table)
        )
    except GetoptError as error:
        raise UsageError(f"kcat: {error}; see `sparklog consume --help`") from None
    mode = next((KCAT_MODES[letter] for letter, _ in pairs if letter in KCAT_MODES), "consume")
    result: list[str] = []
    if any(letter == "-f" for letter, _ in pairs):
        # In kcat, a format also defines the entire output.
        pairs = [pair for pair in pairs if pair[0] not in ("-D", "-J", "-K")]
    for letter, value in pairs:
        here = KCAT[mode].get(letter, KCAT[mode].get(f"{letter}:"))
        part, _, number = value.partition("=")
        if letter == "-s" and number in KCAT_NUMBERS:
            here = f"--{part}-format {KCAT_NUMBERS[number]}"
        elif letter == "-t" and value.count(":") == 2:
            value, _, time = value.rpartition(":")
            here = f"{here} --time {time}"
        elif here is None and letter not in KCAT_MODES:
            raise UsageError(f"kcat {letter}: `sparklog {mode}` has no equivalent; see its --help")
        result += _with_value(here or "", value)
    if mode == "consume":
        result += [*_kcat_range_options(pairs), *arguments]
    elif mode == "produce" and arguments:
        result += ["--file", arguments[0]]
    return shlex.join(["sparklog", *mode.split(), *result])


def _kcat_range_options(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Return the options for the range that kcat reads. kcat starts at the log start, and waits at the end unless -e is
    given.
    """
    letters = {letter for letter, _ in pairs}
    positions = {"beginning": "--from-beginning", "end": "--offset latest", "stored": ""}
    result: list[str] = []
    for value in (value for letter, value in pairs if letter == "-o"):
        side, _, time = value.rpartition("@")
        option = {"s": "--from-timestamp", "e": "--to-timestamp"}.get(side)
        result += [option, time] if option else positions.get(value, f"--offset {value}").split()
    waits = "-e" not in letters and "--to-timestamp" not in result
    begins = ["--from-beginning"] if waits and not letters & {"-o", "-G"} else []
    return [*begins, *result, *(["--follow"] if waits else [])]
