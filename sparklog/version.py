"""The version of this package, in a module without imports, so that every other module can use it."""

__version__ = "0.13.0"
