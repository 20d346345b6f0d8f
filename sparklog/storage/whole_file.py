"""Writing a file that others read at any moment."""

from __future__ import annotations

import os

from sparklog.errors import BadRequest

__all__ = ["write_whole"]


def write_whole(path: str, text: str, option: str) -> None:
    """Write a text that is seen whole, or not at all: then what was there before stays.

    Each call writes to a new file with a random name beside `path`, which takes its place when it is finished: of
    several writers at once the last one counts. `BadRequest`, naming `option`, if the file cannot be written.
    """
    unfinished = f"{path}.{os.urandom(12).hex()}.unfinished"
    try:
        # O_EXCL: no link of that name is followed.
        fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            with open(fd, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(unfinished, path)
        except BaseException:
            os.unlink(unfinished)
            raise
    except OSError as error:
        raise BadRequest(f"{path} cannot be written: {error.strerror}; choose another {option}") from None
