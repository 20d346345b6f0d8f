"""What workers say on standard error reaches the driver's through a thread of the JVM: a little later."""

from __future__ import annotations

import time

import pytest


def said(capfd: pytest.CaptureFixture[str], text: str, seconds: float = 20) -> bool:
    """Whether `text` appears on standard error within `seconds`."""
    heard, end = "", time.monotonic() + seconds
    while text not in heard and time.monotonic() < end:
        heard += capfd.readouterr().err
        time.sleep(0.05)
    return text in heard
