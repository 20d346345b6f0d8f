"""Test the comparison and the page of the client matrix. `make test-clients` runs the matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kafka_tools import Missing
from tests.serve.peers import matrix
from tests.serve.peers.checks import CHECKS, Run, Target, assert_all_read, values_of
from tests.serve.peers.matrix import PAGE, Result, Row, compared, page, stored, unexplained, with_row
from tests.serve.peers.peer import Failed, Peer
from tests.serve.peers.releases import CLIENTS, Client


def test_the_page_has_the_stored_results() -> None:
    assert PAGE.read_text() == page(stored())


def test_every_client_has_a_result_or_a_reason() -> None:
    assert [row.label for row in stored()] == [client.label for client in CLIENTS]
    assert all(row.results or row.missing for row in stored())


def test_stored_differences_have_explanations() -> None:
    assert unexplained(stored()) == []


@pytest.mark.parametrize(
    ("serve", "broker", "expected"),
    [
        (([1], ""), ([1], ""), Result("equal")),
        (([1], ""), ([1, 2], ""), Result("differs", "1 instead of 2: [1] instead of [1, 2]")),
        (({"a": [1]}, ""), ({"a": [2]}, ""), Result("differs", "a: number 0 is 1 instead of 2")),
        ((None, "broken"), ([1], ""), Result("differs", "fails: broken")),
        (([1], ""), (None, "broken"), Result("differs", "fails only on the broker: broken")),
        ((None, "broken here"), (None, "broken"), Result("fails on both", "broken")),
    ],
)
def test_results_are_compared(serve: Any, broker: Any, expected: Result) -> None:
    assert compared(serve, broker) == expected


def row(results: dict[str, Result], missing: str = "") -> Row:
    return Row("Client", "1.0", "2026-01-02", "0.1", results, missing)


def test_a_difference_without_an_explanation_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row({"Group": Result("differs", "a | b"), "Static": Result("fails on both", "broken")})]
    assert unexplained(rows) == ["Client 1.0, Group: a | b"]
    assert "differs [1](#reasons)" in page(rows)
    assert "1. a \\| b\n" in page(rows)
    monkeypatch.setattr(matrix, "EXPLANATIONS", {("Client", "Group"): "known"})
    assert unexplained(rows) == []
    assert "1. known\n2. broken\n" in page(rows)


def test_results_of_checks_that_were_not_run_again_stay() -> None:
    old, other = row({"Group": Result("differs"), "Static": Result("equal")}), Row("Other", "1", "", "", {})
    merged = with_row([old, other], row({"Group": Result("equal")}))
    assert merged == [other, row({"Group": Result("equal"), "Static": Result("equal")})]
    assert with_row([old], row({}, "there is no Go")) == [row({}, "there is no Go")]


def test_a_client_that_was_not_run_is_not_in_the_results() -> None:
    text = page([row({}, "there is no Go"), row({"Group": Result("equal")})])
    assert "## Not run\n\n| Client | Release | Reason |\n|---|---|---|\n| Client | 1.0 | there is no Go |\n" in text
    assert len([line for line in text.splitlines() if line.startswith("| Client | 1.0 |")]) == 2


class FakePeer(Peer):
    is_running = True

    def __init__(self, answer: Any) -> None:
        self.library = "fake"
        self._answer = answer

    def ask(self, do: str, server: object, **more: Any) -> Any:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def starting(*answers: Any) -> Callable[[], Any]:
    """Return a function that starts a client with an answer per server."""
    left = list(answers)

    @contextmanager
    def start() -> Iterator[Peer]:
        yield FakePeer(left.pop(0))

    return start


def targets(folder: Path) -> tuple[Target, Target]:
    return tuple(Target(name, FakePeer({}), folder, {}) for name in ("serve", "broker"))  # type: ignore[return-value]


def values(run: Run) -> Any:
    return values_of(run.peer.ask("join", run.address))


def test_a_failing_client_is_a_difference(tmp_path: Path) -> None:
    rows = {"records": [["topic", 0, 0, 0, 0, None, "MQ==", []]]}
    start = starting(None, rows, Failed("no answer"))
    client = Client("fake", "1", start, {"Static": "no members"}, {"Values": values, "Static": values})
    found = matrix.run(client, *targets(tmp_path)).results
    assert set(found) == {"Values", "Static"}
    assert found["Static"] == Result("not supported", "no members")
    assert found["Values"].verdict == "differs"


def test_checks_fail_without_records(tmp_path: Path) -> None:
    target = Target("serve", FakePeer({}), tmp_path, {"read_committed": {("orders", 0): 3, ("orders", 1): 4}})
    with ExitStack() as stack:
        run = Run(starting(), "fake", target, stack)
        assert run.existing("read_committed", "ord") == ([("orders", 0), ("orders", 1)], 7)
        with pytest.raises(AssertionError, match="there is no topic books"):
            run.existing("read_committed", "ord", "books")
    assert_all_read([2, 0, 1, 1], 3)
    with pytest.raises(AssertionError, match=r"records were not read: \[0, 2\]"):
        assert_all_read([1], 3)


def test_a_client_that_cannot_be_installed_was_not_run(tmp_path: Path) -> None:
    @contextmanager
    def start() -> Iterator[Peer]:
        raise Missing("there is no Go")
        yield

    found = matrix.run(Client("fake", "1", start), *targets(tmp_path))
    assert (found.missing, found.results) == ("there is no Go", {})


def test_the_page_describes_every_check() -> None:
    described = matrix._CHECKS.split("\n")
    assert [line.split("|")[1].strip() for line in described if line.startswith("|")][2:] == list(CHECKS)
