"""Parts that maintenance jobs share: pieces of work and their runners, settings, progress, output and the report."""
