"""The options of a schema registry, and the properties file with its credentials.

The properties have the names of Confluent's clients.
"""

# Do not import annotations from `__future__` (see `sparklog.console.options`).

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from sparklog.console.parameters import Option
from sparklog.console.terminal import read_text
from sparklog.errors import BadRequest, did_you_mean

if TYPE_CHECKING:
    from sparklog.schemas.registry import SchemaRegistry

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

RegistryOption = Annotated[
    str | None,
    Option("--schema-registry", metavar="URL", help="URL of the schema registry that contains the schemas."),
]
RegistryConfigOption = Annotated[
    Path | None,
    Option(
        "--registry-config",
        metavar="FILE",
        exists=True,
        dir_okay=False,
        needs="--schema-registry",
        help="Properties file with the credentials for the schema registry, such as basic.auth.user.info.",
    ),
]
RegistryCacheOption = Annotated[
    Path | None,
    Option(
        "--registry-cache",
        metavar="DIR",
        help="Directory for copies of schemas. If --schema-registry is not given, only this directory is read.",
    ),
]


def open_registry(url: str | None, config: Path | None, cache: Path | None) -> "SchemaRegistry | None":
    """Return the registry of these options, or None if there is neither a URL nor a cache directory.

    Raises `BadRequest` if an option or a property is invalid.
    """
    if url is None and cache is None:
        return None
    from sparklog.schemas.registry import SchemaRegistry

    options: dict[str, Any] = {} if config is None else _properties(config)
    return SchemaRegistry(url, cache_dir=cache, **options)


def _properties(file: Path) -> dict[str, str]:
    """Return the arguments of `SchemaRegistry` in a properties file."""
    from sparklog.maintenance.properties import parse_properties

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
