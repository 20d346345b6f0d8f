"""A server for a location, in a thread of the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from sparklog.serve.options import Address, ServeOptions
from sparklog.serve.server import serving

FREE = Address("127.0.0.1", 0)


@pytest.fixture
def serve() -> Iterator[Callable[..., Address]]:
    """Start a server for a location. It stops at the end of the test."""
    with ExitStack() as stack:

        def start(location: Any, **options: Any) -> Address:
            # Members in tests have short session timeouts.
            given = {"session_timeouts_ms": (1, 1_800_000), **options}
            return stack.enter_context(serving(str(location), ServeOptions(listen=FREE, **given)))

        yield start
