"""The users who may connect, the topics that they may read and write, and the groups that they may use.

The users file has one line per user: the name, a password hash, and the allowed prefixes of topic and group names:

    anna SCRAM-SHA-256$4096:<salt>$<stored key>:<server key> read:orders write:orders group:shop

`read:` without a prefix allows all topics, and `transaction:` allows all transactional ids. Lines that start with # are
comments. `hashed` creates a hash in PostgreSQL's format, with a base64-encoded salt and keys. Neither the file nor the
server stores the password.

The same hash is used for SASL/PLAIN, which sends the password in clear text and therefore requires TLS, and for
SCRAM-SHA-256 (RFC 5802, RFC 7677). Channel binding is not supported.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from sparklog.errors import BadRequest
from sparklog.serve.codes import Code, CodeError

PLAIN, SCRAM = "PLAIN", "SCRAM-SHA-256"
MECHANISMS = (PLAIN, SCRAM)
READ, WRITE, GROUP, TRANSACTION = OPERATIONS = ("read", "write", "group", "transaction")
WRONG = "the name or the password is wrong"
USER_LINE = f"NAME {SCRAM}$... [OPERATION:PREFIX ...]"
ITERATIONS = 4096
MAX_ITERATIONS = 1_000_000
_HASH = re.compile(r"SCRAM-SHA-256\$([0-9]{1,9}):([^$:]*)\$([^$:]{43}=):([^$:]{43}=)")
"""Iterations, salt, stored key and server key. Each key has 32 bytes."""


@dataclass(frozen=True, slots=True)
class Verifier:
    """A password hash. It can verify the password, but does not reveal it."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    @classmethod
    def of(cls, password: str, salt: bytes, iterations: int = ITERATIONS) -> Verifier:
        salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, iterations)
        stored = hashlib.sha256(_hmac(salted, b"Client Key")).digest()
        return cls(iterations, salt, stored, _hmac(salted, b"Server Key"))

    @classmethod
    def parse(cls, text: str) -> Verifier:
        """Parse a password hash. Raises `ValueError` if the hash is invalid."""
        match = _HASH.fullmatch(text)
        if match is None or not ITERATIONS <= int(match[1]) <= MAX_ITERATIONS:
            raise ValueError(text)
        return cls(int(match[1]), *(base64.b64decode(part, validate=True) for part in match.groups()[1:]))

    def __str__(self) -> str:
        salt, stored, server = map(_text, (self.salt, self.stored_key, self.server_key))
        return f"{SCRAM}${self.iterations}:{salt}${stored}:{server}"

    def matches(self, password: str) -> bool:
        return hmac.compare_digest(Verifier.of(password, self.salt, self.iterations).stored_key, self.stored_key)


@dataclass(frozen=True, slots=True)
class User:
    """A user and, for each operation, the prefixes of the names that the user may access."""

    name: str
    verifier: Verifier
    prefixes: Mapping[str, tuple[str, ...]]

    def may(self, operation: str, name: str) -> bool:
        return any(name.startswith(prefix) for prefix in self.prefixes.get(operation, ()))


def hashed(password: str, random: Random) -> str:
    """Return the hash of a password for a users file, with a random salt."""
    return str(Verifier.of(password, random.getrandbits(128).to_bytes(16, "big")))


def read_users(path: str) -> dict[str, User]:
    """Return the users in a file, by name.

    Raises:
        BadRequest: With the number of the first invalid line, or if the file has no users.
    """
    users: dict[str, User] = {}
    try:
        lines = Path(path).read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise BadRequest(f"cannot read the users file {path!r}: {reason}; check --users") from None
    for number, line in enumerate(lines, 1):
        fields = line.split()
        if not fields or line.startswith("#"):
            continue
        try:
            name, verifier = fields[0], _verifier(fields)
            prefixes: dict[str, tuple[str, ...]] = dict.fromkeys(OPERATIONS, ())
            for field in fields[2:]:
                operation, colon, prefix = field.partition(":")
                if not colon or operation not in OPERATIONS:
                    raise ValueError(f"expected OPERATION:PREFIX with one of {', '.join(OPERATIONS)}, found {field!r}")
                prefixes[operation] += (prefix,)
        except ValueError as error:
            raise BadRequest(f"line {number} of {path}: {error}") from None
        if name in users:
            raise BadRequest(f"line {number} of {path}: user {name} is already defined in another line")
        users[name] = User(name, verifier, prefixes)
    if not users:
        raise BadRequest(f"{path} has no users, so no client could log in: add a line `{USER_LINE}`, or omit --users")
    return users


def _verifier(fields: Sequence[str]) -> Verifier:
    """Return the password hash of a line. Errors do not contain the hash, because it may be a password."""
    if len(fields) == 1:
        raise ValueError(f"expected `{USER_LINE}`, found only a name")
    try:
        return Verifier.parse(fields[1])
    except ValueError:
        raise ValueError(
            f"expected `{USER_LINE}`, where the second field is a hash with {ITERATIONS} to {MAX_ITERATIONS} iterations"
            "; docs/guides/serve.md shows how to create a hash"
        ) from None


class SaslExchange:
    """A SASL authentication. `step` processes a client message and returns the response. The last step sets `user`."""

    def __init__(self, mechanism: str, users: Mapping[str, User], random: Random) -> None:
        self.user: User | None = None
        self._mechanism = mechanism
        self._users = users
        self._random = random
        self._claimed_user = self._user("")
        self._messages: list[str] = []
        self._nonce = ""

    def step(self, data: bytes) -> bytes:
        """Process a message of the client.

        Raises `CodeError` if the message is invalid, or the name or password is wrong.
        """
        handle = self._plain if self._mechanism == PLAIN else self._final if self._messages else self._first
        try:
            return handle(data.decode())
        except ValueError as error:
            # This error includes strings that are not valid UTF-8 or base64.
            raise CodeError(Code.SASL_AUTHENTICATION_FAILED, str(error)) from None

    def _user(self, name: str) -> User:
        """Return a user.

        For an unknown name, return a user that cannot log in, so that clients cannot discover user names.
        """
        secret = b"".join(user.verifier.server_key for user in self._users.values())
        salt = _hmac(secret, name.encode())[:16]
        return self._users.get(name) or User(name, Verifier(ITERATIONS, salt, bytes(32), bytes(32)), {})

    def _plain(self, text: str) -> bytes:
        if text.count("\0") != 2:
            raise ValueError("expected an identity, a name and a password")
        identity, name, password = text.split("\0")
        user = self._user(name)
        if not user.verifier.matches(password) or identity not in ("", name):
            raise ValueError(WRONG)
        self.user = user
        return b""

    def _first(self, text: str) -> bytes:
        header, _, bare = text.partition(",,")
        fields = _fields(bare)
        if not header.startswith(("n", "y")) or not fields.get("n") or not fields.get("r") or "m" in fields:
            raise ValueError("expected the first SCRAM message, without channel binding")
        self._claimed_user = self._user(fields["n"].replace("=2C", ",").replace("=3D", "="))
        self._nonce = fields["r"] + _text(self._random.getrandbits(192).to_bytes(24, "big"))
        response = (
            f"r={self._nonce},s={_text(self._claimed_user.verifier.salt)},i={self._claimed_user.verifier.iterations}"
        )
        self._messages = [bare, response, header]
        return response.encode()

    def _final(self, text: str) -> bytes:
        bare, response, header = self._messages
        without, _, proof_text = text.rpartition(",p=")
        fields, verifier = _fields(without), self._claimed_user.verifier
        proof = base64.b64decode(proof_text, validate=True)
        binding = base64.b64decode(fields.get("c", ""), validate=True).decode()
        message = f"{bare},{response},{without}".encode()
        signature = _hmac(verifier.stored_key, message)
        key = bytes(left ^ right for left, right in zip(proof, signature, strict=False))
        is_valid = hmac.compare_digest(hashlib.sha256(key).digest(), verifier.stored_key)
        # Like Kafka, accept a prefix, because librdkafka before 2.6 sends its own nonce twice.
        is_fresh = fields.get("r", "").endswith(self._nonce)
        if not is_valid or not is_fresh or binding != f"{header},,":
            raise ValueError(WRONG)
        self.user = self._claimed_user
        return b"v=" + _text(_hmac(verifier.server_key, message)).encode()


def _fields(text: str) -> dict[str, str]:
    return {part[:1]: part[2:] for part in text.split(",") if part[1:2] == "="}


def _hmac(key: bytes, message: bytes) -> bytes:
    return hmac.new(key, message, "sha256").digest()


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
