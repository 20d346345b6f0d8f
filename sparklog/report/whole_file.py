"""Writing a file so that nobody meets half of it."""

from __future__ import annotations

import os
from pathlib import Path

from sparklog.errors import BadRequest

__all__ = ["write_whole"]


def write_whole(path: str, text: str, option: str) -> None:
    """The whole text or, if something fails, what was there before. `BadRequest`, naming `option`, if it cannot be."""
    unfinished = Path(f"{path}.unfinished")
    try:
        unfinished.write_text(text, encoding="utf-8")
        os.replace(unfinished, path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise BadRequest(f"{path} cannot be written: {error.strerror}; choose another {option}") from None
