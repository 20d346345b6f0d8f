"""The options of a schema registry."""

# Do not import annotations from `__future__` (see `sparklog.console.options`).

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from sparklog.console.parameters import Option
from sparklog.console.terminal import read_text

if TYPE_CHECKING:
    from sparklog.schemas.registry import SchemaRegistry

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

    if config is None:
        return SchemaRegistry(url, cache_dir=cache)
    from sparklog.maintenance.registry_properties import registry_arguments

    arguments: dict[str, Any] = dict(registry_arguments(read_text(config, "--registry-config"), str(config)))
    return SchemaRegistry(url, cache_dir=cache, **arguments)
