"""Messages of formats v0 and v1."""
