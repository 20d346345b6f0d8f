"""Reading: plans of a snapshot, fetches, scans, tails, look-ups by time and by key."""
