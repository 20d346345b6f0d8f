"""The Spark adapter: options, planning, Arrow in and out. No byte layouts and no commit rules live here.

Spark imports this package afresh in half a dozen processes per query, so nothing here may import numba, pandas or a
codec at module level; what tasks need is imported inside the functions that run in tasks.
"""
