"""Kernels: loops over records as plain Python that numba compiles, and the choice between both ways to run them."""
