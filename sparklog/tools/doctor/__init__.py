"""Checks of this machine, this Spark and a root, each with the command that puts it right."""

from sparklog.tools.doctor.checks import FAIL, OK, WARN, Finding
from sparklog.tools.doctor.examine import examine
from sparklog.tools.doctor.store_checks import examine_store

__all__ = ["FAIL", "OK", "WARN", "Finding", "examine", "examine_store"]
