"""Repair: rebuild damaged objects from intact ones, set unreferenced files aside, and report remaining damage."""
