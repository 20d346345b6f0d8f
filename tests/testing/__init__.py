"""Tests of `sparklog.testing`: fixtures, clocks, stores and record streams."""
