"""Tests of `sparklog.testing`: fixtures, clocks and streams for users."""
