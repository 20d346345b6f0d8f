"""Command lines of Kafka's tools and of kcat, read with the answers of `kafka_words`.

Where an answer is words, they take the place of Kafka's before a command reads its options. Where it is not, a usage
error of one line names the command that does it, or says why there is none. To kcat the answer is the whole command.
"""

from __future__ import annotations

import shlex
from collections import deque
from collections.abc import Mapping, Sequence
from getopt import GetoptError, gnu_getopt

from click import UsageError

from sparklog.cli.kafka_words import (
    ACTIONS,
    COMMON,
    KCAT,
    KCAT_MODES,
    KCAT_NUMBERS,
    PROPERTIES,
    READER,
    TOOLS,
    WORDS,
    KafkaAnswer,
)
from sparklog.cli.terminal import warn


def command_words(words: Sequence[str]) -> list[str]:
    """Return a command line that begins with a command of sparklog: it may be a tool's name, or have its `--list`."""
    if not words:
        return []
    first, *rest = words
    if first in ("kcat", "kafkacat") or first[:2] in KCAT_MODES:
        raise UsageError(f"the words of kcat are other ones here: {_of_kcat(rest if first[0] == 'k' else words)}")
    line = [*TOOLS.get(first.removesuffix(".sh"), first).split(), *rest]
    actions = ACTIONS.get(line[0])
    if actions is None or not (line[1:2] and (line[1] in actions or line[1].startswith("-"))):
        return line
    answers = {**COMMON, **actions}
    index = next((index for index, word in enumerate(line) if word in answers), 0)
    if not index:
        return line
    word = line.pop(index)
    return [line[0], *_in_place(word, answers[word], ""), *line[1:]]


def option_words(command: str, words: Sequence[str], options: Mapping[str, bool]) -> list[str]:
    """Return the words after a command with its own options in place of Kafka's.

    `options`: those it has, and whether each takes the next word as its value.
    """
    tool = command if command in WORDS else command.partition(" ")[0]
    if tool not in WORDS:
        return list(words)
    answers = {**COMMON, **WORDS.get(command.partition(" ")[0], {}), **WORDS[tool]}
    tables = PROPERTIES.get(command, {})
    properties: dict[str, dict[str, str]] = {}
    result: list[str] = []
    rest = deque(words)
    while rest and rest[0] != "--":
        word = rest.popleft()
        name, equals, text = word.partition("=")
        if name in options or not (name in answers or name in tables):
            result.append(word)
            if options.get(name) and not equals and rest:
                result.append(rest.popleft())
        elif name in tables:
            text = text if equals else _value_of(name, KafkaAnswer(""), rest)
            key, is_pair, value = text.partition("=")
            if not is_pair:
                raise UsageError(f"{name}: expected NAME=VALUE, found {text!r}")
            first = next(option for option in tables if tables[option] is tables[name])
            properties.setdefault(first, {})[key.strip()] = value
        else:
            value = text if equals else _value_of(name, answers[name], rest)
            result += _in_place(f"{name} {value}".strip(), answers[name], value)
    front = [word for option, pairs in properties.items() for word in _of_properties(option, tables[option], pairs)]
    return [*front, *result, *rest]


def _value_of(option: str, answer: KafkaAnswer, rest: deque[str]) -> str:
    """Take the value of an option from the words after it."""
    if answer.words is None or answer.value is False:
        return ""
    if isinstance(answer.value, str) and (not rest or rest[0].startswith("-")):
        return answer.value
    if not rest:
        raise UsageError(f"Option '{option}' requires an argument.")
    return rest.popleft()


def _in_place(shown: str, answer: KafkaAnswer, value: str) -> list[str]:
    """Return the words in place of `shown`, with a note on stderr where it changes nothing. `UsageError`: none are."""
    words = answer.words
    if isinstance(words, Mapping):
        words = words.get(value.strip(), words.get(value.strip().lower()))
    elif not words and words is not None and answer.why:
        warn(f"{shown} changes nothing: {answer.why}")
    if words is None:
        raise UsageError(f"{shown}: {answer.why}")
    return _words_of(words, value)


def _words_of(words: str, value: str) -> list[str]:
    values = {"VALUE": value, "TEXT": value.replace("\\", "\\\\")}
    return [values.get(word, word) for word in words.split()]


def _of_properties(option: str, table: Mapping[str, KafkaAnswer], pairs: dict[str, str]) -> list[str]:
    if table is READER and pairs.get("parse.key", "").strip().lower() == "true":
        pairs.setdefault("key.separator", "\t")
    elif table is READER:
        # Kafka does not look at it then.
        pairs.pop("key.separator", None)
    result = []
    for name, value in pairs.items():
        entry = next((entry for entry in table if entry == name or (entry[-1] == "." and name.startswith(entry))), None)
        if entry is None:
            raise UsageError(f"{option}: expected one of {', '.join(table)}, found {name}")
        result += _in_place(f"{option} {name}={value}", table[entry], value)
    return result


def _of_kcat(words: Sequence[str]) -> str:
    """Return the command line that does what kcat does."""
    try:
        pairs, arguments = gnu_getopt(
            list(words), "CPLQs:" + "".join(letter[1:] for table in KCAT.values() for letter in table)
        )
    except GetoptError as error:
        raise UsageError(f"kcat: {error}; see `sparklog consume --help`") from None
    mode = next((KCAT_MODES[letter] for letter, _ in pairs if letter in KCAT_MODES), "consume")
    result: list[str] = []
    for letter, value in pairs:
        here = KCAT[mode].get(letter, KCAT[mode].get(f"{letter}:"))
        part, _, number = value.partition("=")
        if letter == "-s" and number in KCAT_NUMBERS:
            here = f"--{part}-format {KCAT_NUMBERS[number]}"
        elif letter == "-t" and value.count(":") == 2:
            value, _, time = value.rpartition(":")
            here = f"{here} --time {time}"
        elif here is None and letter not in KCAT_MODES:
            raise UsageError(f"kcat {letter}: `sparklog {mode}` has no word for it; see its --help")
        result += _words_of(here or "", value)
    if mode == "consume":
        result += [*_extent(pairs), *arguments]
    elif mode == "produce" and arguments:
        result += ["--file", arguments[0]]
    return shlex.join(["sparklog", *mode.split(), *result])


def _extent(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Return where kcat begins and ends to read: from the log start on, and it waits at the end without -e."""
    letters = {letter for letter, _ in pairs}
    places = {"beginning": "--from-beginning", "end": "--offset latest", "stored": ""}
    result: list[str] = []
    for value in (value for letter, value in pairs if letter == "-o"):
        side, _, time = value.rpartition("@")
        option = {"s": "--from-timestamp", "e": "--to-timestamp"}.get(side)
        result += [option, time] if option else places.get(value, f"--offset {value}").split()
    waits = "-e" not in letters and "--to-timestamp" not in result
    begins = ["--from-beginning"] if waits and not letters & {"-o", "-G"} else []
    return [*begins, *result, *(["--follow"] if waits else [])]
