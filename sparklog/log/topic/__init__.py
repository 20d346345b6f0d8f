"""Roots and topics: the handles that users open."""
