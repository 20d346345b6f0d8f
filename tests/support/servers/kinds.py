"""Servers that speak a store's protocol, each started with one call; `bucket` makes an empty bucket and names its URL.

| name | speaks | holds a root |
|---|---|---|
| `moto` | S3 | yes |
| `versitygw` | S3; over a folder, checks signatures | yes |
| `azurite` | Azure | yes |
| `gcs` | Google: a proxy of ours before moto | yes |
| `s3mock4`, `s3mock5` | S3; looks first, writes then | no |
| `s3rver` | S3; ignores the condition | no |
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from itertools import count
from pathlib import Path
from urllib.parse import urlencode

from tests.support.servers.process import ServerProcess
from tests.support.servers.programs import AZURITE, S3MOCK_4, S3MOCK_5, S3RVER, VERSITYGW, Program, find

KEY, SECRET = "S3RVER", "S3RVER"
"""The only pair that s3rver knows; the others take any."""
S3_ENVIRON = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Of every azurite: published, and no secret."""


@dataclass(slots=True)
class Running:
    """A server that runs; `environ`: the variables a client needs, `make`: makes a bucket of this name."""

    url: str
    environ: Mapping[str, str]
    make: Callable[[str], None]
    located: Callable[[str], str]
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def bucket(self) -> str:
        """Make an empty bucket; return its URL."""
        name = f"test-{next(self._numbers)}"
        self.make(name)
        return self.located(name)


@contextmanager
def moto(folder: Path) -> Iterator[Running]:
    with ServerProcess(folder, _moto) as server:
        yield _s3(server)


@contextmanager
def versitygw(folder: Path) -> Iterator[Running]:
    program, data = find(VERSITYGW), folder / "data"
    for each in (data, folder / "sidecar"):
        each.mkdir(parents=True)
    environ = {"ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET}

    def command(port: int) -> list[str]:
        # The metadata goes into files: not every file system has extended attributes.
        return [program, "--port", f"127.0.0.1:{port}", "posix", "--sidecar", str(folder / "sidecar"), str(data)]

    with ServerProcess(folder, command, environ) as server:
        yield _s3(server)


@contextmanager
def s3rver(folder: Path) -> Iterator[Running]:
    program = find(S3RVER)

    def command(port: int) -> list[str]:
        return [program, "-d", str(folder / "data"), "-a", "127.0.0.1", "-p", str(port), "--no-vhost-buckets"]

    (folder / "data").mkdir(parents=True)
    with ServerProcess(folder, command) as server:
        yield _s3(server)


def s3mock(program: Program) -> Callable[[Path], AbstractContextManager[Running]]:
    @contextmanager
    def run(folder: Path) -> Iterator[Running]:
        jar = find(program)

        def command(port: int) -> list[str]:
            # Its temporary files stay behind.
            options = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Djava.io.tmpdir={folder}")
            return ["java", *options, "-jar", jar, f"--com.adobe.testing.s3mock.httpPort={port}", "--server.port=0"]

        with ServerProcess(folder, command) as server:
            yield _s3(server)

    return run


@contextmanager
def azurite(folder: Path) -> Iterator[Running]:
    program = find(AZURITE)

    def command(port: int) -> list[str]:
        quiet = ("--silent", "--skipApiVersionCheck", "--disableTelemetry", "--inMemoryPersistence")
        return [program, "--blobHost", "127.0.0.1", "--blobPort", str(port), *quiet]

    with ServerProcess(folder, command) as server:
        environ = {"AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": ACCOUNT_KEY}
        endpoint = f"{server.url}/{ACCOUNT}"
        yield Running(server.url, environ, lambda name: _make_container(endpoint, name), _located("az", endpoint))


@contextmanager
def gcs(folder: Path) -> Iterator[Running]:
    with ExitStack() as servers:
        behind = servers.enter_context(ServerProcess(folder / "moto", _moto))

        def command(port: int) -> list[str]:
            return [sys.executable, "-m", "tests.support.servers.gcs_proxy", str(port), behind.url]

        here = {"PYTHONPATH": str(Path(__file__).parents[3])}
        server = servers.enter_context(ServerProcess(folder, command, here))
        yield Running(server.url, {"GOOGLE_BEARER_TOKEN": "any"}, _s3(behind).make, _located("gs", server.url))


Start = Callable[[Path], AbstractContextManager[Running]]
HOLD_A_ROOT: dict[str, Start] = {"moto": moto, "versitygw": versitygw, "azurite": azurite, "gcs": gcs}
HOLD_NONE: dict[str, Start] = {"s3rver": s3rver, "s3mock4": s3mock(S3MOCK_4), "s3mock5": s3mock(S3MOCK_5)}


def _moto(port: int) -> list[str]:
    return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]


def _s3(server: ServerProcess) -> Running:
    def make(name: str) -> None:
        from botocore.config import Config
        from botocore.session import Session

        session = Session()
        session.set_credentials(KEY, SECRET)
        config = Config(s3={"addressing_style": "path"})
        client = session.create_client("s3", region_name="us-east-1", endpoint_url=server.url, config=config)
        client.create_bucket(Bucket=name)

    return Running(server.url, S3_ENVIRON, make, _located("s3", server.url))


def _located(scheme: str, endpoint: str, **more: str) -> Callable[[str], str]:
    return lambda name: f"{scheme}://{name}?{urlencode({'endpoint': endpoint, **more}, safe=':/')}"


def _make_container(endpoint: str, name: str) -> None:
    """Create a container, signed with the Shared Key: obstore cannot."""
    stamps = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    account = endpoint.rpartition("/")[2]
    # The verb, eleven standard headers that are not sent, then Azure's own and the resource.
    lines = ["PUT", *[""] * 11, *(f"{key}:{value}" for key, value in stamps.items())]
    signed = "\n".join([*lines, f"/{account}/{account}/{name}", "restype:container"])
    digest = hmac.new(base64.b64decode(ACCOUNT_KEY), signed.encode(), hashlib.sha256).digest()
    stamps["Authorization"] = f"SharedKey {account}:{base64.b64encode(digest).decode()}"
    request = urllib.request.Request(f"{endpoint}/{name}?restype=container", headers=stamps, method="PUT")
    urllib.request.urlopen(request, timeout=30).close()
