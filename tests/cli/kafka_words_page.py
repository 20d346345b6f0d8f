"""The page of Kafka's words: `python -m tests.cli.kafka_words_page` writes `docs/reference/kafka-words.md`.

Its rows are the options of Kafka's tools, from `kafka_options.json`, and the answers of `sparklog.console.kafka_words`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from click import Context, Option

from sparklog.console.kafka_words import (
    ACTIONS,
    COMMON,
    KCAT,
    KCAT_MODES,
    PROPERTIES,
    TOOLS,
    WORDS,
    KafkaAnswer,
    command_words,
    option_words,
)
from sparklog.console.terminal import BROKER_OPTIONS, NO_BROKER
from tests.cli.kafka_options import stored
from tests.support.command_line import command_of

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "kafka-words.md"
EVERYWHERE = ("--help", "--version", "--bootstrap-server", "--command-config")
THE_SAME = "the same"
PROPERTY = KafkaAnswer(None, "the same, with the properties below")
HEAD = f"""# Kafka's words

This page lists the equivalent of each option of Kafka's tools and kcat, for scripts that call them. It covers the tools
of Kafka 4.1; a test compares it with their options.

A command line starts with `sparklog` instead of the tool's directory: `sparklog kafka-topics.sh --list` is
`sparklog topics list`, and so is `sparklog topics --list`. If an option has no equivalent, the command prints one line
and exits with code 2. Options without effect are accepted with a note on standard error. All tools have these options:

| option | here |
|---|---|
| `--help` | {THE_SAME} |
| `--bootstrap-server` | {NO_BROKER} |
| `--command-config` | {COMMON["--command-config"].why} |
| `--version` | {COMMON["--version"].why} |

A property whose name ends in a dot is a prefix. A `--topic` of `topics list`, `topics describe`,
`offsets` and `consume` may be a regular expression. It is one if no topic can have such a name: `a.b` is a name.
"""
KCAT_HEAD = """\
If you run a kcat command line, the error is the equivalent command, for you to copy, without client settings.
`-o s@TIME` is `--from-timestamp`, `-o e@TIME` is `--to-timestamp`, other offsets are `--offset`. Without `-e`, kcat
waits for more messages, as `--follow` does. Without `-Z`, it prints nothing for a null, which is `--null-literal ''`.
`-s key=q` is `--key-format long`."""


@cache
def options_of(command: str) -> Mapping[str, bool]:
    """The options of a command here, and whether each takes a value."""
    tree = command_of(command)
    options = [
        option for option in tree.get_params(Context(tree, **tree.context_settings)) if isinstance(option, Option)
    ]
    return {name: not option.is_flag for option in options for name in (*option.opts, *option.secondary_opts)}


def in_our_words(words: Sequence[str]) -> list[str]:
    """The words of a command line, without Kafka's."""
    line = command_words(words)
    for path in (" ".join(line[:2]), line[0]):
        if path in (*WORDS, *(f"{name} {item.words}" for name in ACTIONS for item in ACTIONS[name].values())):
            number = len(path.split())
            return [*line[:number], *option_words(path, line[number:], options_of(path))]
    return line


def commands_of(tool: str) -> list[str]:
    """The commands that do what a tool does, or a command of kafka-transactions."""
    name, _, below = tool.partition(" ")
    command = TOOLS[name]
    actions = ACTIONS.get(command, {})
    if below:
        answers = [actions.get(below, KafkaAnswer(below))]
    else:
        answers = [answer for option, answer in actions.items() if option.startswith("--")]
    return [f"{command} {answer.words}".partition(" --")[0] for answer in answers if answer.words] or [command]


def answer_to(tool: str, option: str) -> KafkaAnswer | None:
    """The answer to an option of a tool; None: a command has it. `KeyError` if there is none."""
    name, _, below = tool.partition(" ")
    actions = ACTIONS.get(TOOLS[name], {})
    if below in actions and actions[below].words is None:
        return actions[below]
    if option in actions:
        return (
            KafkaAnswer(f"sparklog {TOOLS[name]} {actions[option].words}") if actions[option].words else actions[option]
        )
    if option in PROPERTIES.get(TOOLS[name], ()):
        return PROPERTY
    for command in commands_of(tool):
        if option in options_of(command):
            return None
        for table in (WORDS.get(command, {}), WORDS.get(command.partition(" ")[0], {}), COMMON):
            if option in table:
                return table[option]
    if option in BROKER_OPTIONS:
        return KafkaAnswer(None, NO_BROKER)
    raise KeyError(f"{tool} {option}")


def cell(answer: KafkaAnswer | None) -> str:
    """An answer in a table."""
    if answer is None:
        return THE_SAME
    if isinstance(answer.words, Mapping):
        values = {
            value.rpartition(".")[2]: f"`{item}`" if item else "the default" for value, item in answer.words.items()
        }
        return "; ".join([*(f"`{value}`: {item}" for value, item in values.items()), f"else: {answer.why}"])
    if answer.words:
        default = f"; `{answer.value}` without a value" if isinstance(answer.value, str) else ""
        return f"`{answer.words.replace('TEXT', 'VALUE')}`{default}"
    if answer.words == "":
        return f"has no effect: {answer.why}" if answer.why else "the default"
    return answer.why


def rows(answers: Mapping[str, KafkaAnswer | None]) -> Iterator[str]:
    """A table, a row for each answer."""
    options: dict[str, list[str]] = defaultdict(list)
    for option, answer in answers.items():
        options[cell(answer)].append(f"`{option}`")
    yield from ("", "| Kafka's | here |", "|---|---|")
    yield from (f"| {', '.join(names)} | {text} |" for text, names in options.items())


def lines() -> Iterator[str]:
    yield HEAD.rstrip()
    for tool, options in stored().items():
        answers = {option: answer_to(tool, option) for option in options if option not in EVERYWHERE}
        if not answers:
            continue
        name, _, below = tool.partition(" ")
        does = ACTIONS.get(TOOLS[name], {}).get(below, KafkaAnswer(below)).words
        yield from ("", f"## {tool}" if does is None else f"## {tool}: {TOOLS[name]} {does}".rstrip())
        yield from rows(answers)
        for names, table in properties_of(TOOLS[name]):
            yield from ("", f"Properties of {names}:", *rows(table))
    yield from ("", "## kcat", "", KCAT_HEAD)
    for mode, table in KCAT.items():
        letters = [letter for letter, name in KCAT_MODES.items() if name == mode]
        # What has no words is read elsewhere, or left out.
        answers = {letter.rstrip(":"): KafkaAnswer(words) for letter, words in table.items() if words}
        yield from ("", f"`kcat {letters[0]}` is `sparklog {mode}`:", *rows(answers))
    yield ""


def properties_of(command: str) -> list[tuple[str, Mapping[str, KafkaAnswer]]]:
    """The properties of a command, each table with the options that take it."""
    tables = PROPERTIES.get(command, {})
    unique = {id(table): table for table in tables.values()}
    names = [" and ".join(f"`{name}`" for name, item in tables.items() if item is table) for table in unique.values()]
    return list(zip(names, unique.values(), strict=True))


def page() -> str:
    return "\n".join(lines())


if __name__ == "__main__":
    PAGE.write_text(page())
