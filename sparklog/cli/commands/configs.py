"""The command `sparklog configs`, which describes, alters and explains topic configs and root defaults."""

from __future__ import annotations

import re
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from click import BadParameter

from sparklog.common.units import with_span
from sparklog.console import options as opt
from sparklog.console.locations import open_root, open_source
from sparklog.console.parameters import Argument, Commands, Option
from sparklog.console.terminal import Output, print_lines, read_text
from sparklog.errors import BadRequest, NotFound, SparklogError

if TYPE_CHECKING:
    from sparklog.log.state.configs import TopicConfigs
    from sparklog.log.state.root_defaults import RootDefaults
    from sparklog.log.state.topic_state import TopicState
    from sparklog.log.topic.root import Root
    from sparklog.log.topic.topic import Topic
    from sparklog.maintenance.properties import ConfigDoc

app = Commands("configs", "Describe, alter and explain topic configs and root defaults.")
RootDefaultsOption = Annotated[
    bool,
    Option(
        "--root-defaults",
        excludes="TOPIC --topic",
        why="defaults belong to the root, not to a topic",
        help="Use the root defaults instead of the configs of a topic. Root defaults have the names of broker configs.",
    ),
]

# As in Kafka, a comma inside brackets does not separate two configs.
_COMMA = re.compile(r",(?=[^\]]*(?:\[|$))")


@app.add(
    "describe",
    "sparklog configs describe orders --root /data/log --all",
    "sparklog configs describe --root-defaults --root /data/log",
)
def describe(
    root: opt.SourceOption,
    *,
    topics: opt.Topics,
    everything: Annotated[
        bool, Option("--all", help="Print all configs, including configs with their built-in default.")
    ] = False,
    root_defaults: RootDefaultsOption = False,
) -> Output:
    """Describe topic configs or root defaults.

    Shows the value of each config, the source of the value, and the default that applies if you delete the config.
    """
    from sparklog.log.state.configs import DEFAULT_CONFIG
    from sparklog.log.state.description import describe_configs

    source = open_source(root)
    if source.root is None:
        raise BadRequest(f"{source.view.location} is a Kafka directory, which does not contain configs: specify a root")
    log = source.root
    defaults = log.defaults()
    if root_defaults:
        return _root_configs(defaults, everything)
    configs_of = source.each(topics.names, lambda name: (name, describe_configs(name, _head(log, name), defaults)))
    columns = ("name", "value", "source", "default")
    rows = [
        {"topic": name} | {column: getattr(config, column) for column in columns}
        for name, configs in configs_of
        for config in configs
        if everything or config.source != DEFAULT_CONFIG
    ]
    names = [name for name, _ in configs_of]
    return Output(rows, lambda: _show(names, rows, everything), source.failures)


def _head(log: Root, name: str) -> TopicState:
    from sparklog.log.journal.names import check_topic_name

    try:
        # Read only the configs, so that modules that read and write records are not imported.
        return log.engine.log(check_topic_name(name)).existing().topic_state
    except NotFound:
        # Raise an error that suggests similar names.
        return log.topic(name).log.state()


def _show(names: list[str], rows: list[dict[str, str]], everything: bool) -> None:
    for name in names:
        mine = [row for row in rows if row["topic"] == name]
        print(f"{'All' if everything else 'Dynamic'} configs for topic {name} are:{'' if mine else ' none'}")
        for row in mine:
            print(_line(row))


def _line(row: dict[str, str]) -> str:
    name, value = row["name"], with_span(row["name"], row["value"])
    default = "" if row["default"] == row["value"] else f", default {with_span(name, row['default']) or 'empty'}"
    source = "" if row["source"] == "DEFAULT_CONFIG" else f"  ({row['source']}{default})"
    return f"  {name}={value}{source}"


def _change(row: dict[str, str]) -> str:
    before, after = (with_span(row["name"], row[when]) or "empty" for when in ("before", "after"))
    return f"  {row['name']}: {before} -> {after}"


def _root_configs(defaults: RootDefaults, everything: bool) -> Output:
    rows = [asdict(row) for row in defaults.rows() if everything or row.source != "DEFAULT_CONFIG"]
    patterns = dict.fromkeys(row["pattern"] for row in rows)

    def show() -> None:
        for pattern in patterns or [None]:
            mine = [row for row in rows if row["pattern"] == pattern]
            whose = "for the root" if pattern is None else f"for topics {pattern}"
            print(f"{'All' if everything else 'Dynamic'} default configs {whose} are:{'' if mine else ' none'}")
            print_lines(map(_line, mine))

    return Output(rows, show)


@app.add(
    "alter",
    "sparklog configs alter orders --root /data/log --add-config cleanup.policy=[compact,delete],retention.ms=-1",
    "sparklog configs alter --root-defaults --root /data/log --add-config num.partitions=4,log.retention.hours=72",
)
def alter(
    root: opt.RootOption,
    *,
    topic: opt.TopicOrPattern,
    add_config: Annotated[
        list[str] | None,
        Option(
            metavar="NAME=VALUE,...",
            help="Configs to set. Use square brackets for a value that contains commas, such as NAME=[a,b]. May"
            " be repeated.",
        ),
    ] = None,
    add_config_file: Annotated[
        Path | None, Option(help="File with the configs to set, one NAME=VALUE per line.")
    ] = None,
    delete_config: Annotated[
        list[str] | None,
        Option(metavar="NAME,...", help="Names of the configs to reset to their defaults. May be repeated."),
    ] = None,
    force: Annotated[
        bool, Option(help="Allow a change even if files in use, or records without a key, may then be deleted.")
    ] = False,
    root_defaults: RootDefaultsOption = False,
) -> Output:
    """Set or delete configs of a topic, or root defaults.

    All changes to a topic are made in one commit. If --pattern is given, the command only prints the changes to each
    topic. Add --execute to make the changes, in one commit per topic. If --root-defaults is given, the pattern selects
    the topics to which the defaults apply, and the defaults are set immediately.
    """
    changes = _changes(add_config, add_config_file, delete_config)
    log = open_root(root)
    if root_defaults:
        return _altered_defaults(log, topic, changes, force)
    executes = topic.executes
    altered = [
        _Alteration(item, item.log.state(), item.log.read_configs(), item.plan_alter(configs=changes, force=force))
        for item in map(log.topic, topic.matching(log.topics, log.location))
    ]
    documents: list[dict[str, object]] = []
    lines: list[str] = []
    failures: list[SparklogError] = []
    for item in altered:
        try:
            if executes:
                item.topic.alter(configs=changes, force=force, since=item.state)
        except SparklogError as error:
            if topic.pattern is None:
                raise
            failures.append(error)
            continue
        rows, name = item.rows(), item.topic.name
        lines += map(_change, rows)
        done = f"Completed updating config for topic {name}." if rows else f"Topic {name} already has this config."
        would = f"Would {'change' if rows else 'not change'} the config of topic {name}."
        lines.append(done if executes else would)
        documents.append({"topic": name, "dryRun": not executes, "changes": rows})
    if topic.pattern is None:
        return Output.from_lines(documents[0], *lines)
    lines += [] if executes else ["Nothing was changed; add --execute to make the changes."]
    return Output.from_lines(documents, *lines, failures=failures)


def _altered_defaults(log: Root, topic: opt.TopicOrPattern, changes: dict[str, str | None], force: bool) -> Output:
    before, pattern = log.defaults(), topic.pattern
    if topic.dry_run:
        after = before.changed(changes, pattern, force=force)
    else:
        after = log.alter_defaults(changes, pattern=pattern, force=force)
    values = ({(row.pattern, row.name): row.value for row in item.rows()} for item in (before, after))
    old, new = ({name: rows.get((pattern, name), "") for name in changes} for rows in values)
    rows = [{"name": name, "before": old[name], "after": new[name]} for name in sorted(changes)]
    lines = [_change(row) for row in rows]
    whose = "the root" if pattern is None else f"topics {pattern}"
    done = "Would update" if topic.dry_run else "Completed updating"
    document = {"pattern": pattern, "dryRun": topic.dry_run, "changes": rows}
    return Output.from_lines(document, *lines, f"{done} default configs for {whose}.")


@dataclass
class _Alteration:
    """The planned changes to the configs of a topic, for a given state of the topic."""

    topic: Topic
    state: TopicState
    before: TopicConfigs
    planned: dict[str, str | None]

    def rows(self) -> list[dict[str, str]]:
        before, after = self.before, self.before.changed(self.planned)
        return [{"name": key, "before": before.text(key), "after": after.text(key)} for key in sorted(self.planned)]


@app.add("docs", "sparklog configs docs retention.ms")
def docs(
    names: Annotated[
        list[str] | None,
        Argument(metavar="[NAME]...", help="Names of the configs to explain. By default, all configs are explained."),
    ] = None,
    markdown: Annotated[bool, Option(help="Print the Markdown source of the page docs/reference/configs.md.")] = False,
) -> Output:
    """Explain topic configs and maintenance properties."""
    from sparklog.maintenance.properties import config_docs, markdown_config_docs, one_config_doc

    docs = [one_config_doc(name) for name in names] if names else config_docs()
    text = markdown_config_docs() if markdown else "\n\n".join(_shown(doc) for doc in docs) + "\n"
    return Output([doc.document() for doc in docs], lambda: sys.stdout.write(text))


def _shown(doc: ConfigDoc) -> str:
    row = doc.setting
    unit = f" ({row.unit})" if row.unit else ""
    used_by = ", ".join(row.used_by) or "no command"
    lines = [
        f"{row.name}  {doc.scope}, {row.type.name}{unit}",
        f"  {row.doc}",
        f"  default {row.default_text or 'none'}; {row.type.valid}; used by {used_by}",
    ]
    return "\n".join([*lines, f"  Kafka 4.1: {row.kafka}"] if row.kafka else lines)


def _changes(added: list[str] | None, file: Path | None, deleted: list[str] | None) -> dict[str, str | None]:
    """Return the new value of each config to alter, or None for a config to delete. Raises a usage error if the options
    contradict each other.
    """
    changes: dict[str, str | None] = {}
    if file is not None:
        from sparklog.maintenance.properties import parse_properties

        text = read_text(file, "--add-config-file")
        changes.update({entry.name: entry.value for entry in parse_properties(text, str(file))})
    for text in added or []:
        for item in _COMMA.split(text):
            if not item.strip():
                problem = f"expected NAME=VALUE,..., found an empty item in {text!r}"
                raise BadParameter(problem, param_hint="'--add-config'")
            name, value = opt.name_and_value(item, "--add-config", "NAME=VALUE,...")
            changes[name] = value.removeprefix("[").removesuffix("]").strip()
    for name in opt.comma_separated(deleted):
        if name in changes:
            raise BadParameter(
                f"{name} is both set and deleted: remove one of the options", param_hint="'--delete-config'"
            )
        changes[name] = None
    if not changes:
        raise BadParameter("nothing to alter: specify --add-config, --add-config-file or --delete-config")
    return changes
