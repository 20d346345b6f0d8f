"""Names of options in error messages: as arguments of a Python call, or as options of a command."""

from __future__ import annotations

from sparklog.errors import advice


def option_name(name: str) -> str:
    """Return the name of an option as the user writes it, for example `key_columns` or `--key-columns`."""
    return advice(python=name, shell=f"--{name.replace('_', '-')}")


def option_value(name: str, value: str) -> str:
    """Return an option with a value, for example `mode='upsert'` or `--mode upsert`."""
    return advice(python=f"{name}='{value}'", shell=f"--{name.replace('_', '-')} {value}")
