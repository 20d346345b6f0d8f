"""Test that the directly loaded extension computes the same checksums as the package."""

from __future__ import annotations

import importlib.machinery

import crc32c as package
import pytest

from sparklog.format import crc32c

DATA = b"123456789"


def test_function_is_that_of_the_extension() -> None:
    assert crc32c.crc32c(DATA) == package.crc32c(DATA) == 0xE3069283
    assert crc32c.crc32c(DATA[4:], crc32c.crc32c(DATA[:4])) == 0xE3069283


def test_package_is_used_if_the_extension_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.machinery.PathFinder, "find_spec", lambda *names: None)
    assert crc32c._load() is package.crc32c
