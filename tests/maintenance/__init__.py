"""Tests of what the maintenance jobs share."""
