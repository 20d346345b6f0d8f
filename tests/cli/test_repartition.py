"""`sparklog repartition`."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sparklog.cli.commands import backup as command
from sparklog.groups.lag import Groups
from sparklog.log.journal.clocks import SYSTEM
from sparklog.log.topic.root import open_root
from tests.cli.conftest import Sparklog

GUIDE = Path(__file__).parents[2] / "docs/guides/clone-and-move.md"
LinesFile = Callable[[str], Path]
COPY = ("repartition", "orders", "--to", "orders-4", "--partitions", 4)


@pytest.fixture
def orders(sparklog: Sparklog, lines_file: LinesFile) -> None:
    sparklog("topics", "create", "orders", "--partitions", 2)
    lines = "".join(f"customer-{number % 9}:{number}\n" for number in range(90))
    sparklog("produce", "orders", "--key-separator", ":", "--file", lines_file(lines))


@pytest.mark.usefixtures("orders")
def test_a_cut_over(sparklog: Sparklog, root: Path, lines_file: LinesFile) -> None:
    first = sparklog(*COPY)
    assert first.lines == [
        "Copied 90 records of orders to orders-4 (4 partitions), which now has 90.",
        (
            "To cut over: stop the writers of orders, run the command again with --move-groups, and start writers "
            "and groups on orders-4."
        ),
    ]
    sparklog("consume", "orders", "--group", "billing", "--max-messages", 100)
    sparklog("produce", "orders", "--key-separator", ":", "--file", lines_file("customer-1:90\n"))
    assert sparklog(*COPY, "--move-groups").lines == [
        "Copied 1 record of orders to orders-4 (4 partitions), which now has 91.",
        "Group billing continues in orders-4, and reads no records again.",
    ]
    rest = sparklog("consume", "orders-4", "--group", "billing")
    assert rest.lines == ["90"]
    made = json.loads(sparklog(*COPY, "--move-groups", "--json").out)
    assert (made["records"], made["total"], made["created"], made["waiting"]) == (0, 91, False, 0)
    assert sum(made["groups"][0]["offsets"].values()) == 91


@pytest.mark.usefixtures("orders")
def test_the_commands_of_the_guide(sparklog: Sparklog, root: Path) -> None:
    sparklog("consume", "orders", "--group", "billing")
    section = GUIDE.read_text().partition("## Change the number of partitions")[2].partition("\n## ")[0]
    lines = re.findall(r"^ *(sparklog repartition .*)$", section, re.MULTILINE)
    assert len(lines) == 2
    for line in lines:
        assert line.endswith(" --root /data/log")
        out = sparklog(*shlex.split(line.replace("/data/log", str(root)))[1:]).out
    assert "Group billing continues in orders-12, and reads no records again." in out
    assert sparklog("topics", "list").lines == ["orders", "orders-12"]


@pytest.mark.usefixtures("orders")
def test_a_group_that_cannot_be_moved_is_reported(sparklog: Sparklog, root: Path) -> None:
    group = Groups(open_root(str(root))).group("billing")
    group.alter({"orders": {0: 5}})
    group.join("consumer-1")
    outcome = sparklog(*COPY, "--move-groups", code=1)
    assert outcome.lines == ["Copied 90 records of orders to orders-4 (4 partitions), which now has 90."]
    assert "group 'billing' was not moved: group 'billing' is active (Stable, member consumer-1)" in outcome.err


@pytest.mark.usefixtures("orders")
def test_repartition_follows_until_interrupted(sparklog: Sparklog, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt
        open_root(str(root)).topic("orders").append({"key": ["customer-1"], "value": ["later"]})

    env = replace(SYSTEM, sleep=sleep)
    monkeypatch.setattr(command, "open_root", lambda location: open_root(location, env=env))
    outcome = sparklog(*COPY, "--follow", code=130)
    assert re.fullmatch(
        r"sparklog: interrupted: 92 records, (\d+ B) of \1 copied; copied records remain; run the command again with "
        "the same "
        "options to continue",
        outcome.err.splitlines()[-1],
    )
    assert pauses == [1.0] * 3
    assert open_root(str(root)).topic("orders-4").scan().to_table().num_rows == 92


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("ordres", "--to", "new", "--partitions", 2), 1, "did you mean 'orders'"),
        (("orders", "--to", "orders", "--partitions", 2), 1, "topic 'orders' cannot be copied to itself"),
        (("orders", "--to", "new", "--partitions", 0), 2, "expected an integer of at least 1, found '0'"),
        (("orders", "--to", "new", "--partitions", 999_999_999), 1, "expected 1 to "),
        (("orders", "--to", "a/b", "--partitions", 2), 1, "a/b"),
        (("orders", "--to", "new"), 2, "--partitions"),
        (("orders", "--partitions", 2), 2, "--to"),
        (("orders", "--to", "new", "--partitions", 2, "--follow", "--move-groups"), 2, "not both"),
    ],
)
def test_invalid_input_is_a_one_line_error(
    sparklog: Sparklog, arguments: tuple[str, ...], code: int, says: str
) -> None:
    outcome = sparklog("repartition", *arguments, code=code)
    assert says in outcome.err
    assert outcome.err.count("\n") == 1
    assert sparklog("topics", "list").lines == ["orders"]
