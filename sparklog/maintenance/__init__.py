"""What the maintenance jobs share: pieces of work, where they run, settings, progress and the report."""
