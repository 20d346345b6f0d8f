"""Errors of object stores in one line: which request failed, and which right or setting is missing.

The text of obstore's errors holds URLs with signatures, headers and the server's whole answer, so none of it is passed
on but the HTTP status and the server's error code.
"""

from __future__ import annotations

import re

from sparklog.errors import BadRequest, NotFound, SparklogError, Unavailable
from sparklog.storage.cloud_settings import AZURE, GCS, S3
from sparklog.storage.locations import StoreUrl

_STATUS = re.compile(r"status code: (\d{3})|inner: Status \{\s*status: (\d{3})")
_HTTP = re.compile(r"HttpError \{\s*kind: ([A-Za-z]+)")
# The second form: of one key in the answer to a bulk delete, which has the status 200.
_CODE = re.compile(r"<Code>([A-Za-z]{1,60})</Code>|\(code: ([A-Za-z]{1,60})\)")
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted")
_RIGHTS = {
    S3: {
        "read": "s3:GetObject (and s3:ListBucket, without which S3 answers so for an object that does not exist)",
        "list": "s3:ListBucket",
        "create": "s3:PutObject",
        "delete": "s3:DeleteObject",
    },
    GCS: {
        "read": "storage.objects.get",
        "list": "storage.objects.list",
        "create": "storage.objects.create",
        "delete": "storage.objects.delete",
    },
    AZURE: {
        "read": "the role Storage Blob Data Reader",
        "list": "the role Storage Blob Data Reader",
        "create": "the role Storage Blob Data Contributor",
        "delete": "the role Storage Blob Data Contributor",
    },
}
_KEYS = {
    S3: "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or a role of the machine",
    GCS: "GOOGLE_APPLICATION_CREDENTIALS, or a service account of the machine",
    AZURE: "AZURE_STORAGE_ACCOUNT_KEY, AZURE_CLIENT_ID and its secret, or a managed identity",
}
_METADATA_SERVERS = ("169.254.169.254", "169.254.170.2", "metadata.google.internal", "fd00:ec2::254")


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status in an error of obstore, None where there was no answer."""
    match = _STATUS.search(str(error))
    return int(match[1] or match[2]) if match else None


def network_failure(error: BaseException) -> str:
    """Return why no answer came (`Timeout`, `Connect`, `Request`, ...), an empty text if one did."""
    match = _HTTP.search(str(error))
    return match[1] if match else ""


def cloud_error(error: Exception, action: str, key: str, url: StoreUrl) -> SparklogError:
    """Return the error to raise when a request to `action` (read, list, create, delete, open) an object failed.

    `NotFound` for an object that does not exist, `BadRequest` where a setting or the server is wrong, else
    `Unavailable`: the effect of a create is then unknown.
    """
    if isinstance(error, SparklogError):
        return error
    text = str(error)
    status, code_match = status_of(error), _CODE.search(text)
    code = (code_match[1] or code_match[2]) if code_match else ""
    what = f"{key} in {url}" if key else str(url)
    if code in _NO_BUCKET:
        return BadRequest(f"cannot {action} {what}: there is no bucket {url.host}; create it or check its name")
    if isinstance(error, FileNotFoundError) or status == 404:
        return NotFound(f"no object {what}: it was never written, or has been deleted")
    if any(server in text for server in _METADATA_SERVERS) or "MissingCredentials" in text:
        return Unavailable(f"cannot {action} {what}: no credentials were given; set {_KEYS[url.scheme]}")
    if status == 401 or code in ("InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken"):
        return Unavailable(
            f"cannot {action} {what}: the credentials are refused ({code or 401}); check {_KEYS[url.scheme]}"
        )
    if status == 403 or code == "AccessDenied":
        right = _RIGHTS[url.scheme].get(action, "access")
        return Unavailable(f"cannot {action} {what}: access is denied ({code or 403}); it needs {right}")
    if status in (301, 307, 308) or code in ("AuthorizationHeaderMalformed", "PermanentRedirect"):
        return BadRequest(f"cannot {action} {what}: the bucket lies in another region; set region or AWS_REGION")
    if status == 501:
        return BadRequest(
            f"{url} cannot hold a sparklog root: its server does not know conditional requests ({code or 501})"
        )
    if status in (429, 503):
        return Unavailable(f"cannot {action} {what}: the store asks to slow down ({code or status}); try again later")
    return Unavailable(f"cannot {action} {what}: {_reason(error, status, code)}")


def _reason(error: Exception, status: int | None, code: str) -> str:
    if status is not None:
        return f"the store answered {status}{f' ({code})' if code else ''}; try again later"
    failure, text = network_failure(error), str(error)
    if failure == "Timeout":
        return "no answer came in time; check the network and try again"
    if failure:
        return "the server cannot be reached; check the endpoint, the region and the network"
    if "Failed to parse URL" in text or "Configuration" in text or "builder" in text.lower():
        return "its settings do not fit; check the endpoint and the environment's settings of the store"
    return f"the client failed ({type(error).__name__}); try again later"
