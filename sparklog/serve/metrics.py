"""Counters of a server, and the memory that its requests may take."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class ServerMetrics:
    """Requests by API, bytes sent, connections: open, in total, and refused for the limit."""

    requests: Counter[str] = field(default_factory=Counter)
    sent_bytes: int = 0
    connections: int = 0
    accepted: int = 0
    refused: int = 0

    def count(self, api: str) -> None:
        self.requests[api] += 1

    def text(self) -> str:
        """Return the counters as Prometheus reads them."""
        rows = [
            ("sparklog_serve_connections", "gauge", "Connections that are open.", [("", self.connections)]),
            ("sparklog_serve_accepted_total", "counter", "Connections that were accepted.", [("", self.accepted)]),
            ("sparklog_serve_refused_total", "counter", "Connections over the limit.", [("", self.refused)]),
            ("sparklog_serve_sent_bytes_total", "counter", "Bytes of responses.", [("", self.sent_bytes)]),
            (
                "sparklog_serve_requests_total",
                "counter",
                "Requests by API.",
                [(f'{{api="{api}"}}', count) for api, count in sorted(self.requests.items())],
            ),
        ]
        lines = []
        for name, kind, text, values in rows:
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
            lines += [f"{name}{labels} {value}" for labels, value in values]
        return "\n".join(lines) + "\n"


class RequestMemory:
    """Bytes that requests may take together: one more waits until others were answered, in the order they came."""

    def __init__(self, nbytes: int) -> None:
        self._room = nbytes
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, nbytes: int) -> None:
        if not self._waiting and self._room >= nbytes:
            self._room -= nbytes
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((nbytes, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(nbytes)
            raise

    def give_back(self, nbytes: int) -> None:
        self._room += nbytes
        while self._waiting and (self._waiting[0][1].cancelled() or self._waiting[0][0] <= self._room):
            wanted, turn = self._waiting.popleft()
            if not turn.done():
                self._room -= wanted
                turn.set_result(None)
