"""Convert errors of object stores to one line: the failed request, and the missing permission or setting.

The text of obstore's errors contains URLs with signatures, headers, and the entire response of the server. sparklog's
messages contain only the HTTP status and the error code of the server.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sparklog.errors import BadRequest, SparklogError, Unavailable
from sparklog.storage.cloud_settings import AZURE, GCS, S3
from sparklog.storage.locations import StoreUrl
from sparklog.storage.store import missing_object

_STATUS = re.compile(r"status code: (\d{3})|inner: Status \{\s*status: (\d{3})")
_HTTP = re.compile(r"HttpError \{\s*kind: ([A-Za-z]+)")
# The second form is used for a key in the response to a bulk delete, whose status is 200.
_CODE = re.compile(r"<Code>([A-Za-z]{1,60})</Code>|\(code: ([A-Za-z]{1,60})\)")
TRUNCATED_RESPONSE = "Interrupted"
"""The result of `network_failure` if the connection was closed in the middle of a response body."""
_CERTIFICATE = re.compile(r"InvalidCertificate\(\s*([A-Za-z]+)")
_BUSY_CODES = ("SlowDown", "ServiceUnavailable", "InternalError", "RequestTimeout", "ServerBusy", "OperationTimedOut")
"""Error codes of a busy server that are returned with other statuses.

Examples are an error for one key of a bulk delete, and S3's status 400 for a body that is sent too slowly.
"""
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted")
_TRANSIENT = (404, 409, 412, 425)
"""4xx statuses after which a retry may succeed."""
_REQUIRES_CHECKSUM = re.compile(r"<Message>[^<]*(?:Content-MD5|x-amz-checksum)[^<]*Object Lock", re.IGNORECASE)
_ACTIONS = ("read", "list", "create", "delete")
_READER, _CONTRIBUTOR = "the role Storage Blob Data Reader", "the role Storage Blob Data Contributor"
_RIGHTS = {
    S3: (
        "s3:GetObject (and s3:ListBucket, without which S3 returns this for an object that does not exist)",
        *("s3:ListBucket", "s3:PutObject", "s3:DeleteObject"),
    ),
    GCS: tuple(f"storage.objects.{verb}" for verb in ("get", "list", "create", "delete")),
    AZURE: (_READER, _READER, _CONTRIBUTOR, _CONTRIBUTOR),
}
"""Permissions for each action, by scheme."""
_KEYS = {
    S3: "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or a role of this host",
    GCS: "GOOGLE_APPLICATION_CREDENTIALS, or a service account of this host",
    AZURE: "AZURE_STORAGE_ACCOUNT_KEY, AZURE_CLIENT_ID and its secret, or a managed identity",
}
_CERTIFICATES = {
    "UnknownIssuer": "it is not signed by an authority that this host trusts; set AWS_CA_BUNDLE (S3) or "
    "SSL_CERT_FILE to the file of the authority",
    "Expired": "it has expired, or this host's clock is wrong",
    "NotValidYet": "it is not valid yet, or this host's clock is wrong",
    "NotValidForName": "it is not valid for the endpoint's host name",
    "Revoked": "it has been revoked",
}
_SETTINGS = re.compile(r"Failed to parse URL|Generic Config error|Configuration|(?i:builder)")


@dataclass(frozen=True, slots=True)
class _Rule:
    """The error for responses with a status, code or word. `text` may contain `answer`, `right` and `keys`."""

    error: type[SparklogError]
    text: str
    statuses: tuple[int, ...] = ()
    codes: tuple[str, ...] = ()
    words: tuple[str, ...] = ()

    def matches(self, status: int | None, code: str, text: str) -> bool:
        return status in self.statuses or code in self.codes or any(word in text for word in self.words)


_RULES = (
    _Rule(BadRequest, "cannot {action} {what}: bucket {host} does not exist; create it or check its name",
          codes=_NO_BUCKET),
    _Rule(Unavailable, "cannot {action} {what}: this host's clock is wrong ({answer}); set it, for example with NTP",
          codes=("RequestTimeTooSkewed", "RequestExpired")),
    _Rule(Unavailable, "cannot {action} {what}: no credentials were found; set {keys}",
          words=("169.254.169.254", "169.254.170.2", "metadata.google.internal", "fd00:ec2::254",
                 "MissingCredentials")),
    _Rule(Unavailable, "cannot {action} {what}: the credentials are invalid ({answer}); check {keys}", (401,),
          ("InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken")),
    _Rule(Unavailable, "cannot {action} {what}: access is denied ({answer}); this requires {right}", (403,),
          ("AccessDenied",)),
    _Rule(BadRequest, "cannot {action} {what}: the bucket is in another region; set region or AWS_REGION",
          (301, 307, 308), ("AuthorizationHeaderMalformed", "PermanentRedirect")),
    _Rule(BadRequest, "{url} cannot hold a sparklog root: its server does not support conditional requests ({answer})",
          (501,)),
    _Rule(BadRequest, "cannot {action} {what}: AWS_CONDITIONAL_PUT disables conditional requests, which commits "
          "require; unset AWS_CONDITIONAL_PUT", words=("conditional put is disabled",)),
    _Rule(Unavailable, "cannot {action} {what}: the store is busy ({answer}); try again later", (429, 503)),
)  # fmt: skip
"""The first matching rule applies."""


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status in an obstore error, or None if there was no response."""
    match = _STATUS.search(str(error))
    return int(match[1] or match[2]) if match else None


def network_failure(error: BaseException) -> str:
    """Return the reason why there was no response (`Timeout`, `Connect`, `Request`, ...), or an empty string if there
    was a response.
    """
    match = _HTTP.search(str(error))
    return match[1] if match else ""


def is_busy(error: BaseException) -> bool:
    """Return True if a retry may succeed, because the server was busy or failed, or its response was truncated."""
    if isinstance(error, SparklogError):
        return False
    if network_failure(error) == TRUNCATED_RESPONSE:
        return True
    status = status_of(error) or 0
    return status in (408, 429) or (500 <= status < 600 and status not in (501, 505)) or _code_of(error) in _BUSY_CODES


def _code_of(error: BaseException) -> str:
    match = _CODE.search(str(error))
    return (match[1] or match[2]) if match else ""


def cloud_error(error: BaseException, action: str, key: str, url: StoreUrl) -> SparklogError:
    """Return the error to raise if a request to `action` (read, list, create, delete, open) an object failed.

    The error is `NotFound` if the object does not exist, and `BadRequest` for a wrong setting or an unsuitable server.
    All other errors are `Unavailable`. In this case, it is unknown whether a create had an effect.
    """
    if isinstance(error, SparklogError):
        return error
    text = str(error)
    status, code = status_of(error), _code_of(error)
    what = f"{key} in {url}" if key else str(url)
    # If a create failed, the missing object is the upload. The upload was aborted, or an earlier request has completed
    # it.
    if (isinstance(error, FileNotFoundError) or status == 404) and action != "create" and code not in _NO_BUCKET:
        return missing_object(what)
    rule = next((rule for rule in _RULES if rule.matches(status, code, text)), None)
    if rule is not None:
        values = {"action": action, "what": what, "url": url, "host": url.host, "answer": code or status}
        right = dict(zip(_ACTIONS, _RIGHTS[url.scheme], strict=True)).get(action, "access")
        message = rule.text.format(**values, keys=_KEYS[url.scheme], right=right)
        return Unavailable(message, is_denied=status == 403) if rule.error is Unavailable else rule.error(message)
    if status is not None and 400 <= status < 500 and status not in _TRANSIENT and not is_busy(error):
        return BadRequest(f"cannot {action} {what}: {_rejection(text, status, code)}")
    return Unavailable(f"cannot {action} {what}: {_reason(error, status, code)}")


def _rejection(text: str, status: int, code: str) -> str:
    response = f"the store returned {status}{f' ({code})' if code else ''}"
    if _REQUIRES_CHECKSUM.search(text):
        return f"{response}: its object lock requires checksums; set checksum_algorithm=CRC64NVME in the URL"
    return f"{response}, which a retry would not change; check the settings of the URL and the bucket"


def _reason(error: BaseException, status: int | None, code: str) -> str:
    if status is not None:
        return f"the store returned {status}{f' ({code})' if code else ''}; try again later"
    failure, text = network_failure(error), str(error)
    if failure == "Timeout":
        return "the request timed out; check the network and try again"
    if failure == TRUNCATED_RESPONSE:
        return "the connection ended in the middle of the response; check proxies between this host and the server"
    certificate = _CERTIFICATE.search(text)
    if certificate:
        kind = certificate[1].removesuffix("Context")
        return f"the server's certificate is invalid ({kind}): {_CERTIFICATES.get(kind, 'check the server')}"
    if "InvalidContentType" in text:
        return "the server does not use TLS; check the endpoint's port, or use http:// in the endpoint"
    if "TunnelUnsuccessful" in text:
        return "the proxy refuses to connect to the server; check HTTPS_PROXY, or add the server's host to NO_PROXY"
    if failure:
        return "the server cannot be reached; check the endpoint, the region and the network"
    if _SETTINGS.search(text):
        return "the settings are invalid; check the endpoint and the store's settings in the environment"
    return f"the client failed ({type(error).__name__}); try again later"
