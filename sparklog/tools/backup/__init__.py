"""Backups of a root in another place, and roots made from them, or from a root as it was.

Light to import; `sparklog.tools.backup.backing_up`, `restoring` and `pruning` hold what is done.
"""
