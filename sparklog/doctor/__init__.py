"""Checks of this host, its Spark and a root, each with the command or setting that fixes a problem."""

from sparklog.doctor.checks import FAIL, OK, WARN, Check
from sparklog.doctor.examine import examine, examine_store

__all__ = ["FAIL", "OK", "WARN", "Check", "examine", "examine_store"]
