"""Repairing: damage that a rebuild can cure is cured, what no version names is set aside, the rest is named."""
