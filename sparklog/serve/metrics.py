"""Counters of a server, and the memory that its requests may take."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class ServerMetrics:
    """Requests by API and version, bytes sent, connections: open, in total, and refused for the limit."""

    requests: Counter[tuple[str, int]] = field(default_factory=Counter)
    sent_bytes: int = 0
    connections: int = 0
    accepted: int = 0
    refused: int = 0

    def text(self) -> str:
        """Return the counters as Prometheus reads them."""
        from sparklog.tools.report.metrics import Metric, text_of

        requests: list[tuple[dict[str, object], int]] = [
            ({"api": api, "version": version}, count) for (api, version), count in sorted(self.requests.items())
        ]
        rows: tuple[tuple[str, str, list[tuple[dict[str, object], int]], str], ...] = (
            ("connections", "Connections that are open.", [({}, self.connections)], "gauge"),
            ("accepted_total", "Connections that were accepted.", [({}, self.accepted)], "counter"),
            ("refused_total", "Connections over the limit.", [({}, self.refused)], "counter"),
            ("sent_bytes_total", "Bytes of responses.", [({}, self.sent_bytes)], "counter"),
            ("requests_total", "Requests by API and version.", requests, "counter"),
        )
        return text_of(Metric(f"sparklog_serve_{name}", text, values, kind) for name, text, values, kind in rows)


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
