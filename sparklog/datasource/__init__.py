"""The Spark data source: options, planning, and conversion from and to Arrow, without byte layouts and commit rules.

Spark imports this package in half a dozen processes per query, so no module may import numba, pandas or a codec at
module level. Modules that only tasks need are imported inside the functions that run in tasks.
"""
