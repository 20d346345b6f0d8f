"""Tools for operators: inspection, verification, repair, backup, report, repartitioning, performance."""
