"""A file that others read at any moment: whole, by several writers at once, and through no link."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sparklog.errors import BadRequest
from sparklog.tools.report.metrics import write_whole


def test_of_writers_at_once_one_counts_and_nobody_sees_less(tmp_path: Path) -> None:
    path = tmp_path / "m.prom"
    texts = ["a" * 200_000, "b" * 300_000]
    write_whole(str(path), texts[0], "--output")

    def write(text: str) -> None:
        for _ in range(50):
            write_whole(str(path), text, "--output")

    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(write, text) for text in texts]
        while not all(each.done() for each in running):
            assert path.read_text() in texts
        for each in running:
            each.result()
    assert os.listdir(tmp_path) == ["m.prom"]


def test_no_name_that_can_be_guessed_is_written_to(tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "m.prom"
    victim.write_text("mine")
    (tmp_path / "m.prom.unfinished").symlink_to(victim)
    write_whole(str(path), "text", "--output")
    assert (victim.read_text(), path.read_text()) == ("mine", "text")
    # A link at the path itself gives way to the file: what it leads to stays.
    link = tmp_path / "link"
    link.symlink_to(victim)
    write_whole(str(link), "text", "--output")
    assert (victim.read_text(), link.read_text(), link.is_symlink()) == ("mine", "text", False)


def test_others_may_read_it_as_any_other_file(tmp_path: Path) -> None:
    umask = os.umask(0o022)
    try:
        write_whole(str(tmp_path / "m.prom"), "text", "--output")
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "m.prom").stat().st_mode) == 0o644


def test_where_nothing_can_be_written_it_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder" / "file").mkdir(parents=True)
    with pytest.raises(BadRequest, match="cannot be written: Is a directory; choose another --html"):
        write_whole(str(tmp_path / "folder"), "text", "--html")
    assert os.listdir(tmp_path) == ["folder"]
    with pytest.raises(BadRequest, match="No such file or directory"):
        write_whole(str(tmp_path / "nowhere" / "x"), "text", "--html")
