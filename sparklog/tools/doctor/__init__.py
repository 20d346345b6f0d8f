"""Checks of this machine, this Spark and a root, each with the command that puts it right."""

from sparklog.tools.doctor.checks import FAIL, OK, WARN, Finding
from sparklog.tools.doctor.examine import examine

__all__ = ["FAIL", "OK", "WARN", "Finding", "examine"]
