"""Backups of a root in another place, and roots made from them, or from a root as it was."""
