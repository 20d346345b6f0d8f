"""Programs that run in a forked child."""

from __future__ import annotations

from tests.support.forked import outcome


def test_how_a_program_ends_is_told() -> None:
    assert outcome("print(5)") == (0, "5\n")
    code, text = outcome("print(5)\n1 / 0")
    assert (code, text.splitlines()[0], text.splitlines()[-1]) == (1, "5", "ZeroDivisionError: division by zero")
    assert outcome("import faulthandler\nfaulthandler.disable()\nfaulthandler._sigsegv()")[0] < 0
