"""Progress of copies: a line on stderr every few seconds."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparklog.tools.backup.backing_up import Progress


EVERY_SECONDS = 5.0


def copy_progress(what: str) -> Progress:
    """What a backup or a restore tells its progress to; `what` was done to the files, in lines such as

    backed up 12 of 40 files, 1,204 of 5,120 MB, 138 MB/s
    """
    begun = last = time.monotonic()

    def show(files: int, of_files: int, nbytes: int, of_nbytes: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= EVERY_SECONDS:
            last = now
            size = f"{nbytes / 1e6:,.0f} of {of_nbytes / 1e6:,.0f} MB"
            rate = nbytes / 1e6 / (now - begun)
            print(f"{what} {files} of {of_files} files, {size}, {rate:,.0f} MB/s", file=sys.stderr)

    return show
