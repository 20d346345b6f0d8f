"""The Spark data source: its options, its planning, and the conversion from and to Arrow. It does not contain byte
layouts or commit rules.

Spark imports this package in several processes per query, so no module may import numba, pandas or a codec at module
level. Modules that only tasks need are imported inside the functions that run in tasks.
"""
