"""Test the location of compiled kernels, and the cost of importing the format."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparklog.format.kernels import machine_code
from sparklog.format.kernels.hash_kernels import join_crcs, murmur2_cells
from sparklog.format.kernels.kernel_choice import Choice
from sparklog.format.kernels.warm import KERNEL_MODULES, warm_up

REPOSITORY = Path(__file__).parents[2]


def test_warm_up_compiles_every_kernel_module() -> None:
    place = warm_up()
    assert place is not None
    kept = {file.stem.rpartition(".")[0] for file in Path(place).glob("*.kernel")}
    assert kept == set(KERNEL_MODULES)
    sources = {
        ".".join(file.relative_to(REPOSITORY).with_suffix("").parts)
        for file in (REPOSITORY / "sparklog").rglob("*.py")
        if "\n@kernel(" in file.read_text()
    }
    assert sources == set(KERNEL_MODULES)


def test_cache_directory_is_in_the_package(tmp_path: Path) -> None:
    place = machine_code.cache_directory(tmp_path)
    assert place is not None
    assert Path(place).parent == tmp_path / "__pycache__"


def test_read_only_package_uses_private_cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    blocked = tmp_path / "package"
    blocked.write_text("a file where a folder would be: nothing can be made below it")
    place = machine_code.cache_directory(blocked)
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
    place = machine_code.cache_directory(blocked)
    assert place is not None
    assert not place.startswith(str(open_folder) + "/")


def sum_of_crcs(function: Callable[..., int]) -> int:
    return function(np.array([1, 2], np.int64), np.array([3, 4], np.int64))


@pytest.mark.parametrize("damage", ["none", "cut", "changed", "empty"])
def test_damaged_file_is_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    monkeypatch.setattr(machine_code, "CACHE_DIRECTORY", str(tmp_path))
    compiled = machine_code.compiled(join_crcs.function, join_crcs.signature)
    [file] = tmp_path.iterdir()
    content = file.read_bytes()
    damaged = {"none": content, "cut": content[:-1], "changed": content[:-1] + b"\xff", "empty": b""}[damage]
    file.write_bytes(damaged)
    again = machine_code.compiled(join_crcs.function, join_crcs.signature)
    assert sum_of_crcs(again) == sum_of_crcs(compiled) == sum_of_crcs(join_crcs.interpreted)
    assert machine_code.is_cached(join_crcs.function)
    assert (file.read_bytes() == damaged) == (damage == "none")
    assert [*tmp_path.iterdir()] == [file]


def test_kernel_is_compiled_without_a_writable_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for directory in (None, str(tmp_path / "missing")):
        monkeypatch.setattr(machine_code, "CACHE_DIRECTORY", directory)
        compiled = machine_code.compiled(join_crcs.function, join_crcs.signature)
        assert sum_of_crcs(compiled) == sum_of_crcs(join_crcs.interpreted)
        assert not machine_code.is_cached(join_crcs.function)


CACHED = """
import sys
import numpy as np
from sparklog.format.kernels.hash_kernels import join_crcs
print(join_crcs(np.array([1, 2]), np.array([3, 4])), "numba" in sys.modules)
"""


def test_cached_kernels_run_without_numba() -> None:
    warm_up()
    done = subprocess.run([sys.executable, "-c", CACHED], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(sum_of_crcs(join_crcs.interpreted)), "False"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((np.array([1], np.int32), np.array([3])), TypeError),
        ((np.array([[1]]), np.array([3])), TypeError),
        ((np.arange(4)[::2], np.array([3, 4])), TypeError),
        ((np.array([1], ">i8"), np.array([3])), TypeError),
        (([1], [3]), AttributeError),
        ((np.array([1]),), TypeError),
    ],
)
def test_compiled_kernel_rejects_other_arguments(arguments: tuple[Any, ...], error: type[Exception]) -> None:
    with pytest.raises(error):
        join_crcs(*arguments)


def test_arrays_that_a_kernel_writes_must_be_writable() -> None:
    out = np.zeros(1, np.int32)
    table = np.zeros(6, np.int64)
    murmur2_cells(table, 1, out)
    out.flags.writeable = False
    with pytest.raises(TypeError, match="a kernel expected"):
        murmur2_cells(table, 1, out)


def test_kernel_that_has_to_be_compiled_is_interpreted_for_more_records() -> None:
    choice = Choice(100, 1000)
    assert not choice.compiled(100, lambda: False)
    assert not choice.compiled(600, lambda: False)
    assert choice.compiled(1, lambda: True)
    assert not choice.compiled(400, lambda: False)
    assert choice.compiled(1, lambda: False)
    assert Choice(100, 1000).compiled(101, lambda: True)
    assert Choice(100, 1000).compiled(1001, lambda: False)


def test_importing_format_does_not_load_numba() -> None:
    program = (
        "import sys; import sparklog.format.record_batch; light = set(sys.modules);"
        "import sparklog.format.decode, sparklog.format.encode, sparklog.format.control, sparklog.format.key_hash;"
        "heavy = {'numba', 'llvmlite', 'zstandard', 'lz4', 'lz4.frame', 'snappy', 'pandas', 'pyspark'};"
        "print(sorted(heavy & set(sys.modules)), sorted({'pyarrow'} & light))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[] []", done.stderr


def test_kernels_can_be_compiled_from_the_command_line() -> None:
    command = [sys.executable, "-m", "sparklog.format.kernels.warm"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("kernels are cached in "), done.stderr
    assert done.stderr == ""
