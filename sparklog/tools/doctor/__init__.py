"""Checks of this machine, this Spark and a root, each with the command that puts it right."""

from sparklog.tools.doctor.examine import examine
from sparklog.tools.doctor.finding import FAIL, OK, WARN, Finding

__all__ = ["FAIL", "OK", "WARN", "Finding", "examine"]
