"""Apicurio Registry, a schema registry that has Confluent's REST API.

It comes from Maven Central once per user (109 MB), as Kafka's jars do (`tests.kafka_tools`), and needs Java 17.
"""

from __future__ import annotations

import socket
import subprocess
import tarfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.kafka_tools import COMPLETE, Missing, cache_folder, find_java

VERSION = "3.0.9"
ARCHIVE = (
    f"https://repo1.maven.org/maven2/io/apicurio/apicurio-registry-app/{VERSION}/"
    f"apicurio-registry-app-{VERSION}-all.tar.gz"
)
START_S = 120


def _program() -> Path:
    """Return the jar of the registry, and download it at first use."""
    folder = cache_folder() / f"apicurio-{VERSION}"
    if not (folder / COMPLETE).exists():
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with (
                urllib.request.urlopen(ARCHIVE, timeout=60) as response,
                tarfile.open(fileobj=response, mode="r|gz") as tar,
            ):
                tar.extractall(folder, filter="data")
        except OSError as error:
            raise Missing(f"{ARCHIVE} cannot be downloaded: {error}") from None
        (folder / COMPLETE).touch()
    return folder / f"apicurio-registry-app-{VERSION}-runner.jar"


@contextmanager
def running(log: Path) -> Iterator[str]:
    """Run a registry with an empty database in memory. Yield the URL of its Confluent API."""
    jar = _program()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = [f"-Dquarkus.http.port={port}", "-Dquarkus.http.host=127.0.0.1"]
    # Schema ids as in Confluent's registry, where two versions of a subject with the same content have the same id.
    options += ["-Xmx400m", "-Dapicurio.ccompat.legacy-id-mode.enabled=true"]
    url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
    with log.open("wb") as output:
        process = subprocess.Popen([find_java(), *options, "-jar", str(jar)], stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + START_S
        while not _responds(f"{url}/subjects"):
            assert process.poll() is None, log.read_text()[-2000:]
            assert time.monotonic() < deadline, log.read_text()[-2000:]
            time.sleep(0.5)
        yield url
    finally:
        process.terminate()
        process.wait()


def _responds(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False
