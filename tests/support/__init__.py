"""Test doubles and helpers that several folders share."""
