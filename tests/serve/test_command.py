"""`sparklog serve` as a process: the address that it prints, the options that it rejects, and how it stops."""

from __future__ import annotations

import asyncio
import gc
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from unittest.mock import Mock

import pytest

import sparklog
from sparklog.cli.commands.serve import Listening
from sparklog.errors import BadRequest, Unavailable
from sparklog.opening import resolve
from sparklog.serve.connection import WRITE_BYTES, Connection
from sparklog.serve.options import Address, tls_context
from tests.serve.clients import read_with_kafka_python
from tests.serve.test_reading import fetch_of
from tests.serve.wire import Wire
from tests.support.command_line import invoke


def test_the_command_serves_until_a_signal(tmp_path: Path) -> None:
    sparklog.open(tmp_path, create=True).create_topic("t").append({"value": ["a"]})
    command = [sys.executable, "-m", "sparklog", "serve", tmp_path, "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        timer = threading.Timer(60, process.kill)
        timer.start()
        assert process.stdout is not None
        words = process.stdout.readline().split()
        assert words[:3] == ["serving", str(tmp_path), "on"]
        assert [record.value for record in read_with_kafka_python(words[3], "t", 0)] == [b"a"]
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate()
        timer.cancel()
    assert process.returncode == 0, errors
    assert not errors


def test_a_public_address_requires_an_option(tmp_path: Path) -> None:
    sparklog.open(tmp_path, create=True)
    result = invoke(["serve", tmp_path, "--listen", "0.0.0.0:0"])
    assert result.exit_code == 1
    assert "--insecure" in result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--group-min-session-timeout-ms", 60_000, "--group-max-session-timeout-ms", 10_000),
            "group.min.session.timeout.ms 60000 must not exceed group.max.session.timeout.ms 10000",
        ),
        (
            ("--group-consumer-session-timeout-ms", 5_000),
            "group.consumer.heartbeat.interval.ms 5000 must be less than group.consumer.session.timeout.ms 5000",
        ),
    ],
)
def test_timeouts_that_no_member_can_keep_are_rejected(
    tmp_path: Path, options: tuple[object, ...], message: str
) -> None:
    sparklog.open(tmp_path, create=True)
    result = invoke(["serve", tmp_path, *options], {})
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert result.stderr.startswith(f"sparklog: {message}; ")


def test_a_location_without_a_log_is_rejected(tmp_path: Path) -> None:
    result = invoke(["serve", tmp_path / "none"])
    assert (result.exit_code, "There is no log at" in result.stderr) == (1, True)
    assert invoke(["serve"], env={"SPARKLOG_ROOT": None}).exit_code == 2


@pytest.mark.parametrize("text", ["", "host", ":9092", "host:", "host:x", "host:70000"])
def test_an_address_is_a_host_and_a_port(text: str) -> None:
    with pytest.raises(BadRequest, match="host:port"):
        Address.of(text)
    assert str(Address.of("[::1]:9")) == "[::1]:9"


def test_connections_are_encrypted_and_counted(tmp_path: Path, serve: Callable[..., Address]) -> None:
    import ssl
    import urllib.request

    cert, key = certificate(tmp_path)
    root = tmp_path / "root"
    sparklog.open(root, create=True).create_topic("t").append({"value": ["a"]})
    port = free_port()
    address = serve(root, tls=tls_context(str(cert), str(key)), metrics_port=port)
    options = {"security_protocol": "SSL", "ssl_cafile": str(cert), "ssl_check_hostname": False}
    assert [record.value for record in read_with_kafka_python(address, "t", 0, **options)] == [b"a"]
    with (
        pytest.raises(ssl.SSLError),
        ssl.create_default_context().wrap_socket(
            socket.create_connection((address.host, address.port)), server_hostname="127.0.0.1"
        ),
    ):
        pass
    wire = Wire(address)
    wire.socket = ssl.create_default_context(cafile=str(cert)).wrap_socket(wire.socket, server_hostname="127.0.0.1")
    wire.send("Fetch", 4, fetch_of({"t": 0}, 0))
    # A read returns one TLS record, and the response is one record: clients may miss the second of two records.
    answer = wire.socket.recv(1 << 14)
    assert int.from_bytes(answer[:4], "big") == len(answer) - 4 > 61
    wire.close()
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
    assert 'sparklog_serve_requests_total{api="Fetch",version="' in text
    with pytest.raises(BadRequest, match="cannot use the certificate"):
        tls_context(str(key), str(cert))


ASK_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)


def test_an_encrypted_response_is_complete_for_any_request_fragmentation(
    tmp_path: Path, serve: Callable[..., Address]
) -> None:
    """A large response is sent in several parts. asyncio must not delay a part because of an empty buffer."""
    import ssl

    from tests.serve.wire import Wire

    cert, key = certificate(tmp_path)
    root = tmp_path / "root"
    sparklog.open(root, create=True).create_topic("t").append({"value": [random.Random(1).randbytes(700_000)]})
    wire = Wire(serve(root, tls=tls_context(str(cert), str(key))))
    context = ssl.create_default_context(cafile=str(cert))
    context.check_hostname = False
    wire.socket = context.wrap_socket(wire.socket)
    partition = {"partition": 0, "fetchOffset": 0, "partitionMaxBytes": 1 << 20}
    fields = {"maxWaitMs": 0, "minBytes": 1, "maxBytes": 1 << 20, "topics": [{"topic": "t", "partitions": [partition]}]}
    for pieces in (1, 2, 3):
        for place in range(pieces):
            wire.socket.sendall(ASK_VERSIONS[place * 4 : None if place == pieces - 1 else place * 4 + 4])
            time.sleep(0.05)
        assert wire.receive("ApiVersions", 0)["apiKeys"]
        assert wire.ask("Fetch", 4, fields)["responses"][0]["partitions"][0]["records"]
    wire.close()


def test_with_tls_a_large_response_is_not_copied_in_memory() -> None:
    parts = [random.Random(n).randbytes(size) for n, size in enumerate((4, 100, 5_000_000, 7, 3_000_000))]
    sent, digest = list[int](), sha256()

    class Writer:
        transport = Mock()

        def get_extra_info(self, name: str) -> object:
            return ("host", 1) if name == "peername" else object()

        def write(self, piece: bytes) -> None:
            sent.append(len(piece))
            digest.update(piece)

        async def drain(self) -> None: ...

    async def send() -> None:
        connection = Connection(Mock(), Mock(), Writer())  # type: ignore[arg-type]
        tracemalloc.start()
        await connection._send(parts)

    asyncio.run(send())
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 4 * WRITE_BYTES
    assert digest.digest() == sha256(b"".join(parts)).digest()
    assert set(sent[:-1]) == {WRITE_BYTES}, "the header goes with the first records"


def test_a_connection_that_has_ended_can_be_closed() -> None:
    """A server that stops closes all connections, including those whose transport no longer has a socket."""
    writer = Mock(get_extra_info=Mock(return_value=None))

    async def close() -> None:
        Connection(Mock(), Mock(), writer).close()

    asyncio.run(close())
    writer.transport.abort.assert_called_once_with()


def test_an_error_reports_a_port_in_use(tmp_path: Path, serve: Callable[..., Address]) -> None:
    sparklog.open(tmp_path, create=True)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(Unavailable, match=f"cannot listen on 127.0.0.1:{port}"):
            serve(tmp_path, metrics_port=port)


def test_a_server_listens_before_it_imports_request_handlers() -> None:
    code = "import sparklog.serve.server, sys; print(*(name[9:] for name in sys.modules if name[:9] == 'sparklog.'))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = answer.stdout.split()
    assert "serve.connection" in imported
    late = ("groups", "log.write", "log.read.fetch", "serve.appends", "serve.users")
    assert not [name for name in imported if name.startswith(late)]


def certificate(folder: Path) -> tuple[Path, Path]:
    """Create a self-signed certificate for 127.0.0.1, and its key."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("needs openssl")
    return cert, key


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("writable", [True, False])
def test_a_writable_server_loads_kernels_before_the_first_producer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writable: bool
) -> None:
    import asyncio
    import os

    from sparklog.format.kernels.kernel_choice import Kernel
    from sparklog.serve import server
    from sparklog.serve.options import ServeOptions

    sparklog.open(tmp_path, create=True)
    loaded: list[str] = []
    interval, frozen, pauses = sys.getswitchinterval(), gc.get_freeze_count(), list[tuple[bool, bool]]()

    def load(kernel: Kernel) -> None:
        loaded.append(kernel.function.__name__)
        pauses.append((gc.isenabled(), sys.getswitchinterval() < interval))

    monkeypatch.setattr(Kernel, "load", load)
    monkeypatch.setattr(server, "KERNEL_SECONDS", 0.01)

    def ready(_: Address) -> None:
        asyncio.get_running_loop().call_later(0.1, os.kill, os.getpid(), signal.SIGTERM)

    options = ServeOptions(Address("127.0.0.1", 0), writable=writable)
    asyncio.run(server.serve_until_signal(server.open_served(resolve(str(tmp_path))), options, ready))
    assert loaded == ["check_records"] * writable
    assert pauses == [(False, True)] * writable, "other threads are not stopped for long"
    assert (gc.get_freeze_count() > frozen) == writable
    gc.unfreeze()
    assert gc.isenabled()
    assert sys.getswitchinterval() == interval


def test_an_advertised_port_that_is_not_the_listen_port_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    Listening(listen="127.0.0.1:9092", advertise=["127.0.0.1:19092"]).options(writable=False, auto_create=False)
    told = "clients will connect to 127.0.0.1:19092, but this server listens on 127.0.0.1:9092"
    assert told in capsys.readouterr().err
    for advertise in (None, ["127.0.0.1:9092", "127.0.0.1:9093"], ["log.example.org:9092"]):
        Listening(listen="127.0.0.1:9092", advertise=advertise).options(writable=False, auto_create=False)
    assert capsys.readouterr().err == ""
