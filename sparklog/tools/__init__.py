"""Tools for operators: inspection, verification, repair, backup, reports, repartitioning and benchmarks."""
