"""Settings of object stores, except secrets, in the URL of a location, in options and in the environment.

    s3://bucket/log?endpoint=http://minio:9000&region=eu-central-1

Settings in a URL are available in Spark tasks and jobs. The names are obstore's names. In options, Hadoop's names
(`fs.s3a.*`) are accepted as well. Each process reads other settings from its environment, like the programs of the
cloud providers.

URLs and options must not contain secrets, because both are printed, logged and stored in query plans. Secrets come from
the environment, from files (`~/.aws/credentials`, `GOOGLE_APPLICATION_CREDENTIALS`) or from roles of the platform.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from sparklog.common.settings import Setting, ValueType
from sparklog.errors import BadRequest, did_you_mean

S3 = "s3"
GCS = "gs"
AZURE = "az"
HDFS = "hdfs"

_TRUE = ("true", "1", "yes")
_FALSE = ("false", "0", "no")
_SECRET = re.compile(r"secret|password|token|access[_.-]?key|account[_.-]?key|sas([_.-]|$)|credential|private|\bsig\b")


def _word(value: str) -> str:
    if not value or re.search(r"[\s\x00-\x1f]", value):
        raise ValueError(value)
    return value


def _flag(value: str) -> str:
    if value.lower() not in (*_TRUE, *_FALSE):
        raise ValueError(value)
    return "true" if value.lower() in _TRUE else "false"


def _checksum(value: str) -> str:
    if value.upper() not in ("SHA256", "CRC64NVME"):
        raise ValueError(value)
    return value.upper()


def _endpoint(value: str) -> str:
    """Return an endpoint as a URL. Endpoints of Hadoop do not have to contain the scheme.

    Raises `ValueError` if there is a user or a query.
    """
    url = value if "://" in value else f"https://{value}"
    if not re.fullmatch(r"https?://[^/@?#\s]+(/[^@?#\s]*)?", url):
        raise ValueError(url)
    return url.rstrip("/")


_WORD = ValueType("a string without spaces", parse=_word)
_FLAG = ValueType("true or false", parse=_flag, name="boolean")
_CHECKSUM = ValueType("SHA256 or CRC64NVME", parse=_checksum)
_URL = ValueType("a URL such as https://storage.example.com, without user, password and query", parse=_endpoint)
SETTINGS = (
    Setting("endpoint", _URL, None,
            "URL of the object store server. The default is the endpoint of the cloud provider.",
            used_by=(S3, GCS, AZURE),
            aliases=("fs.s3a.endpoint",)),
    Setting("region", _WORD, None,
            "Region of the bucket.", used_by=(S3,), aliases=("fs.s3a.endpoint.region",)),
    Setting("virtual_hosted_style_request", _FLAG, None,
            "Whether the host name in requests contains the bucket name.", used_by=(S3,)),
    Setting("allow_http", _FLAG, None,
            "Whether to allow connections without TLS. Implied by an endpoint that starts with `http://`.",
            used_by=(S3, GCS, AZURE)),
    Setting("profile", _WORD, None,
            "Section of `~/.aws/credentials` that contains the keys.", used_by=(S3,)),
    Setting("skip_signature", _FLAG, None,
            "Whether to send requests without credentials, for public buckets.", used_by=(S3, GCS, AZURE)),
    Setting("disable_bulk_delete", _FLAG, None,
            "Whether to send one request per deleted object, for servers without bulk delete.",
            used_by=(S3,)),
    Setting("server_side_encryption", _WORD, None,
            "Server-side encryption of objects: AES256, aws:kms or aws:kms:dsse.", used_by=(S3,),
            aliases=("fs.s3a.encryption.algorithm",)),
    Setting("sse_kms_key_id", _WORD, None,
            "Id of the KMS key for server-side encryption.", used_by=(S3,), aliases=("fs.s3a.encryption.key",)),
    Setting("checksum_algorithm", _CHECKSUM, None,
            "Checksum algorithm of uploads, which buckets with object lock require.",
            used_by=(S3,)),
    Setting("request_payer", _FLAG, None,
            "Whether to pay for requests to a requester-pays bucket.", used_by=(S3,)),
    Setting("account_name", _WORD, None,
            "Name of the storage account.", used_by=(AZURE,)),
    Setting("use_azure_cli", _FLAG, None,
            "Whether to use the login of the Azure CLI.", used_by=(AZURE,)),
    Setting("use_emulator", _FLAG, None,
            "Whether to use Azurite on this host.", used_by=(AZURE,)),
)  # fmt: skip
"""The settings of object stores. `used_by` contains the schemes that support the setting, and `aliases` contains
Hadoop's names.
"""
NEGATED_SETTINGS = {
    "fs.s3a.path.style.access": "virtual_hosted_style_request",
    "fs.s3a.connection.ssl.enabled": "allow_http",
}
"""Hadoop's flags that are the negation of a setting."""
_BY_NAME = {name: setting for setting in SETTINGS for name in (setting.name, *setting.aliases)}


def is_setting(name: str) -> bool:
    """Return True if `name` is the name of a setting, or of a secret, which `check_settings` rejects."""
    lower = name.lower()
    return lower in _BY_NAME or lower.startswith(("fs.s3a.", "fs.azure.", "fs.gs.", "aws_", "azure_", "google_"))


def check_settings(scheme: str, values: Mapping[str, str], where: str) -> dict[str, str]:
    """Return settings with obstore's names, sorted by name.

    Raises `BadRequest` for a secret (without its value), an unknown name or an invalid value. `where` is the source of
    the settings, for messages.
    """
    settings: dict[str, str] = {}
    for given_name, value in values.items():
        name = given_name.lower()
        setting = _BY_NAME.get(NEGATED_SETTINGS.get(name, name))
        if setting is None and _SECRET.search(name):
            raise BadRequest(
                f"{where} must not contain the secret {given_name}, because settings are printed and logged; set it "
                "in the environment or a credentials file, or use a role of the host"
            )
        if setting is None or scheme not in setting.used_by:
            names = [setting.name for setting in SETTINGS if scheme in setting.used_by]
            hint = did_you_mean(name, names)
            raise BadRequest(f"{where} has no setting {given_name} for {scheme}://{hint}; expected {', '.join(names)}")
        try:
            parsed = setting.type.parse(value)
        except ValueError:
            # Do not report the value, which may contain a password.
            raise BadRequest(f"{where}: {given_name} must be {setting.type.valid}") from None
        settings[setting.name] = str(parsed != "true").lower() if name in NEGATED_SETTINGS else parsed
    return dict(sorted(settings.items()))


def client_config(scheme: str, settings: Mapping[str, str]) -> dict[str, Any]:
    """Return the configuration of an obstore client. The client reads the environment itself, except profiles."""
    config: dict[str, Any] = {name: value for name, value in settings.items() if name not in ("profile", "allow_http")}
    if scheme == GCS and "endpoint" in config:
        config["base_url"] = config.pop("endpoint")
    return config


def profile_keys(scheme: str, settings: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the keys of a profile in `~/.aws/credentials` as obstore's `S3Credential`. The result is empty if there is
    no profile.

    A profile in the URL has priority over keys in the environment, which have priority over `AWS_PROFILE`.
    """
    profile = settings.get("profile")
    if scheme != S3 or settings.get("skip_signature") == "true" or (not profile and "AWS_ACCESS_KEY_ID" in environ):
        return {}
    return _keys_of(profile or environ.get("AWS_PROFILE"), environ)


def checksum_headers(scheme: str, settings: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the client option for PUTs with a checksum: the header with the name of the checksum.

    AWS programs send this header. obstore sends only the checksum, which is sufficient for object lock in S3. Other
    servers require the header.
    """
    name = settings.get("checksum_algorithm") or environ.get("AWS_CHECKSUM_ALGORITHM")
    return {"default_headers": {"x-amz-sdk-checksum-algorithm": name.upper()}} if scheme == S3 and name else {}


def root_certificates(scheme: str, environ: Mapping[str, str]) -> dict[str, bytes]:
    """Return the client option for the certificate authorities in `AWS_CA_BUNDLE`. They are trusted in addition to the
    system's authorities.
    """
    path = environ.get("AWS_CA_BUNDLE") if scheme == S3 else None
    if not path:
        return {}
    try:
        with open(os.path.expanduser(path), "rb") as file:
            data = file.read()
    except OSError as error:
        raise BadRequest(f"the file {path} in AWS_CA_BUNDLE cannot be read: {error.strerror}") from None
    if b"-----BEGIN CERTIFICATE-----" not in data:
        raise BadRequest(f"the file {path} in AWS_CA_BUNDLE contains no certificate; expected PEM format")
    return {"root_certificate": data}


_ENDPOINTS = {
    S3: ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    GCS: ("GOOGLE_BASE_URL",),
    AZURE: ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}


def endpoint_of_environment(scheme: str, environ: Mapping[str, str]) -> str:
    """Return the endpoint in the environment, or an empty string if no endpoint is set."""
    return next((environ[name] for name in _ENDPOINTS.get(scheme, ()) if environ.get(name)), "")


def plain_http(scheme: str, settings: Mapping[str, str], environ: Mapping[str, str]) -> bool:
    """Return True if the client may use HTTP without TLS, because of a setting or the scheme of the endpoint."""
    endpoint = settings.get("endpoint") or endpoint_of_environment(scheme, environ)
    return settings.get("allow_http") == "true" or endpoint.startswith("http://")


def _keys_of(profile: str | None, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the keys of a profile. The result is empty if `profile` is None and the file has no `default` profile with
    keys.
    """
    import configparser

    path = os.path.expanduser(environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials")
    parser = configparser.RawConfigParser(default_section="")
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError):
        raise BadRequest(f"{path} is not an AWS credentials file: expected sections such as [default]") from None
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
