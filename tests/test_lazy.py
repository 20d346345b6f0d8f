"""Test that public names exist if optional packages are missing, and that their use reports the missing package."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import sparklog
from sparklog.common.lazy import install_command

REPOSITORY = Path(__file__).parents[1]
WITHOUT_SPARK = """
import inspect, pydoc, sys

class NoSpark:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "pandas"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NoSpark())
import sparklog
exec("from sparklog import *", names := {})
assert set(sparklog.__all__) - {"__version__"} <= set(names), set(sparklog.__all__) - set(names)
assert len(inspect.getmembers(sparklog)) >= len(sparklog.__all__)
text = pydoc.plain(pydoc.render_doc(sparklog))
assert all(name in text for name in ("class Topic", "watch(spark", "partitioned(df")), text[:500]
for name, call in {
    "configure": lambda: sparklog.configure(None),
    "register": lambda: sparklog.register(None),
    "partitioned": lambda: sparklog.partitioned(None, 2),
    "watch": lambda: sparklog.watch(None),
    "read": lambda: sparklog.read(None, "/data/log"),
    "read_stream": lambda: sparklog.read_stream(None, "/data/log"),
}.items():
    try:
        call()
    except sparklog.BadRequest as error:
        print(error)
"""


def test_public_names_can_be_imported_without_spark() -> None:
    program = [sys.executable, "-c", WITHOUT_SPARK]
    done = subprocess.run(program, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    names = ("configure", "register", "partitioned", "watch", "read", "read_stream")
    assert [line.partition(" requires PySpark: ")[0] for line in lines] == [f"sparklog.{name}" for name in names]
    assert all("python -m pip install " in line and '"pyspark' in line for line in lines)


def test_install_advice_lists_packages() -> None:
    assert install_command("avro").startswith('python -m pip install "fastavro')
    assert install_command("cloud", "/opt/python").startswith('/opt/python -m pip install "obstore')
    for extra in ("spark", "hdfs", "delta"):
        assert "sparklog" not in install_command(extra)


def test_install_advice_without_metadata_lists_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", missing)
    assert install_command("avro") == "install the packages of the extra 'avro' in sparklog's pyproject.toml"


def test_no_message_recommends_installing_sparklog_by_name() -> None:
    package = Path(sparklog.__file__).parent
    advice = [path for path in package.rglob("*.py") if "pip install 'sparklog" in path.read_text()]
    assert advice == []
