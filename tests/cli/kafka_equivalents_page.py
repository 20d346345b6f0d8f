"""Generates the page of Kafka's options: `python -m tests.cli.kafka_equivalents_page` writes
`docs/reference/kafka-words.md`.

The rows are the options of Kafka's tools, from `kafka_options.json`, and the equivalents in
`sparklog.console.kafka_equivalents`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from click import Context, Option

from sparklog.console.kafka_equivalents import (
    ACTIONS,
    COMMON,
    KCAT,
    KCAT_MODES,
    PROPERTIES,
    TOOLS,
    WORDS,
    Equivalent,
    translate_command,
    translate_options,
)
from sparklog.console.terminal import BROKER_OPTIONS, NO_BROKER
from tests.cli.kafka_options import stored
from tests.support.command_line import command_of

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "kafka-words.md"
EVERYWHERE = ("--help", "--version", "--bootstrap-server", "--command-config")
THE_SAME = "the same"
PROPERTY = Equivalent(None, "the same, with the properties below")
HEAD = f"""# Options of Kafka's tools

This page lists sparklog's equivalent of each option of Kafka's tools and of kcat, for use in scripts that call them. It
covers the tools of Kafka 4.1; a test compares it with their options.

A command line starts with `sparklog` instead of the tool's directory: both `sparklog kafka-topics.sh --list` and
`sparklog topics --list` are `sparklog topics list`. If an option has no equivalent, the command fails with a one-line
error and exit code 2. Options that have no effect are accepted with a note on stderr. All tools have these options:

| Option | sparklog |
|---|---|
| `--help` | {THE_SAME} |
| `--bootstrap-server` | {NO_BROKER} |
| `--command-config` | {COMMON["--command-config"].reason} |
| `--version` | {COMMON["--version"].reason} |

A property name that ends in a dot stands for all properties with this prefix. For `topics list`, `topics describe`,
`offsets` and `consume`, `--topic` can be a regular expression. A value that is a valid topic name, such as `a.b`, is
always a name.
"""
KCAT_HEAD = """\
If you pass a kcat command line to sparklog, the error message contains the equivalent command to copy, without client
settings. `-o s@TIME` is `--from-timestamp`, `-o e@TIME` is `--to-timestamp`, and other offsets are `--offset`. Without
`-e`, kcat waits for more messages, like `--follow`. Without `-Z`, kcat prints nothing for a null value, like
`--null-literal ''`. `-s key=q` is `--key-format long`."""


@cache
def options_of(command: str) -> Mapping[str, bool]:
    """Return the options of a sparklog command, and whether each option takes a value."""
    tree = command_of(command)
    options = [
        option for option in tree.get_params(Context(tree, **tree.context_settings)) if isinstance(option, Option)
    ]
    return {name: not option.is_flag for option in options for name in (*option.opts, *option.secondary_opts)}


def in_sparklog_terms(words: Sequence[str]) -> list[str]:
    """Return the arguments of a command line after the translation of Kafka's options."""
    line = translate_command(words)
    for path in (" ".join(line[:2]), line[0]):
        if path in (*WORDS, *(f"{name} {item.arguments}" for name in ACTIONS for item in ACTIONS[name].values())):
            number = len(path.split())
            return [*line[:number], *translate_options(path, line[number:], options_of(path))]
    return line


def commands_of(tool: str) -> list[str]:
    """Return the commands that correspond to a tool, or to a command of kafka-transactions."""
    name, _, below = tool.partition(" ")
    command = TOOLS[name]
    actions = ACTIONS.get(command, {})
    if below:
        equivalents = [actions.get(below, Equivalent(below))]
    else:
        equivalents = [equivalent for option, equivalent in actions.items() if option.startswith("--")]
    return [
        f"{command} {equivalent.arguments}".partition(" --")[0] for equivalent in equivalents if equivalent.arguments
    ] or [command]


def equivalent_of(tool: str, option: str) -> Equivalent | None:
    """Return the equivalent of an option of a tool, or None if a command has the option. Raises `KeyError` if there is
    no entry.
    """
    name, _, below = tool.partition(" ")
    actions = ACTIONS.get(TOOLS[name], {})
    if below in actions and actions[below].arguments is None:
        return actions[below]
    if option in actions:
        return (
            Equivalent(f"sparklog {TOOLS[name]} {actions[option].arguments}")
            if actions[option].arguments
            else actions[option]
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
        return Equivalent(None, NO_BROKER)
    raise KeyError(f"{tool} {option}")


def cell(equivalent: Equivalent | None) -> str:
    """Return the table cell of an equivalent."""
    if equivalent is None:
        return THE_SAME
    if isinstance(equivalent.arguments, Mapping):
        values = {
            value.rpartition(".")[2]: f"`{item}`" if item else "the default"
            for value, item in equivalent.arguments.items()
        }
        return "; ".join([*(f"`{value}`: {item}" for value, item in values.items()), f"otherwise: {equivalent.reason}"])
    if equivalent.arguments:
        default = f"; `{equivalent.value}` without a value" if isinstance(equivalent.value, str) else ""
        return f"`{equivalent.arguments.replace('TEXT', 'VALUE')}`{default}"
    if equivalent.arguments == "":
        return f"has no effect: {equivalent.reason}" if equivalent.reason else "the default"
    return equivalent.reason


def rows(equivalents: Mapping[str, Equivalent | None]) -> Iterator[str]:
    """Return a table with a row for each equivalent."""
    options: dict[str, list[str]] = defaultdict(list)
    for option, equivalent in equivalents.items():
        options[cell(equivalent)].append(f"`{option}`")
    yield from ("", "| Kafka | sparklog |", "|---|---|")
    yield from (f"| {', '.join(names)} | {text} |" for text, names in options.items())


def lines() -> Iterator[str]:
    yield HEAD.rstrip()
    for tool, options in stored().items():
        equivalents = {option: equivalent_of(tool, option) for option in options if option not in EVERYWHERE}
        if not equivalents:
            continue
        name, _, below = tool.partition(" ")
        does = ACTIONS.get(TOOLS[name], {}).get(below, Equivalent(below)).arguments
        yield from ("", f"## {tool}" if does is None else f"## {tool}: {TOOLS[name]} {does}".rstrip())
        yield from rows(equivalents)
        for names, table in properties_of(TOOLS[name]):
            yield from ("", f"Properties of {names}:", *rows(table))
    yield from ("", "## kcat", "", KCAT_HEAD)
    for mode, table in KCAT.items():
        letters = [letter for letter, name in KCAT_MODES.items() if name == mode]
        # A property without an equivalent is read in another way, or ignored.
        equivalents = {letter.rstrip(":"): Equivalent(words) for letter, words in table.items() if words}
        yield from ("", f"`kcat {letters[0]}` is `sparklog {mode}`:", *rows(equivalents))
    yield ""


def properties_of(command: str) -> list[tuple[str, Mapping[str, Equivalent]]]:
    """Return the properties of a command. Each table is preceded by the options that accept the properties."""
    tables = PROPERTIES.get(command, {})
    unique = {id(table): table for table in tables.values()}
    names = [" and ".join(f"`{name}`" for name, item in tables.items() if item is table) for table in unique.values()]
    return list(zip(names, unique.values(), strict=True))


def page() -> str:
    return "\n".join(lines())


if __name__ == "__main__":
    PAGE.write_text(page())
