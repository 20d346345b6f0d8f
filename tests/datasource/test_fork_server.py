"""The server that forks the Python processes of a JVM, with the script sparklog-python and without Java."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sparklog.datasource.fork_server import MEMORY_LIMITS, SOCKET, _accept, interpreter_environment
from sparklog.datasource.worker_daemon import TASKS, WRITES
from tests.datasource.spark_session import REPOSITORY

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the server needs SO_PEERCRED and F_SETSIG")

FIRST, SECOND = "pyspark.sql.worker.lookup_data_sources", "pyspark.sql.worker.create_data_source"
STREAM = "pyspark.sql.streaming.python_streaming_source_runner"

DAEMON = """
import gc, json, os, signal, sys

def facts():
    return {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "group": os.getpgid(0),
        "arguments": sys.argv[1:],
        "secret": os.environ["PYTHON_WORKER_FACTORY_SECRET"],
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "imported": "pyarrow.compute" in sys.modules,
        "workers": [name for name in sys.modules if name.startswith("pyspark.sql.") and name.count(".") == 3],
        "pandas": "pandas" in sys.modules,
        "random": float(sys.modules["numpy.random"].random()) if "numpy.random" in sys.modules else None,
        "garbage": [gc.isenabled(), gc.get_freeze_count() > 1000],
        "signals": [signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.getsignal(signal.SIGCHLD)],
    }

def manager():
    print(json.dumps(facts()), flush=True)
    sys.stdin.read()
    print("the end", flush=True)
"""
SOURCE_RUNNER = """
if __name__ == "__main__":
    import pyspark.daemon
    pyspark.daemon.manager()
"""
FAKE_PYSPARK = {
    **dict.fromkeys(("__init__", "sql.__init__", "sql.worker.__init__", "sql.streaming.__init__"), ""),
    "daemon": DAEMON,
    "sql.worker.create_data_source": "",
    "sql.worker.python_streaming_sink_runner": "",
    "sql.worker.write_into_data_source": "",
    "sql.streaming.python_streaming_source_runner": SOURCE_RUNNER,
}


class Application:
    """A JVM's Python processes: each has pipes, and the local directory is theirs."""

    def __init__(self, folder: Path) -> None:
        for name, source in FAKE_PYSPARK.items():
            file = folder.joinpath("path", "pyspark", *name.split(".")).with_suffix(".py")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(source)
        scripts = folder / "bin"
        scripts.mkdir()
        self.script = shutil.copy(REPOSITORY / "conf" / SOCKET, scripts)
        (scripts / "python3").symlink_to(sys.executable)
        # The path of a socket has at most 107 bytes.
        self.local = Path(tempfile.mkdtemp(prefix="sparklog-", dir="/tmp"))
        self.processes: list[subprocess.Popen[str]] = []
        paths = [str(folder / "path"), str(REPOSITORY), *filter(None, sys.path)]
        self.environ = {
            **{name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"},
            "PYTHONPATH": os.pathsep.join(paths),
            "SPARK_LOCAL_DIRS": f"{self.local},/other",
            "PYTHON_WORKER_FACTORY_SECRET": "first",
        }

    @property
    def socket(self) -> Path:
        return self.local / SOCKET

    def start(
        self, *arguments: str, cwd: Path | None = None, **environ: str
    ) -> tuple[subprocess.Popen[str], dict[str, Any]]:
        """Start a process as the JVM does, and return it with the facts that it prints."""
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [self.script, "-m", *arguments],
            env={**self.environ, **environ},
            stdin=pipe,
            stdout=pipe,
            text=True,
            cwd=cwd,
        )
        self.processes.append(process)
        assert process.stdout is not None
        return process, json.loads(process.stdout.readline())

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()
        shutil.rmtree(self.local)


@pytest.fixture
def application(tmp_path: Path) -> Iterator[Application]:
    application = Application(tmp_path)
    try:
        yield application
    finally:
        application.close()


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_later_processes_are_forked_with_the_imports_of_the_server(application: Application) -> None:
    _, first = application.start("pyspark.daemon", FIRST)
    daemon, second = application.start("pyspark.daemon", SECOND, PYTHON_WORKER_FACTORY_SECRET="second")
    source, stream = application.start(STREAM, PYTHON_WORKER_FACTORY_SECRET="third")
    server = second["parent"]
    assert first["parent"] == os.getpid() != server == stream["parent"]
    assert [facts["arguments"] for facts in (first, second, stream)] == [[FIRST], [SECOND], []]
    assert [facts["secret"] for facts in (first, second, stream)] == ["first", "second", "third"]
    assert [facts["threads"] for facts in (first, second, stream)] == [None, None, None]
    assert [facts["workers"] for facts in (second, stream)] == [[SECOND], []]
    for facts in (second, stream):
        assert facts["group"] == facts["pid"] != facts["parent"]
        assert facts["garbage"] == [True, True]
        assert facts["signals"] == [True, signal.SIG_DFL]
    for process in (daemon, source):
        output, _ = process.communicate(timeout=60)  # closes the standard input
        assert (output, process.returncode) == ("the end\n", 0)


def test_server_imports_the_packages_of_all_kinds(application: Application) -> None:
    _, first = application.start("pyspark.daemon", FIRST)
    assert not first["imported"]
    wait_until(lambda: bool(application.start("pyspark.daemon", SECOND)[1]["imported"]))
    _, second = application.start("pyspark.daemon", SECOND)
    assert second["workers"] == [SECOND]
    threads = Path(f"/proc/{second['parent']}/task").glob("*/comm")
    names = [path.read_text().strip() for path in threads]
    assert len(names) - names.count("jemalloc_bg_thd") == 1, f"only jemalloc restores its thread in a fork: {names}"


def test_plan_of_a_write_imports_pandas_for_later_processes(application: Application) -> None:
    pytest.importorskip("pandas")
    application.start("pyspark.daemon", FIRST)
    wait_until(lambda: bool(application.start("pyspark.daemon", SECOND)[1]["imported"]))
    assert not application.start("pyspark.daemon", SECOND)[1]["pandas"]
    assert application.start("pyspark.daemon", WRITES)[1]["workers"] == [WRITES]
    wait_until(lambda: bool(application.start("pyspark.daemon", SECOND)[1]["pandas"]))


def test_processes_have_random_states_of_their_own(application: Application, tmp_path: Path) -> None:
    """Even if numpy.random was imported without pandas."""
    (tmp_path / "path" / "pyspark" / "sql" / "worker" / "write_into_data_source.py").write_text("import numpy.random\n")
    application.start("pyspark.daemon", FIRST)
    wait_until(lambda: application.start("pyspark.daemon", SECOND)[1]["random"] is not None)
    assert len({application.start("pyspark.daemon", SECOND)[1]["random"] for _ in range(3)}) == 3


def test_pandas_is_not_imported_after_the_daemon_of_tasks_has_started(application: Application) -> None:
    application.start("pyspark.daemon", FIRST)
    wait_until(lambda: bool(application.start("pyspark.daemon", SECOND)[1]["imported"]))
    for worker in (TASKS, WRITES, SECOND, SECOND):
        assert not application.start("pyspark.daemon", worker)[1]["pandas"]


@pytest.mark.parametrize(
    ("change", "is_forked"),
    [
        ({"PYTHONHASHSEED": "7"}, False),
        ({"PYSPARK_PLANNER_MEMORY_MB": "512"}, False),
        ({"TZ": "Asia/Tokyo"}, False),
        ({"OMP_NUM_THREADS": "4"}, False),
        ({"OMP_NUM_THREADS": "1", "PYTHON_UDF_BATCH_SIZE": "100"}, True),
        ({"SPARK_BUFFER_SIZE": "4096"}, True),
    ],
    ids=str,
)
def test_process_with_another_environment_starts_without_the_server(
    application: Application, change: dict[str, str], is_forked: bool
) -> None:
    _, first = application.start("pyspark.daemon", FIRST)
    _, other = application.start("pyspark.daemon", SECOND, **change)
    _, again = application.start("pyspark.daemon", SECOND)
    server = again["parent"]
    assert server not in (os.getpid(), first["pid"])
    assert other["parent"] == (server if is_forked else os.getpid())
    assert other["threads"] == change.get("OMP_NUM_THREADS")
    assert other["arguments"] == [SECOND]


def test_process_of_another_python_starts_without_the_server(application: Application, tmp_path: Path) -> None:
    """As with different values of spark.pyspark.driver.python and spark.pyspark.python in a local session."""
    application.start("pyspark.daemon", FIRST)
    other = tmp_path / "other" / "bin"
    other.mkdir(parents=True)
    application.script = shutil.copy(application.script, other)
    (other / "python3").symlink_to(sys.executable)
    assert application.start("pyspark.daemon", SECOND)[1]["parent"] == os.getpid()


def test_process_in_another_directory_starts_without_the_server(application: Application, tmp_path: Path) -> None:
    """The server would fork the process in its own directory."""
    application.start("pyspark.daemon", FIRST)
    assert application.start("pyspark.daemon", SECOND, cwd=tmp_path)[1]["parent"] == os.getpid()


def test_python_that_needs_its_home_starts_without_the_server(application: Application) -> None:
    python = Path(application.script).with_name("python3")
    python.unlink()
    python.write_text(f'#!/bin/sh\n[ "$2" != -E ] || exit 1\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    application.environ["PYTHONHOME"] = sys.base_prefix
    for worker in (FIRST, SECOND):
        assert application.start("pyspark.daemon", worker)[1]["parent"] == os.getpid()


def test_end_of_the_client_ends_the_process_and_the_other_way_round(application: Application) -> None:
    application.start("pyspark.daemon", FIRST)
    client, facts = application.start("pyspark.daemon", SECOND)
    client.kill()
    wait_until(lambda: not is_running(facts["pid"]))
    client, facts = application.start("pyspark.daemon", SECOND)
    os.kill(facts["pid"], signal.SIGKILL)
    assert client.wait(60) == 0


def test_server_ends_with_the_jvm_and_a_process_starts_without_it(application: Application) -> None:
    first, _ = application.start("pyspark.daemon", FIRST)
    second, facts = application.start("pyspark.daemon", SECOND)
    for process in (first, second):
        process.communicate(timeout=60)
    wait_until(lambda: not is_running(facts["parent"]) and not application.socket.exists())
    application.socket.touch()
    _, third = application.start("pyspark.daemon", SECOND)
    assert third["parent"] == os.getpid()


def test_killed_server_is_not_missed(application: Application) -> None:
    application.start("pyspark.daemon", FIRST)
    _, second = application.start("pyspark.daemon", SECOND)
    os.kill(second["parent"], signal.SIGKILL)
    _, third = application.start("pyspark.daemon", SECOND)
    assert third["parent"] == os.getpid()
    assert third["arguments"] == [SECOND]


def test_incomplete_request_leaves_no_files_open(application: Application) -> None:
    application.start("pyspark.daemon", FIRST)
    _, second = application.start("pyspark.daemon", SECOND)
    files = Path(f"/proc/{second['parent']}/fd")
    before = len(list(files.iterdir()))
    for _ in range(3):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(application.socket))
            socket.send_fds(client, [(100).to_bytes(4, "big")], [0, 1, 2])
    _, third = application.start("pyspark.daemon", SECOND)
    assert third["parent"] == second["parent"]
    wait_until(lambda: len(list(files.iterdir())) <= before)


def test_failed_fork_leaves_no_files_open(application: Application, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> int:
        raise OSError(errno.EAGAIN, "too many processes")

    monkeypatch.setattr(os, "fork", fail)
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.bind(str(application.socket))
        listener.listen()
        client.connect(str(application.socket))
        request = b"pyspark.daemon\0\0A=b"
        socket.send_fds(client, [len(request).to_bytes(4, "big")], [0, 1, 2])
        client.sendall(request)
        files = Path("/proc/self/fd")
        before = len(list(files.iterdir()))
        assert _accept(listener, interpreter_environment({"A": "b"})) == (None, True)
        assert len(list(files.iterdir())) == before


@pytest.mark.parametrize("limit", MEMORY_LIMITS)
def test_no_server_starts_if_memory_is_limited(application: Application, limit: str) -> None:
    application.start("pyspark.daemon", FIRST, **{limit: "512"})
    assert not application.socket.exists()


def test_no_server_starts_if_the_path_of_its_socket_is_too_long(application: Application) -> None:
    folder = application.local / ("x" * 100)
    folder.mkdir()
    application.environ["SPARK_LOCAL_DIRS"] = str(folder)
    for worker in (FIRST, SECOND):
        assert application.start("pyspark.daemon", worker)[1]["parent"] == os.getpid()


def test_udfs_start_no_server(application: Application) -> None:
    application.start("pyspark.daemon", "pyspark.worker")
    assert not application.socket.exists()


def test_variables_of_spark_do_not_matter() -> None:
    spark = {"SPARK_BUFFER_SIZE": "1", "PYSPARK_PYTHON": "p", "PYTHON_WORKER_FACTORY_PORT": "2"}
    assert interpreter_environment({"LANG": "C", **spark}) == {"LANG": "C", "OMP_NUM_THREADS": "1"}
