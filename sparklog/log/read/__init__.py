"""Read topics: read plans, fetches, scans, tails, and lookups by time and by key."""
