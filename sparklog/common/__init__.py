"""Helpers that do not depend on logs: settings, formatting of numbers, units and times, and lazy imports."""
