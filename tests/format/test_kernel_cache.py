"""Test the location of compiled kernels, and the cost of importing the format."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from sparklog.format.kernels import native_kernels
from sparklog.format.kernels.warm import KERNEL_MODULES, warm_up

REPOSITORY = Path(__file__).parents[2]


def test_warm_up_compiles_every_kernel_module() -> None:
    place = warm_up()
    assert place is not None
    kept = {file.name.split(".")[0] for file in Path(place).rglob("*.nbi")}
    assert kept == {name.rpartition(".")[2] for name in KERNEL_MODULES}
    sources = {
        ".".join(file.relative_to(REPOSITORY).with_suffix("").parts)
        for file in (REPOSITORY / "sparklog").rglob("*.py")
        if "\n@kernel(" in file.read_text()
    }
    assert sources == set(KERNEL_MODULES)


def test_cache_directory_is_in_the_package(tmp_path: Path) -> None:
    place = native_kernels.cache_directory(tmp_path)
    assert place is not None
    assert Path(place).parent == tmp_path / "__pycache__"


def test_read_only_package_uses_private_cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    blocked = tmp_path / "package"
    blocked.write_text("a file where a folder would be: nothing can be made below it")
    place = native_kernels.cache_directory(blocked)
    assert place is not None
    folder = Path(place).parent
    assert folder.parent == tmp_path / "temporary"
    assert folder.stat().st_mode & 0o077 == 0


def test_directory_writable_by_others_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    open_folder = tmp_path / f"sparklog-kernels-{os.getuid()}"
    open_folder.mkdir()
    open_folder.chmod(0o777)
    blocked = tmp_path / "package"
    blocked.write_text("")
    place = native_kernels.cache_directory(blocked)
    assert place is not None
    assert not place.startswith(str(open_folder) + "/")


def test_importing_format_does_not_load_numba() -> None:
    program = (
        "import sys; import sparklog.format.record_batch; light = set(sys.modules);"
        "import sparklog.format.decode, sparklog.format.encode, sparklog.format.control, sparklog.format.key_hash;"
        "heavy = {'numba', 'zstandard', 'lz4', 'lz4.frame', 'snappy', 'pandas', 'pyspark'};"
        "print(sorted(heavy & set(sys.modules)), sorted({'pyarrow'} & light))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[] []", done.stderr


def test_kernels_can_be_compiled_from_the_command_line() -> None:
    command = [sys.executable, "-m", "sparklog.format.kernels.warm"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("kernels are cached in "), done.stderr
    assert done.stderr == ""
