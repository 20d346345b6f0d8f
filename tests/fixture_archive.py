"""The fixtures as one archive: how `tests/fixtures.tar.xz` is made and how tests unpack it.

    python -m tests.fixture_archive <tree> [<archive>]     # make it

Members are sorted and carry no owner, so the same tree gives the same archive. Modification times are part of Kafka's
behaviour (segments without any timestamp): those of `.log` files come from `mtimesMs` of each `fixture.json`, to the
millisecond; every other file gets `OTHER_MTIME_MS`, so that a copy of the tree that lost its times does no harm.
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

ARCHIVE = Path(__file__).with_name("fixtures.tar.xz")
OTHER_MTIME_MS = 1_704_153_600_000
"""2024-01-02T00:00:00Z, when the fixtures' record clocks begin."""
COMPLETE = ".complete"


def log_mtimes_ms(tree: Path) -> dict[str, int]:
    """Relative path of a `.log` file -> modification time in ms, as the `fixture.json` files of `tree` give it."""
    times: dict[str, int] = {}
    for file in tree.glob("**/fixture.json"):
        fixture = json.loads(file.read_text())
        stages: dict[str, dict[str, int]] = dict(fixture.get("mtimesMs", {}))
        for stage in fixture.get("stages", []):
            if isinstance(stage, dict):
                stages[stage["stage"]] = stage.get("mtimesMs", {})
        for stage_name, files in stages.items():
            folder = (file.parent / stage_name).relative_to(tree)
            times.update({(folder / name).as_posix(): ms for name, ms in files.items()})
    return times


def pack(tree: Path, archive: Path) -> int:
    """Write `archive` from every file below `tree`; returns the number of files."""
    times = log_mtimes_ms(tree)
    names = sorted(path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file())
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in names:
            data = (tree / name).read_bytes()
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o644
            member.mtime = times.get(name, OTHER_MTIME_MS) / 1000
            tar.addfile(member, io.BytesIO(data))
    archive.write_bytes(lzma.compress(raw.getvalue(), preset=9 | lzma.PRESET_EXTREME))
    return len(names)


def unpacked(archive: Path = ARCHIVE) -> Path:
    """The archive's tree in the temporary folder, unpacked at first use: named by the archive's hash, so that a new
    archive is a new folder; whole or not there, however many runs begin at once."""
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()[:16]
    owner = os.getuid() if hasattr(os, "getuid") else 0
    target = Path(tempfile.gettempdir()) / f"sparklog-fixtures-{owner}-{digest}"
    if _is_whole(target):
        return target
    work = Path(tempfile.mkdtemp(prefix=target.name + "-", dir=target.parent))
    try:
        count = _extract(archive, work)
        (work / COMPLETE).write_text(f"{count}\n")
        work.chmod(0o755)
        _publish(work, target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def _publish(work: Path, target: Path) -> None:
    """Give `work` its name, unless another run has just done the same."""
    for _ in range(3):
        try:
            work.rename(target)
        except OSError:
            if _is_whole(target):
                return
            # Something swept files out of it: move the rest away (one run wins) and try again.
            stale = Path(tempfile.mkdtemp(prefix=target.name + "-stale-", dir=target.parent))
            try:
                target.rename(stale / "tree")
            except FileNotFoundError:
                pass
            finally:
                shutil.rmtree(stale, ignore_errors=True)
        else:
            return
    if not _is_whole(target):
        raise RuntimeError(f"cannot unpack the fixtures to {target}: remove that folder and run again")


def _is_whole(target: Path) -> bool:
    """Ours, and no file is missing (temporary folders are swept file by file on some machines)."""
    try:
        expected = int((target / COMPLETE).read_text())
        if hasattr(os, "getuid") and target.stat().st_uid != os.getuid():
            return False
    except (OSError, ValueError):
        return False
    return sum(1 for _ in _files(target)) - 1 == expected


def _files(folder: Path) -> Iterator[str]:
    for base, _, names in os.walk(folder):
        for name in names:
            yield os.path.join(base, name)


def _extract(archive: Path, target: Path) -> int:
    """Write every member by hand: the file system gets each modification time as whole milliseconds."""
    count = 0
    made: set[Path] = set()
    with tarfile.open(archive, mode="r:xz") as tar:
        for member in tar:
            path = target / member.name
            source = tar.extractfile(member)
            assert source is not None, f"{member.name} is not a file"
            assert target in path.resolve().parents, f"{member.name} leads out of the tree"
            if path.parent not in made:
                path.parent.mkdir(parents=True, exist_ok=True)
                made.add(path.parent)
            path.write_bytes(source.read())
            nanoseconds = round(member.mtime * 1000) * 1_000_000
            os.utime(path, ns=(nanoseconds, nanoseconds))
            count += 1
    return count


if __name__ == "__main__":
    tree = Path(sys.argv[1])
    archive = Path(sys.argv[2]) if len(sys.argv) > 2 else ARCHIVE
    print(f"{pack(tree, archive)} files, {archive.stat().st_size} bytes: {archive}")
