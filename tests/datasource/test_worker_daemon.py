"""The daemon that imports the packages of Spark's workers before it forks them, without Java."""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog
from sparklog.datasource.fork_server import MEMORY_LIMITS
from sparklog.datasource.worker_daemon import IMPORTS, TASKS
from sparklog.format.kernels.warm import warm_up
from tests.datasource.spark_session import LAUNCHING, REPOSITORY

SCRIPT = REPOSITORY / "conf" / "sparklog-python"

WORKER = """
import gc, json, os, random, sys
import numpy.random
print("an import that writes to the standard output", flush=True)
os.write(1, b"as a library does\\n")

def main(infile, outfile):
    import numpy as np
    facts = {
        "worker": __name__ in sys.modules,
        "frozen": gc.get_freeze_count() > 1000,
        "random": [random.random(), float(np.random.random())],
        "path": sys.path[:1],
    }
    outfile.write(json.dumps(facts).encode())
    outfile.flush()
    sys.exit(0)
"""


def read(stream: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = stream.recv(size - len(data))
        assert part, f"the worker sent {data!r}"
        data += part
    return data


@contextmanager
def daemon(command: list[str | Path], folder: Path, **environment: str) -> Iterator[int]:
    """Run a daemon whose workers run `WORKER`. Yield its port, as Spark reads it."""
    (folder / "pyspark_probe.py").write_text(WORKER)
    environ = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(folder), str(REPOSITORY)]),
        "PYTHON_WORKER_FACTORY_SECRET": "secret",
        "PYTHONUNBUFFERED": "YES",
        **environment,
    }
    pipe = subprocess.PIPE
    with subprocess.Popen([*command, "pyspark_probe"], env=environ, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            [port] = struct.unpack("!i", process.stdout.read(4))
            yield port
        finally:
            process.stdin.close()
        process.wait(30)


def facts_of_worker(port: int) -> dict[str, object]:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as stream:
        assert struct.unpack("!i", read(stream, 4))[0] > 0, "the process id of the worker"
        stream.sendall(struct.pack("!i", 6) + b"secret")
        assert read(stream, 6) == struct.pack("!i", 2) + b"ok"
        stream.shutdown(socket.SHUT_WR)
        data = b""
        while part := stream.recv(4096):
            data += part
    facts: dict[str, object] = json.loads(data)
    return facts


def test_workers_start_with_imported_packages_and_random_states_of_their_own(tmp_path: Path) -> None:
    with daemon([sys.executable, "-m", "sparklog.datasource.worker_daemon"], tmp_path) as port:
        first, second = facts_of_worker(port), facts_of_worker(port)
    for facts in (first, second):
        assert (facts["worker"], facts["frozen"]) == (True, True)
    randoms = [facts["random"] for facts in (first, second)]
    assert isinstance(randoms[0], list)
    assert isinstance(randoms[1], list)
    assert not set(randoms[0]) & set(randoms[1])


@pytest.mark.parametrize("limit", MEMORY_LIMITS)
def test_nothing_is_imported_if_memory_is_limited(tmp_path: Path, limit: str) -> None:
    """`setrlimit` counts the address space of all imported packages."""
    command = [sys.executable, "-m", "sparklog.datasource.worker_daemon"]
    with daemon(command, tmp_path, **{limit: "512"}) as port:
        assert facts_of_worker(port)["frozen"] is False


PRELOAD = """
import os, sys, threading
from sparklog.datasource import worker_daemon
from sparklog.datasource.worker_daemon import IMPORTS
worker = sys.argv[1]
worker_daemon.preload(worker)
missing = {worker, *IMPORTS[worker]} - set(sys.modules)
unwanted = ("pandas", "numba", "obstore", "asyncio", "pyspark.pandas")
from sparklog.format.kernels.kernel_choice import choice
print(sorted(missing), [name for name in unwanted if name in sys.modules], threading.active_count(), choice.loaded > 3)
child = os.fork()
if child == 0:
    import numpy as np, pyarrow as pa, pyarrow.compute as pc
    assert pc.sum(pa.array(range(1000))).as_py() == 499500
    assert (np.ones((300, 300)) @ np.ones((300, 300)))[0, 0] == 300
    os._exit(0)
print(os.waitpid(child, 0)[1])
"""


@pytest.mark.parametrize("worker", sorted(IMPORTS))
def test_imports_of_a_daemon_support_forks(worker: str) -> None:
    """numpy multiplies large matrices in threads of its own, which a fork stops."""
    warm_up()
    command = [sys.executable, "-c", PRELOAD, worker]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"[] [] 1 {worker == TASKS}", "0"], done.stderr


FIRST_CALLS = """
import pickle, sys
from pathlib import Path

import pyspark
from pyspark.sql.types import BinaryType, StructField, StructType
from sparklog.datasource import worker_daemon

worker, folder = sys.argv[1], Path(sys.argv[2])
worker_daemon.preload(worker)
before = set(sys.modules)

import pyarrow as pa
from sparklog.datasource.data_source import SparklogDataSource
from sparklog.datasource.spark_versions import READ_LIMITS


class Context:
    def getLocalProperty(self, name):
        return {"sql.streaming.queryId": "query", "spark.jobGroup.id": "run"}.get(name)

    def partitionId(self):
        return 0


options = {"path": str(folder / "root"), "topic": "t", "subscribe": "t"}
schema = StructType([StructField(name, BinaryType()) for name in ("key", "value")])
source = SparklogDataSource(options if "read" in worker else {name: options[name] for name in ("path", "topic")})
plan, messages, parts = folder / "plan", folder / "messages", folder / "parts"
if worker.endswith("write_into_data_source"):
    plan.write_bytes(pickle.dumps(source.streamWriter(schema=schema, overwrite=False)))
elif worker.endswith("sink_runner"):
    source.streamWriter(schema=schema, overwrite=False).commit(pickle.loads(messages.read_bytes()), 0)
elif worker.endswith("source_runner"):
    options = {"path": options["path"], "subscribe": "t", "startingOffsets": "earliest"}
    stream = SparklogDataSource(options).streamReader(schema)
    start = stream.initialOffset()
    end = stream.latestOffset(start, stream.getDefaultReadLimit()) if READ_LIMITS else stream.latestOffset()
    print(len(stream.partitions(start, end)), "partitions")
    stream.commit(end)
elif worker.endswith("read"):
    reader = SparklogDataSource({name: options[name] for name in ("path", "subscribe")}).reader(schema)
    parts.write_bytes(pickle.dumps((reader, reader.partitions())))
elif not parts.exists():
    pyspark.TaskContext.get = staticmethod(Context)
    rows = pa.ipc.open_stream(folder / "rows").read_next_batch()
    messages.write_bytes(pickle.dumps([pickle.loads(plan.read_bytes()).write(iter([rows]))]))
else:
    reader, planned = pickle.loads(parts.read_bytes())
    print(sum(batch.num_rows for part in planned for batch in reader.read(part)), "records")
further = set(sys.modules) - before
print(sorted(name for name in further if name.startswith(("sparklog", "numpy", "pyarrow", "zstandard", "llvmlite"))))
"""


def test_first_call_of_a_worker_imports_no_further_packages(tmp_path: Path) -> None:
    warm_up()
    sparklog.open(tmp_path / "root", create=True).create_topic("t")
    rows = pa.record_batch({"key": [b"k"] * 100, "value": [b"v"] * 100})
    # pyarrow imports pandas when it converts a Python list for the first time, so the workers read Arrow data.
    with pa.OSFile(str(tmp_path / "rows"), "wb") as file, pa.ipc.new_stream(file, rows.schema) as stream:
        stream.write_batch(rows)
    sql = "pyspark.sql.worker"
    workers = [f"{sql}.write_into_data_source", TASKS, f"{sql}.python_streaming_sink_runner"]
    printed = []
    source = "pyspark.sql.streaming.python_streaming_source_runner"
    for worker in (*workers, f"{sql}.plan_data_source_read", TASKS, source):
        command = [sys.executable, "-c", FIRST_CALLS, worker, tmp_path]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        printed += done.stdout.splitlines()
    assert printed == ["[]", "[]", "[]", "[]", "100 records", "[]", "1 partitions", "[]"]


def test_failing_import_is_left_to_the_worker(tmp_path: Path) -> None:
    (tmp_path / "broken_worker.py").write_text("raise ValueError('broken')\n")
    program = "import gc, sys; from sparklog.datasource.worker_daemon import preload; preload(sys.argv[1])"
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(REPOSITORY)])}
    command = [sys.executable, "-c", f"{program}; print(gc.isenabled())", "broken_worker"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


@pytest.mark.parametrize(
    ("packages", "arguments", "expected"),
    [
        (("pyspark", "sparklog"), ("-m", "pyspark.daemon", "pyspark.worker"), "sparklog ['pyspark.worker']"),
        (("pyspark",), ("-m", "pyspark.daemon", "pyspark.worker"), "pyspark ['pyspark.worker']"),
        (("pyspark", "sparklog"), ("-m", "pyspark.other"), "other []"),
    ],
    ids=["daemon", "without sparklog", "another module"],
)
def test_script_replaces_the_daemon(
    tmp_path: Path, packages: tuple[str, ...], arguments: tuple[str, ...], expected: str
) -> None:
    modules = {
        "pyspark": {"daemon": "def manager(): print('pyspark', sys.argv[1:])", "other": "print('other', sys.argv[1:])"},
        "sparklog": {"datasource.worker_daemon": "def main(): print('sparklog', sys.argv[1:])"},
    }
    for package in packages:
        for module, source in modules[package].items():
            file = tmp_path.joinpath("path", package, *module.split(".")).with_suffix(".py")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"import sys\n{source}\n")
    scripts = tmp_path / "bin"
    scripts.mkdir()
    shutil.copy(SCRIPT, scripts)
    (scripts / "python3").write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    (scripts / "python3").chmod(0o755)
    environ = {"PYTHONPATH": str(tmp_path / "path")}
    command = [scripts / "sparklog-python", *arguments]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (f"{expected}\n", "")


PROGRAM = """
import os, sys
from pathlib import Path

import numpy as np
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

import sparklog


class Numbers(DataSource):
    @classmethod
    def name(cls):
        return "numbers"

    def schema(self):
        return "number int"

    def reader(self, schema):
        return NumbersReader()


class NumbersReader(DataSourceReader):
    def partitions(self):
        return [InputPartition(part) for part in range(2)]

    def read(self, partition):
        yield from ((10 * partition.value + row,) for row in range(3))


def parent_program(number):
    return Path(f"/proc/{os.getppid()}/cmdline").read_text().replace("\\0", " ")


def sent(number):
    import sent_module

    return sent_module.ANSWER + number


spark = sparklog.configure(SparkSession.builder.master("local[2]")).getOrCreate()
spark.sparkContext.addPyFile(sys.argv[2])
rows = spark.range(0, 4, 1, 2)
print("daemon:", {"worker_daemon" in row[0] for row in rows.select(F.udf(parent_program)("id")).collect()})
random = F.udf(lambda number: float(np.random.random()), "double")
print("random:", len({row[0] for row in rows.select(random("id")).collect()}))
print("sent:", [row[0] for row in rows.select(F.udf(sent, "long")("id")).collect()])
spark.dataSource.register(Numbers)
print("numbers:", sorted(row[0] for row in spark.read.format("numbers").load().collect()))
root = sys.argv[1]
keyed = rows.selectExpr("cast(id as string) AS key", "cast(id as string) AS value")
keyed.write.format("sparklog").option("topic", "in").mode("append").save(root)
records = spark.readStream.format("sparklog").option("startingOffsets", "earliest").load(f"{root}/in")
copy = records.select("key", "value").writeStream.format("sparklog").option("topic", "out")
copy.option("checkpointLocation", f"{root}-checkpoint").trigger(availableNow=True).start(root).awaitTermination()
copied = spark.read.format("sparklog").load(f"{root}/out").select("key").collect()
print("records:", sorted(bytes(row[0]).decode() for row in copied))
forked = set()
for process in Path("/proc").glob("[0-9]*"):
    try:
        arguments = (process / "cmdline").read_text().split("\\0")
        parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
        program = Path("/proc", parent, "stat").read_text().rpartition(")")[2].split()[1]
    except OSError:
        continue
    if program == str(os.getpid()) and "SCM_RIGHTS" in "".join(arguments):
        forked.add(arguments[7].rpartition(".")[2])
print("forked by the server:", *sorted(forked))
spark.stop()
"""


FORKED = (
    "commit_data_source_write create_data_source plan_data_source_read python_streaming_sink_runner worker "
    "write_into_data_source"
)


@pytest.mark.slow
@pytest.mark.spark
def test_other_code_of_a_session_runs_in_workers_of_the_daemon(tmp_path: Path) -> None:
    scripts = tmp_path / "env" / "bin"
    scripts.mkdir(parents=True)
    shutil.copy(Path(sys.prefix) / "pyvenv.cfg", scripts.parent)
    (scripts.parent / "lib").symlink_to(Path(sys.prefix) / "lib")
    (scripts / "python3").symlink_to(Path(sys.executable).resolve())
    shutil.copy(SCRIPT, scripts)
    (tmp_path / "sent_module.py").write_text("ANSWER = 42\n")
    (tmp_path / "program.py").write_text(PROGRAM)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    environ |= LAUNCHING | {"PYTHONPATH": str(REPOSITORY), "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [scripts / "python3", tmp_path / "program.py", tmp_path / "root", tmp_path / "sent_module.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [
        "daemon: {True}",
        "random: 4",
        "sent: [42, 43, 44, 45]",
        "numbers: [0, 1, 2, 10, 11, 12]",
        "records: ['0', '1', '2', '3']",
        f"forked by the server: {FORKED}",
    ], done.stderr[-3000:]
