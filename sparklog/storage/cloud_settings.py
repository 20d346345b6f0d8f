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
    """Return an endpoint as a URL: Hadoop's may lack the scheme. `ValueError` for one with a user part or a query."""
    url = value if "://" in value else f"https://{value}"
    if not re.fullmatch(r"https?://[^/@?#\s]+(/[^@?#\s]*)?", url):
        raise ValueError(url)
    return url.rstrip("/")


_WORD = ValueType("a word without blanks", parse=_word)
_FLAG = ValueType("true or false", parse=_flag, name="boolean")
_CHECKSUM = ValueType("SHA256 or CRC64NVME", parse=_checksum)
_URL = ValueType("a URL such as https://storage.example.com, without user, password and query", parse=_endpoint)
SETTINGS = (
    Setting("endpoint", _URL, None, "URL of the server; the cloud's if left out", used_by=(S3, GCS, AZURE),
            aliases=("fs.s3a.endpoint",)),
    Setting("region", _WORD, None, "region of the bucket", used_by=(S3,), aliases=("fs.s3a.endpoint.region",)),
    Setting("virtual_hosted_style_request", _FLAG, None, "true: the bucket is part of the host's name", used_by=(S3,)),
    Setting("allow_http", _FLAG, None, "true: without TLS; also meant by an endpoint that begins http://",
            used_by=(S3, GCS, AZURE)),
    Setting("profile", _WORD, None, "section of ~/.aws/credentials with the keys", used_by=(S3,)),
    Setting("skip_signature", _FLAG, None, "true: without credentials, for public buckets", used_by=(S3, GCS, AZURE)),
    Setting("disable_bulk_delete", _FLAG, None, "true: one request a deleted object, for servers without bulk",
            used_by=(S3,)),
    Setting("server_side_encryption", _WORD, None, "AES256, aws:kms or aws:kms:dsse", used_by=(S3,),
            aliases=("fs.s3a.encryption.algorithm",)),
    Setting("sse_kms_key_id", _WORD, None, "the id of the KMS key", used_by=(S3,), aliases=("fs.s3a.encryption.key",)),
    Setting("checksum_algorithm", _CHECKSUM, None, "checksum of uploads, for object lock: SHA256 or CRC64NVME",
            used_by=(S3,)),
    Setting("request_payer", _FLAG, None, "true: pay for requests to a bucket of requester pays", used_by=(S3,)),
    Setting("account_name", _WORD, None, "the storage account", used_by=(AZURE,)),
    Setting("use_azure_cli", _FLAG, None, "true: the login of the az program", used_by=(AZURE,)),
    Setting("use_emulator", _FLAG, None, "true: Azurite on this machine", used_by=(AZURE,)),
)  # fmt: skip
"""`used_by`: the schemes that have a setting. `aliases`: Hadoop's names."""
OPPOSITES = {
    "fs.s3a.path.style.access": "virtual_hosted_style_request",
    "fs.s3a.connection.ssl.enabled": "allow_http",
}
"""Hadoop's names of flags that mean the opposite."""
_BY_NAME = {name: setting for setting in SETTINGS for name in (setting.name, *setting.aliases)}


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
        setting = _BY_NAME.get(OPPOSITES.get(name, name))
        if setting is None and _SECRET.search(name):
            raise BadRequest(
                f"{where} must not carry the secret {given_name}: it would be printed and logged; give it in the "
                "environment, in a credentials file, or by a role of the machine"
            )
        if setting is None or scheme not in setting.used_by:
            names = [setting.name for setting in SETTINGS if scheme in setting.used_by]
            hint = did_you_mean(name, names)
            raise BadRequest(f"{where} has no setting {given_name} for {scheme}://{hint}; expected {', '.join(names)}")
        try:
            parsed = setting.type.parse(value)
        except ValueError:
            # Without the value, which may hold a password.
            raise BadRequest(f"{where}: {given_name} must be {setting.type.valid}") from None
        settings[setting.name] = str(parsed != "true").lower() if name in OPPOSITES else parsed
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
