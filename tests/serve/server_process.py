"""`sparklog serve` as a process that tests can kill, and whose memory and log lines they can read."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sparklog.serve.options import Address

INTERNAL_ERRORS = "internal error", "Traceback", "exception was never retrieved"


class ServerProcess:
    """A writable server of the root at `place`. `start` returns when it listens."""

    def __init__(self, place: object, log: Path, listen: str = "127.0.0.1:0", options: Sequence[str] = ()) -> None:
        self._command = [sys.executable, "-m", "sparklog", "serve", str(place), "--writable", "--listen", listen]
        self._command += options
        self._log = log
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("serving"), self.log_text
        self.address = Address.of(line.split()[3])

    @property
    def log_text(self) -> str:
        return self._log.read_text(errors="replace")

    def internal_errors(self) -> list[str]:
        """Return the log from each line of an internal error."""
        lines = self.log_text.splitlines()
        return ["\n".join(lines[n : n + 60]) for n, line in enumerate(lines) if any(e in line for e in INTERNAL_ERRORS)]

    def memory(self, name: str = "VmRSS") -> int:
        """Return the memory of the process in bytes. `VmHWM`: the largest so far."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def server_process(place: object, log: Path, *options: str) -> Iterator[ServerProcess]:
    """Serve in a process during a `with` block, and check that it is still running at the end."""
    server = ServerProcess(place, log, options=options)
    try:
        yield server
        assert server.process.poll() is None, server.log_text
    finally:
        server.kill()
