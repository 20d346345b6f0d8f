"""The version of this package. This module has no imports, so that every other module can use it."""

__version__ = "0.15.1"
