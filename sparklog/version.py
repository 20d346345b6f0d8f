"""The version of this package: on the ground floor, so that every room can say it."""

__version__ = "0.13.0"
