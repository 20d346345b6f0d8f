"""HTTP requests to a schema registry: credentials, TLS, retries, and errors that say what to do."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from sparklog.errors import BadRequest, NotFound, Unavailable
from sparklog.storage.retries import RetryPolicy

MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
TIMEOUT_S = 30.0
BUSY = frozenset({408, 429, 500, 502, 503, 504})
DENIED = frozenset({401, 403})
REJECTED = frozenset({400, 409, 422})
API_HINT = "specify the URL of Confluent's REST API, such as http://host:8081 or http://host:8080/apis/ccompat/v7"


class Busy(Unavailable):
    """The registry reports that it cannot answer at present. The request may be retried."""


@dataclass(frozen=True)
class RestClient:
    """The URLs of a registry, and the credentials for all of them.

    `basic_auth` is `user:password`. Files are in the format PEM. If a URL cannot be reached, the next is used.
    """

    urls: tuple[str, ...]
    basic_auth: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    timeout_s: float = TIMEOUT_S
    retries: RetryPolicy = field(default=RetryPolicy(), repr=False)

    @classmethod
    def of(cls, url: str | Sequence[str], **options: Any) -> RestClient:
        """Return a client for URLs, which are a list or are separated by commas. The first URL may contain the user and
        the password.
        """
        texts = [text.strip() for text in (url.split(",") if isinstance(url, str) else url)]
        urls = []
        for text in texts:
            try:
                parts = urlsplit(text)
                is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
            except ValueError:
                is_valid = False
            if not is_valid:
                shown = text.rpartition("@")[2]
                raise BadRequest(f"expected the URL of a schema registry such as http://host:8081, found {shown!r}")
            user, at, host = parts.netloc.rpartition("@")
            if at and options.get("basic_auth") is None:
                options["basic_auth"] = unquote(user)
            urls.append(urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", "")))
        if options.get("basic_auth") is not None and options.get("token") is not None:
            raise BadRequest("a schema registry accepts either a user and a password, or a token: specify one of them")
        if options.get("key_file") is not None and options.get("certificate_file") is None:
            raise BadRequest("a key file requires the file of its client certificate")
        return cls(tuple(urls), **options)

    @property
    def name(self) -> str:
        """The registry in error messages."""
        return f"the schema registry {', '.join(self.urls)}"

    def send(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request and return the JSON of the response.

        Raises:
            NotFound: If the registry does not have the schema, the subject or the version.
            BadRequest: If the registry rejects the request, or if the URL is not that of a registry.
            Unavailable: If the registry cannot be reached, denies access or fails.
        """
        return self.retries.call(lambda: self._send(method, path, body), lambda error: isinstance(error, Busy))

    def _send(self, method: str, path: str, body: Any) -> Any:
        for url in self.urls[:-1]:
            try:
                return self._send_to(url, method, path, body)
            except Unavailable as error:
                if error.is_denied:
                    raise
        return self._send_to(self.urls[-1], method, path, body)

    def _send_to(self, url: str, method: str, path: str, body: Any) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Accept": f"{MEDIA_TYPE}, application/json", "Content-Type": MEDIA_TYPE}
        request = urllib.request.Request(url + path, data, headers, method=method)
        if authorization := self._authorization():
            # Do not send credentials to the target of a redirect.
            request.add_unredirected_header("Authorization", authorization)
        try:
            with self._opener.open(request, timeout=self.timeout_s) as response:
                content = response.read()
        except urllib.error.HTTPError as error:
            with error:
                raise self._failure(url, method, path, error.code, error.read()) from None
        except urllib.error.URLError as error:
            raise self._unreachable(url, error.reason) from None
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(url, error) from None
        try:
            return json.loads(content)
        except ValueError:
            raise BadRequest(
                f"{url} is not a schema registry: its response to {method} {path} is not JSON; {API_HINT}"
            ) from None

    def _authorization(self) -> str | None:
        if self.token is not None:
            return f"Bearer {self.token}"
        if self.basic_auth is not None:
            return "Basic " + base64.b64encode(self.basic_auth.encode()).decode()
        return None

    @cached_property
    def _opener(self) -> urllib.request.OpenerDirector:
        if not any(url.startswith("https:") for url in self.urls):
            return urllib.request.build_opener()
        context = _from_file(self.ca_file, "CA certificates", lambda: ssl.create_default_context(cafile=self.ca_file))
        if self.certificate_file is not None:
            certificate, key = self.certificate_file, self.key_file
            _from_file(certificate, "the client certificate", lambda: context.load_cert_chain(certificate, key))
        return urllib.request.build_opener(urllib.request.HTTPSHandler(context=context))

    def _failure(self, url: str, method: str, path: str, status: int, content: bytes) -> Exception:
        """Return the error for a response that is not successful."""
        try:
            reply = json.loads(content)
            code, message = int(reply["error_code"]), " ".join(str(reply["message"]).split())[:300]
        except (ValueError, KeyError, TypeError):
            code, message = 0, ""
        reason = f": {message}" if message else ""
        if status in DENIED:
            has_credentials = self._authorization() is not None
            action = "check the user and the password, or the token" if has_credentials else "specify credentials"
            return Unavailable(
                f"the schema registry {url} denied access with status {status}{reason}; {action}", is_denied=True
            )
        if status in BUSY:
            return Busy(f"the schema registry {url} failed with status {status}{reason}; retry later")
        if status == 404 and 40400 <= code <= 40499:
            return NotFound(message)
        if status in REJECTED and message:
            return BadRequest(f"the schema registry {url} rejected the request: {message}")
        return BadRequest(f"{url} is not a schema registry: {method} {path} returned status {status}; {API_HINT}")

    def _unreachable(self, url: str, reason: object) -> Unavailable:
        if isinstance(reason, ssl.SSLCertVerificationError):
            return Unavailable(
                f"the certificate of the schema registry {url} is not trusted: {reason.verify_message}; specify the"
                " file of its CA",
                is_denied=True,
            )
        if isinstance(reason, TimeoutError):
            return Unavailable(f"the schema registry {url} did not respond within {self.timeout_s:g} s")
        text = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
        return Unavailable(f"the schema registry {url} cannot be reached: {' '.join(str(text).split())}")


def _from_file(file: str | None, content: str, load: Any) -> Any:
    try:
        return load()
    except (OSError, ssl.SSLError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BadRequest(f"the file {file} with {content} cannot be read: {reason}") from None
