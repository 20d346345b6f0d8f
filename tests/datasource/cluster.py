"""A standalone Spark cluster with one master and two workers, which are processes with their own directories.

The processes share only the code (as in an image) and the bucket that the test passes to them. Drivers are also
processes: `python -m tests.datasource.cluster_driver`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.datasource import spark_session

START_SECONDS = 400
LOCAL_CLUSTER = "local-cluster[2,1,1024]"
"""Spark's local cluster: two executor processes with one core and 1024 MB each. The master and the workers are in the
driver's JVM.
"""
DAEMON = {
    "SPARK_DAEMON_MEMORY": "200m",
    "SPARK_DAEMON_JAVA_OPTS": spark_session.CHEAP_JVM,
}


def image(folder: Path) -> Path:
    """Copy the code as in an image that was never started: no kernel is compiled, and none can be stored next to the
    code.
    """
    for package in ("sparklog", "pyspark_sparklog", "tests"):
        source = spark_session.REPOSITORY / package
        shutil.copytree(source, folder / package, ignore=shutil.ignore_patterns("__pycache__", "*.xz"))
    # No user can create a directory here, not even root.
    (folder / "sparklog" / "format" / "kernels" / "__pycache__").write_text("")
    return folder


class Cluster:
    """A master and its workers. `code` is the directory on the path of the executors' Python."""

    def __init__(self, folder: Path, code: Path = spark_session.REPOSITORY) -> None:
        import pyspark

        self._folder = folder
        self._home = Path(pyspark.__file__).parent
        self._code = code
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        # The master chooses its own ports, because a free port may be taken before the master binds it.
        self._start("master", "master.Master", "--port", "0", "--webui-port", "0")
        self.master = self._logged(r"Starting Spark master at (spark://\S+)")
        self._web = int(self._logged(r"Bound MasterWebUI to \S+, and started at http://\S+:(\d+)"))
        for number in range(2):
            self.start_worker(number)
        self.wait_for_workers(2)

    def start_worker(self, number: int) -> None:
        ports = ("--port", "0", "--webui-port", "0")
        host = f"127.0.0.{number + 2}"
        given = (*ports, "--cores", "1", "--memory", "1g", self.master)
        self._start(f"worker-{number}", "worker.Worker", *given, host=host)

    def _start(self, name: str, which: str, *given: str, host: str = "127.0.0.1") -> None:
        own = self._folder / name
        for below in ("work", "local", "tmp", "home"):
            (own / below).mkdir(parents=True, exist_ok=True)
        # Credentials come from the settings of the driver, as for hosts without credentials.
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
        environment = {
            **inherited,
            **DAEMON,
            **spark_session.environment(),
            "SPARK_HOME": str(self._home),
            "SPARK_LOCAL_IP": host,
            "PYTHONPATH": str(self._code),
            "PYTHONDONTWRITEBYTECODE": "1",
            "SPARK_WORKER_DIR": str(own / "work"),
            "SPARK_LOCAL_DIRS": str(own / "local"),
            "TMPDIR": str(own / "tmp"),
            "HOME": str(own / "home"),
        }
        command = [str(self._home / "bin" / "spark-class"), f"org.apache.spark.deploy.{which}", "--host", host]
        with open(own / "log", "ab") as log:
            self._processes[name] = subprocess.Popen(
                [*command, *given], env=environment, cwd=own, stdout=log, stderr=log, start_new_session=True
            )

    def _logged(self, pattern: str) -> str:
        """Wait for a line in the master's log, and return its first group."""
        end = time.monotonic() + START_SECONDS
        while True:
            log = (self._folder / "master" / "log").read_text()
            if match := re.search(pattern, log):
                return match[1]
            assert time.monotonic() < end, log[-3000:]
            time.sleep(0.2)

    def wait_for_workers(self, number: int) -> None:
        end = time.monotonic() + START_SECONDS
        while self._alive() != number:
            assert time.monotonic() < end, (self._folder / "master" / "log").read_text()[-3000:]
            time.sleep(0.2)

    def _alive(self) -> int:
        with (
            suppress(urllib.error.URLError, OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{self._web}/json/") as a,
        ):
            return int(json.load(a)["aliveworkers"])
        return -1

    def applications(self, number: int) -> int:
        """Return the number of applications with an executor on a worker."""
        return len(list((self._folder / f"worker-{number}" / "work").glob("app-*/*")))

    def kill_worker(self, number: int) -> None:
        """Send SIGKILL to a worker and its executors."""
        self._kill(f"worker-{number}")

    def _kill(self, name: str) -> None:
        process = self._processes.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        for name in list(self._processes):
            self._kill(name)


@contextmanager
def driver(
    folder: Path, master: str, root: str, scenario: str, *, code: Path = spark_session.REPOSITORY, **settings: str
) -> Iterator[Driver]:
    """Start a driver process. At the end, its remaining processes are killed."""
    command = [sys.executable, "-m", "tests.datasource.cluster_driver", str(folder), master, root, scenario]
    environment = {**os.environ, **spark_session.environment(), "PYTHONPATH": str(code)}
    running = Driver(
        [*command, json.dumps(settings)], environment, code, folder / f"{scenario}-{os.urandom(4).hex()}.log"
    )
    try:
        yield running
    finally:
        running.kill()


class Driver:
    """A running scenario of `cluster_driver`. Executors use the same code as the driver, because Spark passes its path
    to them.
    """

    def __init__(self, command: list[str], environment: dict[str, str], folder: Path, log: Path) -> None:
        self._log = log
        with open(log, "wb") as stderr:
            self._process = subprocess.Popen(
                command,
                env=environment,
                cwd=folder,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,
            )

    def lines(self) -> Iterator[str]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            yield line.rstrip("\n")

    def result(self) -> Any:
        """Return the result of the scenario."""
        last = list(self.lines())[-1:]
        assert self._process.wait() == 0, self._log.read_text()[-5000:]
        return json.loads(last[0])

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
