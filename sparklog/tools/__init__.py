"""Tools for operators: inspection, verification, backup, report, doctor."""
