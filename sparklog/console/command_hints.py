"""Commands and options of other tools, and their equivalents in sparklog.

The tables are required because a suggestion that is based on the edit distance can be wrong. For example, `serve
--port` resembles `--metrics-port`, but means `--listen`. A name that is not in the tables is suggested only if it is
nearly the same as the unknown name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches

MIN_SIMILARITY = 0.8
"""The similarity ratio of difflib for two names that differ in one or two missing, added or swapped letters."""

FOLLOW, WRITE = "consume TOPIC --follow", "produce TOPIC"
COMMANDS: Mapping[str, str] = {
    **dict.fromkeys(("ls", "list", "topic"), "topics list"),
    **dict.fromkeys(("describe", "info", "show", "inspect"), "topics describe TOPIC"),
    **dict.fromkeys(("create", "mk", "new", "init"), "topics create TOPIC"),
    **dict.fromkeys(("delete", "rm", "drop", "remove"), "topics delete TOPIC"),
    "alter": "topics alter TOPIC, or sparklog configs alter TOPIC",
    **dict.fromkeys(("cat", "read", "scan", "query", "fetch"), "consume TOPIC"),
    **dict.fromkeys(("tail", "follow", "watch", "listen", "subscribe"), FOLLOW),
    "head": "consume TOPIC --max-messages 10",
    **dict.fromkeys(("write", "send", "publish", "append", "put", "insert"), WRITE),
    **dict.fromkeys(("group", "consumers", "consumer-groups"), "groups list"),
    "lag": "groups describe --all-groups",
    **dict.fromkeys(("config", "set"), "configs alter TOPIC"),
    **dict.fromkeys(("server", "start", "run", "broker", "listen"), "serve"),
    **dict.fromkeys(("size", "du", "stats"), "log-dirs"),
    **dict.fromkeys(("status", "health", "ping"), "doctor --root PATH"),
    **dict.fromkeys(("check", "fsck", "validate"), "verify"),
    **dict.fromkeys(("fix", "recover"), "repair"),
    **dict.fromkeys(("vacuum", "expire", "clean", "cleanup", "gc", "purge"), "retain"),
    **dict.fromkeys(("optimize", "merge", "seal", "rewrite"), "compact"),
    **dict.fromkeys(("log", "versions"), "history TOPIC"),
    "dump": "dump-log FILE",
    **dict.fromkeys(("cp", "copy", "branch", "snapshot"), "clone TOPIC NEW-NAME"),
    **dict.fromkeys(("ui", "dashboard"), "report --html FILE"),
    **dict.fromkeys(("bench", "benchmark"), "perf produce"),
    "version": "--version",
    "man": "conf sparklog.1",
    "cron": "conf crontab",
}
"""Maps a command of another tool to the equivalent arguments of `sparklog`."""
SUBCOMMANDS = {
    "ls": "list",
    **dict.fromkeys(("show", "info", "get"), "describe"),
    **dict.fromkeys(("rm", "remove", "drop"), "delete"),
    **dict.fromkeys(("set", "update", "change"), "alter"),
    **dict.fromkeys(("new", "add"), "create"),
}
"""Maps a subcommand of another tool to a subcommand of a group such as `topics`."""

ROOT = "--root PATH is the location of the topics"
ENDS = "consume stops at the log end unless you use --follow"
LIMIT = "--max-messages N, or -n N"
SPARK = "Spark starts with its defaults; on a cluster, run the job with spark-submit (docs/guides/cluster.md)"
KCAT = "kcat's modes are commands: sparklog consume, produce, topics describe"
NO_PROMPT = "the command does not ask for confirmation: omit the option"
OPTIONS: Mapping[str, Mapping[str, str]] = {
    "": {
        **dict.fromkeys(("--path", "--dir", "--location", "--data-dir", "--log-dir"), ROOT),
        **dict.fromkeys(("--master", "--deploy-mode", "--executor-memory", "--packages", "--jars", "--conf"), SPARK),
        "--verbose": "-v",
        **dict.fromkeys(("--yes", "-y"), NO_PROMPT),
    },
    "consume": {
        **dict.fromkeys(("--tail", "--last"), "--offset -N starts N records before the end; --follow waits for more"),
        **dict.fromkeys(("-e", "--exit", "--no-follow"), ENDS),
        **dict.fromkeys(("-c", "--count", "--limit", "--lines", "--head", "--num-records"), LIMIT),
        **dict.fromkeys(("--since", "--from", "--start", "--start-time"), "--from-timestamp TIME, or --offset N"),
        **dict.fromkeys(("--until", "--end", "--end-time"), "--to-timestamp TIME, or --to-offset N"),
        **dict.fromkeys(("--latest", "--from-end", "--from-latest"), "--offset latest"),
        **dict.fromkeys(("--earliest", "--from-start"), "--from-beginning"),
        **dict.fromkeys(("--filter", "--grep"), "--key KEY selects records by key; pipe to grep to search values"),
        **dict.fromkeys(("-C", "-P", "-L"), KCAT),
    },
    "produce": {
        **dict.fromkeys(("-C", "-P", "-L"), KCAT),
        **dict.fromkeys(
            ("--message", "--value", "--data", "-m"),
            "values are lines of standard input: echo 'value' | sparklog produce TOPIC",
        ),
        "--key": "keys are part of the lines: --key-separator : reads key:value",
    },
    "serve": {
        **dict.fromkeys(("--port", "-p", "--host", "--bind", "--address", "--listeners"), "--listen HOST:PORT"),
        "--advertised-listeners": "--advertise HOST:PORT",
        "--read-only": "without --writable the server is read-only",
    },
    "metrics": {
        **dict.fromkeys(
            ("--port", "--listen", "--host"),
            "metrics writes a file (--output-file) for the node exporter; `sparklog serve --metrics-port` serves HTTP",
        ),
        "--json": "`sparklog report --json` prints the same figures as JSON",
    },
    "topics": {
        "--force": NO_PROMPT,
        "--config": "to change existing topics, use `sparklog configs alter TOPIC --add-config NAME=VALUE`",
    },
    "groups": {"--to-beginning": "--to-earliest", "--to-end": "--to-latest"},
}
"""Maps a command to the options of other tools and their hints. The key may also be the first word of a command, or
empty for all commands.
"""

ARGUMENTS = {
    "topics delete": "specify one topic, or --pattern 'A|B' with --execute",
    "topics create": "specify one topic",
    "topics alter": "specify one topic",
    "configs alter": (
        "specify one topic, or --pattern 'A|B' with --execute, and set configs with --add-config NAME=VALUE"
    ),
    "history": "specify one topic",
    **dict.fromkeys(
        ("verify", "repair", "report", "metrics", "jobs", "doctor"), "specify the root with --root LOCATION"
    ),
}
"""Maps a command to the hint that is printed if the command has too many arguments."""


def command_hint(group: str, word: str, commands: Collection[str]) -> str:
    """Return a hint for an unknown command of a group, or an empty string. The group is empty for commands of
    `sparklog`.
    """
    if not group and word in COMMANDS:
        return f"Use sparklog {COMMANDS[word]}."
    if group and SUBCOMMANDS.get(word, "") in commands:
        return f"Use sparklog {group} {SUBCOMMANDS[word]}."
    return _similar_name_hint(word, commands)


def option_hint(command: str, option: str, options: Iterable[str]) -> str:
    """Return a hint for an unknown option of a command such as `topics alter`. The command is empty for `sparklog`
    itself.
    """
    for name in (command, command.partition(" ")[0], ""):
        if option in OPTIONS.get(name, {}):
            text = OPTIONS[name][option]
            return f"Use {text}." if text.startswith("-") else f"{text[0].upper()}{text[1:]}."
    return _similar_name_hint(option, options) if len(option) > len("-x") else ""


def _similar_name_hint(word: str, names: Iterable[str]) -> str:
    near = get_close_matches(word, list(names), n=1, cutoff=MIN_SIMILARITY)
    return f"Did you mean '{near[0]}'?" if near else ""
