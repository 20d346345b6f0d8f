"""Helpers without knowledge of logs: numbers, units and times as text, and names imported on first use."""
