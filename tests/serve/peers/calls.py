"""The requests that each client sends: compare the page about the server with the requests that the server counts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tests.serve.peers.golden import Served

REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "serve.md"
HEADING = "## Requests by client"
Call = tuple[str, int]


@contextmanager
def noting(client: str, server: Served) -> Iterator[None]:
    """Fail if the client sends a request that the page does not list. Releases without a column are not checked."""
    before = server.requests()
    yield
    after = server.requests()
    calls = {call for call, count in after.items() if count > before.get(call, 0)}
    listed = listed_calls().get(client)
    assert listed is None or calls <= listed, f"{client} also asks for {calls - listed}: see {REFERENCE}"


@cache
def listed_calls() -> dict[str, set[Call]]:
    """Return the requests in the page's table, by client and release (`java-4.1.0`)."""
    rows = [line.strip("|").split("|") for line in _table() if line.startswith("|")]
    heads = [re.sub(r"[\s`]+", "-", cell.strip().lower()) for cell in rows[0][1:]]
    calls: dict[str, set[Call]] = {head: set() for head in heads}
    for name, *cells in rows[2:]:
        for head, cell in zip(heads, cells, strict=True):
            calls[head] |= {(name.strip(), int(version)) for version in re.findall(r"\d+", cell)}
    return calls


def _table() -> list[str]:
    return REFERENCE.read_text().partition(HEADING)[2].partition("\n## ")[0].splitlines()
