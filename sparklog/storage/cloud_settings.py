"""Settings of object stores that are no secret: in a location's URL, in options and in the environment.

    s3://bucket/log?endpoint=http://minio:9000&region=eu-central-1

So a setting reaches Spark's tasks and jobs. Names are those of obstore; Hadoop's (`fs.s3a.*`) are taken as options too.
What the URL does not name comes from the environment of each process, as the clouds' own programs take it.

Secrets are never in a URL or an option, because both are printed, logged and written into plans. They come from the
environment, from files (`~/.aws/credentials`, `GOOGLE_APPLICATION_CREDENTIALS`) or from the platform's roles.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sparklog.errors import BadRequest, did_you_mean

S3 = "s3"
GCS = "gs"
AZURE = "az"
HDFS = "hdfs"

_TRUE = ("true", "1", "yes")
_FALSE = ("false", "0", "no")
_SECRET = re.compile(r"secret|password|token|access[_.-]?key|account[_.-]?key|sas([_.-]|$)|credential|private|\bsig\b")


def _text(value: str) -> str:
    if not value or re.search(r"[\s\x00-\x1f]", value):
        raise ValueError("a word without blanks")
    return value


def _flag(value: str) -> str:
    if value.lower() not in (*_TRUE, *_FALSE):
        raise ValueError("true or false")
    return "true" if value.lower() in _TRUE else "false"


def _not_flag(value: str) -> str:
    return "false" if _flag(value) == "true" else "true"


def _checksum(value: str) -> str:
    if value.upper() not in ("SHA256", "CRC64NVME"):
        raise ValueError("SHA256 or CRC64NVME")
    return value.upper()


def _endpoint(value: str) -> str:
    """Return an endpoint as a URL: Hadoop's may lack the scheme. `ValueError` for one with a user part or a query."""
    url = value if "://" in value else f"https://{value}"
    if not re.fullmatch(r"https?://[^/@?#\s]+(/[^@?#\s]*)?", url):
        raise ValueError("a URL such as https://storage.example.com, without user, password and query")
    return url.rstrip("/")


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its name, the schemes that have it, and how its text is read (`ValueError` says what is valid)."""

    name: str
    schemes: tuple[str, ...]
    read: Callable[[str], str]
    about: str
    hadoop: Mapping[str, Callable[[str], str]]


SETTINGS = (
    Setting("endpoint", (S3, GCS, AZURE), _endpoint, "URL of the server; the cloud's if left out",
            {"fs.s3a.endpoint": _endpoint}),
    Setting("region", (S3,), _text, "region of the bucket", {"fs.s3a.endpoint.region": _text}),
    Setting("virtual_hosted_style_request", (S3,), _flag, "true: the bucket is part of the host's name",
            {"fs.s3a.path.style.access": _not_flag}),
    Setting("allow_http", (S3, GCS, AZURE), _flag, "true: without TLS; also meant by an endpoint that begins http://",
            {"fs.s3a.connection.ssl.enabled": _not_flag}),
    Setting("profile", (S3,), _text, "section of ~/.aws/credentials with the keys", {}),
    Setting("skip_signature", (S3, GCS, AZURE), _flag, "true: without credentials, for public buckets", {}),
    Setting("disable_bulk_delete", (S3,), _flag, "true: one request a deleted object, for servers without bulk", {}),
    Setting("server_side_encryption", (S3,), _text, "AES256, aws:kms or aws:kms:dsse",
            {"fs.s3a.encryption.algorithm": _text}),
    Setting("sse_kms_key_id", (S3,), _text, "the id of the KMS key", {"fs.s3a.encryption.key": _text}),
    Setting("checksum_algorithm", (S3,), _checksum, "checksum of uploads, for object lock: SHA256 or CRC64NVME", {}),
    Setting("request_payer", (S3,), _flag, "true: pay for requests to a bucket of requester pays", {}),
    Setting("account_name", (AZURE,), _text, "the storage account", {}),
    Setting("use_azure_cli", (AZURE,), _flag, "true: the login of the az program", {}),
    Setting("use_emulator", (AZURE,), _flag, "true: Azurite on this machine", {}),
)  # fmt: skip
_BY_NAME = {setting.name: setting for setting in SETTINGS}
_BY_HADOOP_NAME = {name: (setting, read) for setting in SETTINGS for name, read in setting.hadoop.items()}


def is_setting(name: str) -> bool:
    """True for the name of a setting, or of a secret that is taken for one: both go to `check_settings`."""
    low = name.lower()
    return low in _BY_NAME or low.startswith(("fs.s3a.", "fs.azure.", "fs.gs.", "aws_", "azure_", "google_"))


def check_settings(scheme: str, values: Mapping[str, str], where: str) -> dict[str, str]:
    """Return settings under obstore's names, sorted by name.

    Raises `BadRequest` for a secret (without showing it), a name that the scheme does not have, or a value that does
    not fit. `where` names the place they were given in, for messages.
    """
    settings: dict[str, str] = {}
    for given_name, value in values.items():
        name = given_name.lower()
        setting, read = _BY_HADOOP_NAME.get(name) or (_BY_NAME.get(name), None)
        if setting is None and _SECRET.search(name):
            raise BadRequest(
                f"{where} must not carry the secret {given_name}: it would be printed and logged; give it in the "
                "environment, in a credentials file, or by a role of the machine"
            )
        if setting is None or scheme not in setting.schemes:
            names = [setting.name for setting in SETTINGS if scheme in setting.schemes]
            hint = did_you_mean(name, names)
            raise BadRequest(f"{where} has no setting {given_name} for {scheme}://{hint}; expected {', '.join(names)}")
        try:
            settings[setting.name] = (read or setting.read)(value)
        except ValueError as error:
            raise BadRequest(f"{where}: {given_name} must be {error}") from None
    return dict(sorted(settings.items()))


def client_config(scheme: str, settings: Mapping[str, str]) -> dict[str, Any]:
    """Return the configuration of obstore's client. The environment is read by obstore itself, but for profiles."""
    config: dict[str, Any] = {name: value for name, value in settings.items() if name not in ("profile", "allow_http")}
    if scheme == GCS and "endpoint" in config:
        config["base_url"] = config.pop("endpoint")
    return config


def profile_keys(scheme: str, settings: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the keys of a profile of `~/.aws/credentials` as obstore's `S3Credential`; empty if none is meant.

    A profile of the URL counts more than the keys of the environment, and these more than `AWS_PROFILE`.
    """
    profile = settings.get("profile")
    if scheme != S3 or settings.get("skip_signature") == "true" or (not profile and "AWS_ACCESS_KEY_ID" in environ):
        return {}
    return _keys_of(profile or environ.get("AWS_PROFILE"), environ)


def checksum_headers(scheme: str, settings: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the client's option for a PUT with a checksum: the header that names it, as programs of AWS send it.

    obstore sends the checksum alone. That is what S3 asks for where a bucket has object lock; others look for the name.
    """
    name = settings.get("checksum_algorithm") or environ.get("AWS_CHECKSUM_ALGORITHM")
    return {"default_headers": {"x-amz-sdk-checksum-algorithm": name.upper()}} if scheme == S3 and name else {}


def root_certificates(scheme: str, environ: Mapping[str, str]) -> dict[str, bytes]:
    """Return the client's option for the authorities in `AWS_CA_BUNDLE`, trusted besides those of the machine."""
    path = environ.get("AWS_CA_BUNDLE") if scheme == S3 else None
    if not path:
        return {}
    try:
        with open(os.path.expanduser(path), "rb") as file:
            data = file.read()
    except OSError as error:
        raise BadRequest(f"AWS_CA_BUNDLE names {path}, which cannot be read ({error.strerror}); correct it") from None
    if b"-----BEGIN CERTIFICATE-----" not in data:
        raise BadRequest(f"AWS_CA_BUNDLE names {path}, in which there is no certificate; expected a file in PEM format")
    return {"root_certificate": data}


_ENDPOINTS = {
    S3: ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    GCS: ("GOOGLE_BASE_URL",),
    AZURE: ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}


def endpoint_of_environment(scheme: str, environ: Mapping[str, str]) -> str:
    """Return the server that the environment names; empty if it names none."""
    return next((environ[name] for name in _ENDPOINTS.get(scheme, ()) if environ.get(name)), "")


def plain_http(scheme: str, settings: Mapping[str, str], environ: Mapping[str, str]) -> bool:
    """True if the client may speak HTTP without TLS: asked for, or the endpoint is written so."""
    endpoint = settings.get("endpoint") or endpoint_of_environment(scheme, environ)
    return settings.get("allow_http") == "true" or endpoint.startswith("http://")


def _keys_of(profile: str | None, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the keys of a profile; none if no profile is named and the file has no `default` with keys."""
    import configparser

    path = os.path.expanduser(environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials")
    parser = configparser.RawConfigParser(default_section="")
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError):
        raise BadRequest(f"{path} is no credentials file of AWS: expected sections such as [default]") from None
    name = profile or "default"
    section = dict(parser[name]) if parser.has_section(name) else {}
    if "aws_access_key_id" not in section or "aws_secret_access_key" not in section:
        if profile is None:
            return {}
        raise BadRequest(
            f"{path} has no keys for the profile {profile}: expected aws_access_key_id and aws_secret_access_key in "
            f"the section [{profile}]; for single sign-on run `aws configure export-credentials`"
        )
    return {
        "access_key_id": section["aws_access_key_id"],
        "secret_access_key": section["aws_secret_access_key"],
        "token": section.get("aws_session_token") or None,
        "expires_at": None,
    }
