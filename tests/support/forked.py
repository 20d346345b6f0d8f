"""A child process by `os.fork`, as Python and Spark make them."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import NoReturn


def outcome(program: str) -> tuple[int, str]:
    """Run a program in a forked child, which has loaded already what this process has; its exit code and its output.

    The code is negative where a signal ended it.
    """
    with tempfile.TemporaryFile("w+") as file:

        def action() -> None:
            sys.stdout = file
            try:
                exec(compile(program, "<forked>", "exec"), {"__name__": "__main__"})
            except BaseException:
                traceback.print_exc(file=file)
                raise
            finally:
                file.flush()

        if (child := os.fork()) == 0:
            in_child(action, seconds=300)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        file.seek(0)
        return code, file.read()


def in_child(action: Callable[[], object], *, seconds: int = 60) -> NoReturn:
    """Run `action` in a forked child, which never comes back to pytest; one that hangs is killed."""
    code = 1
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(seconds)
        action()
        code = 0
    finally:
        os._exit(code)
