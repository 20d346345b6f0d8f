"""Writing a file that others read at any moment."""

from __future__ import annotations

from sparklog.errors import BadRequest
from sparklog.storage.local import replace_file


def write_whole(path: str, text: str, option: str) -> None:
    """Write a text that is seen whole, or not at all: then what was there before stays.

    Of several writers at once the last one counts. `BadRequest`, naming `option`, if the file cannot be written.
    """
    try:
        replace_file(path, text)
    except OSError as error:
        raise BadRequest(f"{path} cannot be written: {error.strerror}; choose another {option}") from None
