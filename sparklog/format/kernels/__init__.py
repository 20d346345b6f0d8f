"""Kernels: loops over records in plain Python that numba can compile, and the choice between interpreting and
compiling.
"""
