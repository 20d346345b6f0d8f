"""Parts that the maintenance jobs share: work items and their runners, settings, leases, run records and reports."""
