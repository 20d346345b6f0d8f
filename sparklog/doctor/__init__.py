"""Checks of this machine, this Spark and a root, each with the command that puts it right."""

from sparklog.doctor.checks import FAIL, OK, WARN, Check
from sparklog.doctor.examine import examine, examine_store

__all__ = ["FAIL", "OK", "WARN", "Check", "examine", "examine_store"]
