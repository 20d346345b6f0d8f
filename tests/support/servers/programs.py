"""Programs that stand for object stores in tests, and clients of Kafka in environments of their own.

Versions, what fetches each, and where it is looked for: in the folder that `SPARKLOG_TEST_SERVERS` names, else in a
folder of the user's cache, then on the PATH. `python -m tests.support.servers.programs` fetches them into that folder:
a minute, two for versitygw.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER_VARIABLE = "SPARKLOG_TEST_SERVERS"
FETCH = "python -m tests.support.servers.programs"


class Missing(Exception):  # noqa: N818
    """A program cannot be run here: a reason to skip, with what to do about it."""


@dataclass(frozen=True, slots=True)
class Program:
    """`file`: its path below the folder; `name`: on the PATH; `runs_in`: what must be on the PATH to start it."""

    name: str
    version: str
    file: str
    fetched_by: Callable[[Path], tuple[list[str], dict[str, str]]]
    runs_in: str = ""


def _npm(package: str, *more: str) -> Callable[[Path], tuple[list[str], dict[str, str]]]:
    name = package.partition("@")[0]
    command = ("npm", "install", "--no-audit", "--no-fund", "--prefix")
    return lambda folder: ([*command, str(folder / name), package, *more], {})


def _go(module: str) -> Callable[[Path], tuple[list[str], dict[str, str]]]:
    return lambda folder: (["go", "install", module], {"GOBIN": str(folder)})


def _maven(artifact: str) -> Callable[[Path], tuple[list[str], dict[str, str]]]:
    return lambda folder: (
        ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={folder}"],
        {},
    )


def _pip(name: str, *packages: str) -> Callable[[Path], tuple[list[str], dict[str, str]]]:
    script = '"$1" -m venv "$2" && pip="$2/bin/pip" && shift 2 && "$pip" -q install "$@"'
    return lambda folder: (["sh", "-c", script, "sh", sys.executable, str(folder / name), *packages], {})


VERSITYGW = Program("versitygw", "1.8.0", "versitygw", _go("github.com/versity/versitygw/cmd/versitygw@v1.8.0"))
AZURITE = Program("azurite-blob", "3.37.0", "azurite/node_modules/.bin/azurite-blob", _npm("azurite@3.37.0"), "node")
S3RVER = Program("s3rver", "3.7.1", "s3rver/node_modules/.bin/s3rver", _npm("s3rver@3.7.1"), "node")
S3MOCK_4, S3MOCK_5 = (
    Program(
        f"s3mock-{version}-exec.jar",
        version,
        f"s3mock-{version}-exec.jar",
        _maven(f"com.adobe.testing:s3mock:{version}:jar:exec"),
        "java",
    )
    for version in ("4.9.1", "5.2.0")
)
LIBRDKAFKA = tuple(
    Program(
        f"librdkafka-{version}",
        version,
        f"librdkafka-{version}/bin/python",
        _pip(f"librdkafka-{version}", f"confluent-kafka=={package}"),
    )
    for version, package in (("2.2.0", "2.2.0"), ("2.16.0", "2.16.1"))
)
"""An interpreter with confluent-kafka, which brings that release of librdkafka."""
KAFKA_PYTHON = tuple(
    Program(
        f"kafka-python-{version}",
        version,
        f"kafka-python-{version}/bin/python",
        _pip(f"kafka-python-{version}", f"kafka-python=={version}", "python-snappy", "lz4", "zstandard"),
    )
    for version in ("2.0.2", "2.2.15", "3.0.12")
)
AIOKAFKA = (
    Program(
        "aiokafka-0.14.0",
        "0.14.0",
        "aiokafka-0.14.0/bin/python",
        _pip("aiokafka-0.14.0", "aiokafka[snappy,lz4,zstd]==0.14.0"),
    ),
)
"""Interpreters with releases of clients that are written in Python."""
KAFKAJS = Program(
    "kafkajs-2.2.4",
    "2.2.4",
    "kafkajs/node_modules/kafkajs/package.json",
    _npm("kafkajs@2.2.4", "kafkajs-snappy@1.1.0", "lz4-napi@2.9.0", "zstd-codec@0.1.5"),
    "node",
)
PYSPARK_4_0 = Program(
    "pyspark-4.0.1", "4.0.1", "pyspark-4.0.1/bin/python", _pip("pyspark-4.0.1", "pyspark==4.0.1"), "java"
)
ICEBERG_RUNTIME = Program(
    "iceberg-spark-runtime-4.0_2.13-1.10.0.jar",
    "1.10.0",
    "iceberg-spark-runtime-4.0_2.13-1.10.0.jar",
    _maven("org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.10.0"),
    "java",
)
DUCKDB_ICEBERG = Program(
    "duckdb-iceberg-1.5.5",
    "1.5.5",
    "duckdb-iceberg-1.5.5/bin/python",
    _pip(
        "duckdb-iceberg-1.5.5",
        *("duckdb==1.5.5", "duckdb-extension-iceberg==1.5.5", "duckdb-extension-avro==1.5.5", "pytz==2025.2"),
    ),
)
"""Interpreters with readers of Iceberg tables, and the jar that Spark needs for it."""
PROGRAMS = (AZURITE, S3RVER, S3MOCK_4, S3MOCK_5, VERSITYGW, *LIBRDKAFKA)


def folder() -> Path:
    """The folder of the programs, which need not exist."""
    named = os.environ.get(FOLDER_VARIABLE)
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(named).absolute() if named else Path(cache) / "sparklog-tests" / "servers"


def find(program: Program) -> str:
    """Return the path of a program. `Missing` says how to get it."""
    if program.runs_in and shutil.which(program.runs_in) is None:
        raise Missing(f"{program.name} needs {program.runs_in} on the PATH")
    path = folder() / program.file
    named = str(path) if path.exists() else shutil.which(program.name)
    if named is None:
        raise Missing(f"no {program.name} in {folder()} or on the PATH: {FETCH} {program.name}")
    return named


def find_or_fetch(program: Program) -> str:
    """Return the path of a program, which is fetched at first use. Raises `Missing` if it cannot be fetched."""
    try:
        return find(program)
    except Missing:
        fetch(program)
    return find(program)


def fetch(program: Program) -> str:
    """Fetch a program with the client of its registry, unless it is there. Return a line about it."""
    target = folder()
    if (target / program.file).exists():
        return f"{program.name} {program.version} is in {target}"
    command, more = program.fetched_by(target)
    if shutil.which(command[0]) is None:
        return f"{program.name} is left out: {command[0]} is not on the PATH"
    target.mkdir(parents=True, exist_ok=True)
    answer = subprocess.run(command, env={**os.environ, **more}, capture_output=True, text=True, check=False)
    if answer.returncode or not (target / program.file).exists():
        return f"{program.name} failed: {' '.join(command)}: {answer.stderr.strip()[-300:]}"
    return f"{program.name} {program.version} fetched into {target}"


def main(names: Sequence[str]) -> None:
    for program in PROGRAMS:
        if not names or program.name in names:
            print(fetch(program), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
