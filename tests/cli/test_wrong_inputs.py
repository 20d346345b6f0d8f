"""Wrong inputs of a first day: each is answered by one line that says what is wrong and what to do."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click import Context, Group

import sparklog as library
from sparklog.cli.foreign_words import COMMANDS, OPTIONS
from sparklog.errors import NotFound
from sparklog.log.topic.root import written_topic
from tests.support.command_line import command_of, invoke


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a root `r` of two topics, and files that the inputs name."""
    folder = tmp_path_factory.mktemp("place")
    root = library.open(folder / "r", create=True)
    root.create_topic("orders", partitions=3).append({"key": ["a"], "value": ["1"]})
    root.create_topic("clicks", configs={"cleanup.policy": "compact"})
    return folder


def answer(place: Path, line: str, code: int) -> str:
    """What a wrong command line is answered: one line on stderr, and nothing else."""
    words = shlex.split(line.format(p=place, r=place / "r"))
    result = invoke(words, {"SPARKLOG_ROOT": str(place / "r")})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    last = result.stderr.splitlines()[-1]
    assert last.startswith("sparklog")
    return last


@pytest.mark.parametrize(
    "line",
    [
        "topics delete nosuch",
        "topics describe nosuch",
        "topics alter nosuch -p 9",
        "configs describe nosuch",
        "configs alter nosuch --add-config retention.ms=1000",
        "consume nosuch",
        "get nosuch -k a",
        "table nosuch",
        "offsets nosuch",
        "delete-records nosuch -p 0 -o 0",
        "log-dirs nosuch",
        "history nosuch",
        "clone nosuch x",
        "export nosuch --to {p}/exported",
        "backup --to {p}/backups --topic nosuch",
        "repartition nosuch --to x -p 2",
        "groups reset g --topic nosuch --to-earliest",
        "perf consume --topic nosuch --messages 1",
        "report --topic nosuch --json",
        "metrics --topic nosuch",
        "jobs --topic nosuch",
        "compact --topic nosuch",
        "retain --topic nosuch",
    ],
)
def test_a_missing_topic_is_answered_with_those_that_exist(place: Path, line: str) -> None:
    says = f"topic 'nosuch' does not exist in {place}/r; the topics are clicks, orders [SPARKLOG_NOT_FOUND]"
    assert answer(place, line, 1).endswith(says)


def test_a_missing_topic_of_many_or_none_is_answered_with_some(tmp_path: Path) -> None:
    root = library.open(tmp_path / "r", create=True)
    assert "does not exist in" in answer(tmp_path, "consume x", 1)
    assert "; it has no topics [" in answer(tmp_path, "consume x", 1)
    for number in range(6):
        root.create_topic(f"topic-{number}")
    some = "topic-0, topic-1, topic-2, topic-3, topic-4"
    assert f"; it has topics such as {some} [" in answer(tmp_path, "consume x", 1)


def test_python_is_told_of_python(place: Path) -> None:
    root = library.open(place / "r")
    ensure = r"the topics are clicks, orders; root.ensure_topic\('nosuch'\) creates it$"
    for call in (lambda: root.topic("nosuch"), lambda: root.delete_topic("nosuch")):
        with pytest.raises(NotFound, match=ensure):
            call()


def test_a_root_without_auto_creation_says_how_to_create(tmp_path: Path) -> None:
    root = library.open(tmp_path / "r", create=True)
    root.alter_defaults({"auto.create.topics.enable": "false"})
    with pytest.raises(NotFound, match=r"lets no writer create it; create it: root.create_topic\('x'\)"):
        written_topic(root, "x")
    (tmp_path / "lines").write_text("a\n")
    command = f"create it: sparklog topics create x --root {tmp_path}/r ["
    assert command in answer(tmp_path, "produce x --file {p}/lines", 1)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("version", "No such command 'version'. Use sparklog --version."),
        ("ls", "Use sparklog topics list."),
        ("create x", "Use sparklog topics create TOPIC."),
        ("tail x", "Use sparklog consume TOPIC --follow."),
        ("topics ls", "Use sparklog topics list."),
        ("groups rm g", "Use sparklog groups delete."),
        ("frobnicate", "No such command 'frobnicate'. (see"),
        ("cosnume orders", "Did you mean 'consume'?"),
        ("topics lst", "Did you mean 'list'?"),
        ("--root {r} topics list", "It goes after the command: sparklog topics list --root ..."),
        ("serve {r} --port 24020", "No such option '--port'. Use --listen HOST:PORT."),
        ("compact --master local[2]", "run the job by spark-submit"),
        ("metrics --port 9", "Metrics writes a file (--output-file)"),
        ("consume orders --tail 5", "Use --offset -N starts N records before the end"),
        ("consume orders -e", "Consume ends at the log end; --follow goes on."),
        ("consume orders -C", "Kcat's modes are commands"),
        ("consume orders -o beginning", "found 'beginning': that is earliest here"),
        ("consume orders -o end", "found 'end': that is latest here"),
        ("consume orders --max-mesages 3", "Did you mean '--max-messages'?"),
        ("consume orders --colour", "No such option '--colour'. (see"),
        ("topics alter orders --partitions 5 --config a=b", "`sparklog configs alter TOPIC --add-config"),
        ("topics delete orders clicks", "one topic at a time, or --pattern 'A|B' with --execute"),
        ("serve {r} --root {r}", "give --root or LOCATION, not both"),
    ],
)
def test_words_of_other_tools_are_answered_with_what_they_are_here(place: Path, line: str, says: str) -> None:
    assert says in answer(place, line, 2)


def test_help_is_a_word_too_and_topics_may_have_commas(place: Path) -> None:
    assert invoke(["help", "topics", "list"]).stdout == invoke(["topics", "list", "--help"]).stdout
    lines = invoke(["consume", "orders,clicks", "--root", place / "r"])
    assert (lines.exit_code, lines.stdout) == (0, "1\n")


def test_each_command_and_option_that_is_advised_exists() -> None:
    for advised in COMMANDS.values():
        for words in advised.split(", or sparklog "):
            path = next(iter(re.findall(r"^[a-z][a-z -]*(?<! )(?= |$)", words)), "").partition(" --")[0]
            command = command_of(path.removesuffix(" sparklog").removesuffix(" crontab"))
            names = {name for item in command.get_params(Context(command)) for name in item.opts}
            assert set(re.findall(r"--[a-z-]+", words)) <= names, advised
    for group, options in OPTIONS.items():
        known = options_below(group)
        for option, text in options.items():
            assert not text.startswith("-") or set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", text)) <= known, option


def options_below(words: str) -> set[str]:
    """The options of a command, or of all that are below it."""
    command = command_of(words)
    names = {name for item in command.get_params(Context(command)) for name in (*item.opts, *item.secondary_opts)}
    below = command.list_commands(Context(command)) if isinstance(command, Group) else []
    return names.union(*(options_below(f"{words} {name}") for name in below))
