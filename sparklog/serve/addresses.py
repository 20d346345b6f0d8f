"""Addresses of servers, and how requests reach the threads that wait for the store."""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from sparklog.errors import BadRequest
from sparklog.parsing import is_digits

Runner: TypeAlias = Callable[..., Awaitable[Any]]
"""Calls a function, with arguments, in a thread."""


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port; `node_id` is the same on every server that is told of it."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def of(cls, text: str) -> Address:
        """Parse `host:port`. `BadRequest` for anything else."""
        host, _, port = text.rpartition(":")
        if not host or not is_digits(port) or not 0 <= int(port) <= 65535:
            raise BadRequest(f"expected an address as host:port, found {text!r}")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))

    @property
    def node_id(self) -> int:
        return zlib.crc32(str(self).encode()) & 0x7FFFFFFF
