"""Users: who may connect, and read or write which topics and use which groups.

A file has a line for each user: the name, a hash of the password, and what is allowed, by prefixes of names:

    anna SCRAM-SHA-256$4096:<salt>$<stored key>:<server key> read:orders write:orders group:shop

`read:` without a prefix is all topics. A line that begins with # is a comment. `hashed` makes a hash, in the form that
PostgreSQL uses; salt and keys are base64. Neither the file nor the server has the password.

SASL/PLAIN (the password comes in clear text: use it with TLS) and SCRAM-SHA-256 (RFC 5802, RFC 7677) are judged by the
same hash. Channel binding is not offered. An unknown user is answered as one with a wrong password.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

from sparklog.errors import BadRequest
from sparklog.parsing import is_digits

PLAIN, SCRAM = "PLAIN", "SCRAM-SHA-256"
MECHANISMS = (PLAIN, SCRAM)
READ, WRITE, GROUP = OPERATIONS = ("read", "write", "group")
ITERATIONS = 4096
MAX_ITERATIONS = 1_000_000


class Denied(Exception):  # noqa: N818
    """A name, a password or a proof that is wrong."""


@dataclass(frozen=True, slots=True)
class Verifier:
    """The part of a password that is kept: enough to check it, not enough to know it."""

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
        """Parse a hash. `ValueError` for anything else."""
        kind, numbers, keys = text.split("$")
        iterations, salt = numbers.split(":")
        stored, server = (base64.b64decode(key, validate=True) for key in keys.split(":"))
        if kind != SCRAM or not is_digits(iterations) or not ITERATIONS <= int(iterations) <= MAX_ITERATIONS:
            raise ValueError(text)
        if len(stored) != 32 or len(server) != 32:
            raise ValueError(text)
        return cls(int(iterations), base64.b64decode(salt, validate=True), stored, server)

    def __str__(self) -> str:
        salt, stored, server = map(_text, (self.salt, self.stored_key, self.server_key))
        return f"{SCRAM}${self.iterations}:{salt}${stored}:{server}"

    def fits(self, password: str) -> bool:
        return hmac.compare_digest(Verifier.of(password, self.salt, self.iterations).stored_key, self.stored_key)


@dataclass(frozen=True, slots=True)
class User:
    """A user and what is allowed: prefixes by operation."""

    name: str
    verifier: Verifier
    prefixes: Mapping[str, tuple[str, ...]]

    def may(self, operation: str, name: str) -> bool:
        return any(name.startswith(prefix) for prefix in self.prefixes.get(operation, ()))


def hashed(password: str, random: Random) -> str:
    """Return the hash of a password, with a random salt, for a file of users."""
    return str(Verifier.of(password, random.getrandbits(128).to_bytes(16, "big")))


def read_users(path: str) -> dict[str, User]:
    """Return the users of a file, by name. `BadRequest` names the line that is wrong."""
    users: dict[str, User] = {}
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"the file of users {path} cannot be read: {error}") from None
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or line.startswith("#"):
            continue
        try:
            name, verifier = words[0], Verifier.parse(words[1])
            prefixes: dict[str, tuple[str, ...]] = {}
            for word in words[2:]:
                operation, colon, prefix = word.partition(":")
                if operation not in OPERATIONS or not colon:
                    raise ValueError(word)
                prefixes[operation] = (*prefixes.get(operation, ()), prefix)
        except (ValueError, IndexError, binascii.Error):
            raise BadRequest(
                f"line {number} of {path}: expected a name, a hash ({SCRAM}$...) and any of "
                f"{', '.join(f'{operation}:PREFIX' for operation in OPERATIONS)}"
            ) from None
        if name in users:
            raise BadRequest(f"line {number} of {path}: user {name} has a line already")
        users[name] = User(name, verifier, prefixes)
    return users


class SaslExchange:
    """One authentication: `step` takes what the client sends and returns the answer; `user` is set at its end."""

    def __init__(self, mechanism: str, users: Mapping[str, User], random: Random) -> None:
        self.user: User | None = None
        self._mechanism = mechanism
        self._users = users
        self._random = random
        self._messages: list[str] = []
        self._asked: User | None = None
        self._verifier = Verifier.of("", b"")
        self._nonce = ""

    def step(self, data: bytes) -> bytes:
        """Raises `Denied`."""
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise Denied("the message is not UTF-8") from None
        if self._mechanism == PLAIN:
            return self._plain(text)
        return self._first(text) if not self._messages else self._final(text)

    def _plain(self, text: str) -> bytes:
        parts = text.split("\0")
        if len(parts) != 3:
            raise Denied("expected an identity, a name and a password")
        identity, name, password = parts
        user = self._users.get(name)
        # The time of the answer does not tell names that exist.
        right = (user.verifier if user is not None else self._verifier).fits(password)
        if user is None or not right or identity not in ("", name):
            raise Denied("the name or the password is wrong")
        self.user = user
        return b""

    def _first(self, text: str) -> bytes:
        header, _, bare = text.partition(",,")
        fields = _fields(bare)
        if not header.startswith(("n", "y")) or not fields.get("n") or not fields.get("r") or "m" in fields:
            raise Denied("expected a first message of SCRAM without channel binding")
        name = fields["n"].replace("=2C", ",").replace("=3D", "=")
        self._asked = self._users.get(name)
        salt = hashlib.sha256(name.encode()).digest()[:16]
        self._verifier = self._asked.verifier if self._asked else Verifier(ITERATIONS, salt, bytes(32), bytes(32))
        self._nonce = fields["r"] + _text(self._random.getrandbits(192).to_bytes(24, "big"))
        answer = f"r={self._nonce},s={_text(self._verifier.salt)},i={self._verifier.iterations}"
        self._messages = [bare, answer, header]
        return answer.encode()

    def _final(self, text: str) -> bytes:
        bare, answer, header = self._messages
        without, _, proof_text = text.rpartition(",p=")
        fields = _fields(without)
        try:
            proof = base64.b64decode(proof_text, validate=True)
            binding = base64.b64decode(fields.get("c", ""), validate=True).decode()
        except (ValueError, binascii.Error):
            raise Denied("the proof is not base64") from None
        message = f"{bare},{answer},{without}".encode()
        signature = _hmac(self._verifier.stored_key, message)
        key = bytes(left ^ right for left, right in zip(proof, signature, strict=False))
        right = hmac.compare_digest(hashlib.sha256(key).digest(), self._verifier.stored_key)
        if not right or self._asked is None or fields.get("r") != self._nonce or binding != f"{header},,":
            raise Denied("the name or the password is wrong")
        self.user = self._asked
        return b"v=" + _text(_hmac(self._verifier.server_key, message)).encode()


def _fields(text: str) -> dict[str, str]:
    return {part[:1]: part[2:] for part in text.split(",") if part[1:2] == "="}


def _hmac(key: bytes, message: bytes) -> bytes:
    return hmac.new(key, message, "sha256").digest()


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
