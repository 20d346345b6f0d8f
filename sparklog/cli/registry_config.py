"""The properties file of `--registry-config`: credentials for a schema registry, named as in Confluent's clients."""

from __future__ import annotations

from pathlib import Path

from sparklog.console.terminal import read_text
from sparklog.errors import BadRequest, did_you_mean
from sparklog.maintenance.properties import parse_properties

ARGUMENTS = {
    "basic.auth.user.info": "basic_auth",
    "bearer.auth.token": "token",
    "ssl.ca.location": "ca_file",
    "ssl.certificate.location": "certificate_file",
    "ssl.key.location": "key_file",
}
"""The argument of `SchemaRegistry` for each property."""
PREFIX = "schema.registry."
"""Optional prefix of the properties, as in the properties of a consumer."""


def registry_options(file: Path) -> dict[str, str]:
    """Return arguments of `SchemaRegistry`. Raises `BadRequest` if a property is unknown."""
    options = {}
    for entry in parse_properties(read_text(file, "--registry-config"), str(file)):
        name = entry.name.removeprefix(PREFIX)
        if name not in ARGUMENTS:
            raise BadRequest(
                f"{file} line {entry.line}: expected one of {', '.join(ARGUMENTS)}; found"
                f" {entry.name!r}{did_you_mean(name, ARGUMENTS)}"
            )
        options[ARGUMENTS[name]] = entry.value
    return options
