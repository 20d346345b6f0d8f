"""Helpers that know nothing about logs: settings, numbers, units and times as text, and lazy imports."""
