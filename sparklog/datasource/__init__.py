"""The Spark data source. This package parses options, plans reads and writes, and converts data from and to Arrow.
Record formats and commits are implemented in other packages.

Spark imports this package in several processes per query, so no module may import numba, pandas or a codec at module
level. Modules that only tasks need are imported inside the functions that run in tasks.
"""
