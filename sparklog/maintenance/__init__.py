"""Components that the maintenance jobs share: work items, runners, settings, leases, run records and reports."""
