"""TLS and proxies in front of a bucket: their errors are reported, and settings in the environment are used."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from sparklog.errors import BadRequest, Unavailable
from sparklog.storage import open_store
from tests.support.stub_bucket import StubBucket, stub_bucket

x509 = pytest.importorskip("cryptography.x509", reason="cryptography is not installed: pip install 'moto[server]'")


@dataclass(frozen=True)
class Authority:
    """A certificate authority that no host trusts. It signs certificates, as files in PEM format."""

    folder: Path

    @property
    def file(self) -> str:
        return str(self.folder / "authority.pem")

    def certificate(self, host: str, *, days: int) -> str:
        return str(self.folder / f"{host}{days}.pem")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    made = Authority(tmp_path_factory.mktemp("authority"))
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a private authority")])
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())

    def sign(alternative: list[object], days: int) -> bytes:
        start = datetime(2020, 1, 1)
        builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(start).not_valid_after(start + timedelta(days=days))
        builder = builder.add_extension(x509.BasicConstraints(ca=not alternative, path_length=None), critical=True)
        if alternative:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternative), critical=False)
        return bytes(builder.sign(key, hashes.SHA256()).public_bytes(pem))

    Path(made.file).write_bytes(sign([], 36_500))
    here = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    for host, days, names in (("here", 36_500, here), ("here", 9, here), ("other", 36_500, x509.DNSName("other"))):
        Path(made.certificate(host, days=days)).write_bytes(sign([names], days) + secret)
    return made


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "ALL_PROXY", "SSL_CERT_FILE", "AWS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.setattr("sparklog.storage.object_store._RETRIES", 0)


def answer(stub: StubBucket, location: str | None = None) -> str:
    stub.objects["log/a"] = b"hello"
    try:
        return open_store(location or stub.url).get("a").decode()
    except Unavailable as error:
        return str(error)


@pytest.mark.parametrize(
    ("host", "days", "trusted", "words"),
    [
        ("here", 36_500, True, "hello"),
        (
            "here",
            36_500,
            False,
            "the server's certificate is invalid (UnknownIssuer): it is not signed by an authority",
        ),
        ("here", 9, True, "the server's certificate is invalid (Expired): it has expired, or this host's clock"),
        ("other", 36_500, True, "is invalid (NotValidForName): it is not valid for the endpoint's host name"),
    ],
)
def test_aws_ca_bundle_is_trusted_and_other_certificates_are_reported(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, host: str, days: int, trusted: bool, words: str
) -> None:
    if trusted:
        monkeypatch.setenv("AWS_CA_BUNDLE", authority.file)
    with stub_bucket(certificate=authority.certificate(host, days=days)) as stub:
        assert words in answer(stub)


def test_a_private_authority_is_trusted_by_ssl_cert_file(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", authority.file)
    with stub_bucket(certificate=authority.certificate("here", days=36_500)) as stub:
        assert answer(stub) == "hello"


@pytest.mark.parametrize(
    ("content", "words"), [(None, "cannot be read: No such file"), (b"x", "no certificate; expec")]
)
def test_an_invalid_ca_bundle_is_reported_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes | None, words: str
) -> None:
    file = tmp_path / "bundle.pem"
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(file))
    with pytest.raises(BadRequest) as caught:
        open_store("s3://bucket/log?endpoint=https://127.0.0.1:9").get("a")
    assert words in str(caught.value)


@pytest.fixture
def stub() -> Iterator[StubBucket]:
    with stub_bucket() as bucket:
        yield bucket


def test_a_server_without_tls_is_reported(stub: StubBucket) -> None:
    assert "does not use TLS; check the endpoint's port" in answer(stub, stub.url.replace("http:", "https:"))


def test_proxies_in_the_environment_are_used(stub: StubBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """No server has this name, so the response comes from the proxy."""
    plain, tls = ("s3://bucket/log?endpoint=http://s3.invalid", "s3://bucket/log?endpoint=https://s3.invalid")
    proxy = stub.url.partition("endpoint=")[2]
    assert "cannot be reached" in answer(stub, plain)
    monkeypatch.setenv("HTTP_PROXY", proxy)
    assert answer(stub, plain) == "hello"
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    assert (
        "the proxy refuses to connect to the server; check HTTPS_PROXY, or add the server's host to NO_PROXY"
        in answer(stub, tls)
    )
    monkeypatch.setenv("NO_PROXY", "s3.invalid")
    for location in (plain, tls):
        assert "cannot be reached" in answer(stub, location)
