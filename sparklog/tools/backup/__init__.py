"""Back up a root, and restore the state of the root at a backup, at an earlier version or at a time."""
