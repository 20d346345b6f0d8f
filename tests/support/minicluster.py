"""Hadoop's own MiniDFSCluster: a namenode and three datanodes in one JVM, for tests marked `slow`.

Its jar comes from Maven Central once per user, as Kafka's do (`tests.kafka_tools`); the rest of Hadoop is what pyspark
brings. With one datanode each close would wait half a second for the datanode's report; of three, one is soon enough.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kafka_tools import Missing, fetched_jars, find_java

START_SECONDS = 120
_IVY = """<ivy-module version="2.0">
  <info organisation="sparklog" module="minicluster"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org="org.apache.hadoop" name="hadoop-client-minicluster" rev="{version}" transitive="false"
                conf="default->master(*)"/>
    <dependency org="org.junit.jupiter" name="junit-jupiter-api" rev="5.13.3" conf="default->runtime(*),master(*)"/>
  </dependencies>
</ivy-module>
"""


class MiniCluster:
    """A running HDFS: its `url`, and what Hadoop's command lines say about it."""

    def __init__(self, folder: Path) -> None:
        """Start it, with its files below `folder`. `Missing` (of `tests.kafka_tools`) where it cannot be run."""
        from tests.kafka_broker import free_ports  # needs pyspark

        self._folder = folder
        self._java = find_java()
        self._classes = _class_path()
        (port,) = free_ports(1)
        self.url = f"hdfs://127.0.0.1:{port}"
        ready, self._log = folder / "config.xml", folder / "cluster.log"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "core-site.xml").write_text("<configuration/>")  # what the command lines ask for
        options = ("-format", "-datanodes", "3", "-nnport", str(port), "-writeConfig", str(ready))
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command("org.apache.hadoop.test.MiniDFSClusterManager", *options),
                stdout=log,
                stderr=log,
                cwd=folder,
            )
        deadline = time.monotonic() + START_SECONDS
        while not ready.exists():
            time.sleep(0.2)
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise AssertionError(f"no HDFS after {START_SECONDS} s: {self._log.read_text()[-2000:]}")

    def stop(self) -> None:
        self._process.kill()
        self._process.wait(60)

    def tool(self, name: str, *arguments: str) -> str:
        """Return what a class behind one of Hadoop's command lines prints; it must end with 0."""
        command = self._command(name, "-fs", self.url, *arguments)
        answer = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=self._folder)
        assert answer.returncode == 0, (answer.stdout + answer.stderr)[-2000:]
        return answer.stdout

    def _command(self, name: str, *arguments: str) -> list[str]:
        options = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
        places = (f"-Dtest.build.data={self._folder}/data", f"-Dhadoop.log.dir={self._folder}/logs")
        return [self._java, *options, *places, "-cp", f"{self._folder}{os.pathsep}{self._classes}", name, *arguments]


@pytest.fixture(scope="session")
def minicluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniCluster]:
    pytest.importorskip("hdfs_native", reason="hdfs-native is not installed: pip install 'sparklog[hdfs]'")
    try:
        cluster = MiniCluster(tmp_path_factory.mktemp("hdfs"))
    except Missing as missing:
        pytest.skip(str(missing))
    yield cluster
    cluster.stop()


def _class_path() -> str:
    """Return the class path: the cluster's jars before those of pyspark, whose Hadoop has the same version."""
    try:
        import pyspark
    except ImportError:
        raise Missing("HDFS runs from the jars of Hadoop that pyspark brings: install sparklog[spark]") from None
    jars = Path(pyspark.__file__).parent / "jars"
    names = [re.fullmatch(r"hadoop-client-api-([0-9.]+)\.jar", file.name) for file in jars.glob("hadoop-client-api-*")]
    version = next((name[1] for name in names if name), None)
    if version is None:
        raise Missing("there is no hadoop-client-api among pyspark's jars")
    proof = f"hadoop-client-minicluster-{version}.jar"
    fetched = fetched_jars(f"minicluster-{version}", _IVY.format(version=version), proof)
    return os.pathsep.join(f"{folder}{os.sep}*" for folder in (fetched, jars))
