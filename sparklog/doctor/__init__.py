"""Checks of this host, its Spark installation and a root, with the command or setting that fixes each problem."""

from sparklog.doctor.checks import FAIL, OK, WARN, Check
from sparklog.doctor.examine import examine, examine_store

__all__ = ["FAIL", "OK", "WARN", "Check", "examine", "examine_store"]
