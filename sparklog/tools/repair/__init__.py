"""Rebuild damaged objects from intact objects, set unreferenced files aside, and report the remaining damage."""
