"""A process that imports the packages of all Python processes of a JVM once, and forks these processes.

Spark starts a daemon for each kind of worker, and a process for each source of a streaming query. Each of them would
import pyspark, numpy, pyarrow and sparklog again, one after the other. Instead, the first daemon for a data source
forks a server, which imports the packages of all kinds in the background:

1. The JVM runs sparklog-python for the first daemon. The daemon binds a socket in the local directory of the Spark
   application, and forks the server.
2. The JVM runs sparklog-python for another process. The script finds the socket, and runs a small client instead of
   the process. The client sends its arguments, its environment, and its standard input, output and error.
3. The server forks a process, which takes over these files, and continues with the arguments of the client.
4. The client waits until its connection is closed, which is when the process ends. If Spark ends the client, the kernel
   sends SIGTERM to the process (F_SETSIG).

* **Rejection**: The server rejects a request if the process has a memory limit, or if an environment variable differs
  that may have an effect on the interpreter, such as PYTHONPATH or PYTHONHASHSEED. sparklog-python sets variables for
  the Python executable and the current directory. Variables that Spark reads after the start may differ. If the server
  rejects the request or does not exist, the client becomes the process itself.
* **End**: The server ends when its standard input is closed, which the first daemon has inherited from the JVM. Each
  process notices the end of the JVM by its own standard input or socket, as without a server.
* **Access**: The local directory belongs to the user of the application, and the server verifies the user of a client.
* **Threads of numpy**: Spark sets OMP_NUM_THREADS=1 for tasks, but not for planning. numpy reads the variable when it
  is imported, so the first daemon imports packages with 1 if the variable is not set.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain

SOCKET = "sparklog-python"
"""The name of the socket in the first directory of SPARK_LOCAL_DIRS. The script sparklog-python contains the name."""

THREADS = "OMP_NUM_THREADS"
SPARK_VARIABLES = (
    *("SPARK_", "PYSPARK_", "PYTHON_WORKER_", "PYTHON_UNIX_DOMAIN_", "PYTHON_DAEMON_", "PYTHON_UDF_"),
    *("PYTHON_FAULTHANDLER_", "PYTHON_TRACEBACK_"),
)
"""Prefixes of the environment variables that Spark sets for a process and reads after the start. The variables in
MEMORY_LIMITS are exceptions.
"""
MEMORY_LIMITS = ("PYSPARK_EXECUTOR_MEMORY_MB", "PYSPARK_PLANNER_MEMORY_MB")
"""Environment variables with the limits of `spark.executor.pyspark.memory` and of planning."""

CLIENT_SECONDS = 10.0
"""The maximum time between the connection of a client and its complete request, which the client sends immediately."""

FILES = 3
"""The number of files of a request: the standard input, output and error."""

_connections: list[socket.socket] = []
"""The connection of this process to its client."""

_CREDENTIALS = struct.Struct("3i")
_SIZE = struct.Struct("!i")


@dataclass(frozen=True)
class ForkRequest:
    """A process to start: the arguments of Python after `-m`, and the environment."""

    arguments: list[str]
    environ: dict[str, str]


def interpreter_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that have an effect on the start of Python and on imports."""
    chosen = {
        name: value for name, value in environ.items() if name in MEMORY_LIMITS or not name.startswith(SPARK_VARIABLES)
    }
    return {THREADS: "1"} | chosen


def start_server(steps: Iterator[None], later: Callable[[str], Iterator[None]]) -> ForkRequest | None:
    """Fork a server that imports modules, unless the application has a server on this host.

    This function returns None in the calling process, and returns again in each process that the server forks, with the
    request for that process.

    Args:
        steps: An iterator that imports one module in each step.
        later: A function that returns further steps after a request. Its argument is the last argument of the request.
    """
    directory = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
    if not directory or not hasattr(socket, "SO_PEERCRED"):
        return None
    path, listener = os.path.join(directory, SOCKET), socket.socket(socket.AF_UNIX)
    try:
        listener.bind(path)
        listener.listen()
        child = os.fork()
    except OSError:  # Another daemon was first, the path is too long, or a fork is not possible.
        listener.close()
        return None
    if child:
        listener.close()
        return None
    try:
        return _serve(listener, path, steps, later)
    except BaseException:  # noqa: BLE001 - the server must not continue as a daemon
        os._exit(1)


def _serve(
    listener: socket.socket, path: str, steps: Iterator[None], later: Callable[[str], Iterator[None]]
) -> ForkRequest:
    """Import the modules, and fork a process for each request, also between two imports."""
    os.setpgid(0, 0)
    os.dup2(2, 1)
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGCHLD)}
    expected = interpreter_environment(os.environ)
    poller = select.poll()
    poller.register(0, 0)  # Only the end of the standard input is reported.
    poller.register(listener, select.POLLIN)
    is_complete, done = False, object()
    while True:
        for descriptor, _ in poller.poll(None if is_complete else 0):
            if descriptor == 0:
                with suppress(OSError):
                    os.unlink(path)
                os._exit(0)
            request, is_server = _accept(listener, expected)
            if request is None:
                continue
            if not is_server:
                listener.close()
                for number, handler in handlers.items():
                    signal.signal(number, handler)
                return request
            steps, is_complete = chain(steps, later(request.arguments[-1])), False
        is_complete = is_complete or next(steps, done) is done


def _accept(listener: socket.socket, expected: Mapping[str, str]) -> tuple[ForkRequest | None, bool]:
    """Handle the request of one client. Return the request, or None if it was rejected, and whether this process is the
    server.
    """
    connection, _ = listener.accept()
    request = None
    with suppress(OSError, ValueError):
        connection.settimeout(CLIENT_SECONDS)
        received, files = _receive(connection)
        try:
            if interpreter_environment(received.environ) == expected and len(files) == FILES:
                if os.fork() == 0:
                    try:
                        _take_over(connection, received, files)
                    except BaseException:  # noqa: BLE001 - this process must not continue as a server
                        os._exit(1)
                    files = []
                    return received, False
                request = received
        finally:
            for file in files:
                os.close(file)
    connection.close()
    return request, True


def _receive(connection: socket.socket) -> tuple[ForkRequest, list[int]]:
    """Return a request and the files of its client. Raises OSError if the client is of another user or disconnects,
    and ValueError if the request is incomplete.
    """
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    if _CREDENTIALS.unpack(credentials)[1] != os.getuid():
        raise PermissionError("the client is of another user")
    head, files, _, _ = socket.recv_fds(connection, _SIZE.size, FILES)
    try:
        return _receive_request(connection, head), files
    except BaseException:
        for file in files:
            os.close(file)
        raise


def _receive_request(connection: socket.socket, head: bytes) -> ForkRequest:
    data, size = b"", _SIZE.unpack(head)[0] if len(head) == _SIZE.size else 0
    while len(data) < size and (part := connection.recv(size - len(data))):
        data += part
    arguments, _, variables = os.fsdecode(data).partition("\0\0")
    environ = dict(variable.split("=", 1) for variable in variables.split("\0"))
    return ForkRequest(arguments.split("\0"), environ)


def _take_over(connection: socket.socket, request: ForkRequest, files: Iterable[int]) -> None:
    """Continue as the process of the client. The connection closes when this process ends. If the client is ended, the
    kernel sends SIGTERM to this process.
    """
    import fcntl

    os.setpgid(0, 0)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request.environ)
    os.register_at_fork(after_in_child=connection.close)  # A worker of a daemon
    connection.settimeout(None)
    fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(connection, fcntl.F_SETSIG, signal.SIGTERM)
    fcntl.fcntl(connection, fcntl.F_SETFL, fcntl.fcntl(connection, fcntl.F_GETFL) | os.O_ASYNC)
    connection.sendall(b"y")
    _connections.append(connection)
