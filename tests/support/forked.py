"""A child process by `os.fork`, as Python and Spark make them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import NoReturn


def in_child(action: Callable[[], object]) -> NoReturn:
    """Run `action` in a forked child, which never comes back to pytest; one that hangs is killed."""
    code = 1
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)
        action()
        code = 0
    finally:
        os._exit(code)
