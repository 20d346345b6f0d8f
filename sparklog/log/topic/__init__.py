"""Roots and topics: the handles that users work with."""
