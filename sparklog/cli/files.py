"""Text files that options name: they lie with the caller, like the command line itself, not in a store."""

from __future__ import annotations

from pathlib import Path

from sparklog.errors import BadRequest


def read_text(file: Path, option: str) -> str:
    """The text of a UTF-8 file, a byte order mark left out. `BadRequest`, naming `option`, if it cannot be read."""
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"{file} cannot be read: {error}; check {option}") from None
