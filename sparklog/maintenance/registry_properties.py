"""The properties file with the credentials of a schema registry.

The properties have the names of Confluent's clients.
"""

from __future__ import annotations

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


def registry_arguments(text: str, file: str) -> dict[str, str]:
    """Return the arguments of `SchemaRegistry` in the text of a properties file."""
    arguments = {}
    for entry in parse_properties(text, file):
        name = entry.name.removeprefix(PREFIX)
        if name not in ARGUMENTS:
            raise BadRequest(
                f"{file} line {entry.line}: expected one of {', '.join(ARGUMENTS)}; found"
                f" {entry.name!r}{did_you_mean(name, ARGUMENTS)}"
            )
        arguments[ARGUMENTS[name]] = entry.value
    return arguments
