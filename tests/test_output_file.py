"""Test that an output file is always complete, even with concurrent writers, and that devices and
pipes are written to.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sparklog.errors import BadRequest
from sparklog.output import write_output


def test_concurrent_writers_replace_the_file_atomically(tmp_path: Path) -> None:
    path = tmp_path / "m.prom"
    texts = ["a" * 200_000, "b" * 300_000]
    write_output(str(path), texts[0], "--output")

    def write(text: str) -> None:
        for _ in range(50):
            write_output(str(path), text, "--output")

    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(write, text) for text in texts]
        while not all(each.done() for each in running):
            assert path.read_text() in texts
        for each in running:
            each.result()
    assert os.listdir(tmp_path) == ["m.prom"]


def test_temporary_file_name_is_unpredictable(tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "m.prom"
    victim.write_text("mine")
    (tmp_path / "m.prom.unfinished").symlink_to(victim)
    write_output(str(path), "text", "--output")
    assert (victim.read_text(), path.read_text()) == ("mine", "text")


def test_links_are_followed(tmp_path: Path) -> None:
    kept, link, hanging = tmp_path / "kept", tmp_path / "link", tmp_path / "hanging"
    kept.write_text("a longer text than the new one")
    link.symlink_to("kept")
    hanging.symlink_to("new")
    for path in (link, hanging):
        write_output(str(path), "text", "--output")
        assert (path.is_symlink(), path.read_text()) == (True, "text")
    assert sorted(os.listdir(tmp_path)) == ["hanging", "kept", "link", "new"]
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(BadRequest, match="cannot be written: Too many levels of symbolic links"):
        write_output(str(tmp_path / "loop"), "text", "--output")


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for path in (pipe, link):
        with ThreadPoolExecutor(1) as pool:
            # Open the pipe for reading and writing, so that no thread waits forever if the pipe is treated as a file.
            reader = os.open(pipe, os.O_RDWR)
            pool.submit(write_output, str(path), "text", "--output").result()
            os.set_blocking(reader, False)
            assert os.read(reader, 100) == b"text"
            os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert link.is_symlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="making a device needs root")
def test_a_device_stays_a_device(tmp_path: Path) -> None:
    null = tmp_path / "null"
    try:
        os.mknod(null, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("a container without the right to make devices")
    write_output(str(null), "text", "--html")
    assert stat.S_ISCHR(null.stat().st_mode)


def test_standard_output_file_is_appended_to(tmp_path: Path) -> None:
    file, link = tmp_path / "log", tmp_path / "link"
    file.write_text("before\n")
    # This behaves like /dev/stdout, which is not used here because the test could damage it.
    link.symlink_to("/proc/self/fd/1")
    program = "import sys; from sparklog.output import write_output; write_output(sys.argv[1], 'it\\n', '-o')"
    with file.open("a") as out:
        subprocess.run([sys.executable, "-c", program, str(link)], stdout=out, check=True)
    assert file.read_text() == "before\nit\n"


def test_output_file_has_default_permissions(tmp_path: Path) -> None:
    umask = os.umask(0o022)
    try:
        write_output(str(tmp_path / "m.prom"), "text", "--output")
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "m.prom").stat().st_mode) == 0o644


def test_failed_write_is_reported_and_leaves_no_files(tmp_path: Path) -> None:
    (tmp_path / "folder" / "file").mkdir(parents=True)
    with pytest.raises(BadRequest, match="cannot be written: Is a directory; choose another --html"):
        write_output(str(tmp_path / "folder"), "text", "--html")
    assert os.listdir(tmp_path) == ["folder"]
    with pytest.raises(BadRequest, match="No such file or directory"):
        write_output(str(tmp_path / "nowhere" / "x"), "text", "--html")
