"""What is wrong with this machine, this Spark and this root, and the command that puts each thing right."""

from sparklog.tools.doctor.examine import examine
from sparklog.tools.doctor.finding import FAIL, OK, WARN, Finding

__all__ = ["FAIL", "OK", "WARN", "Finding", "examine"]
