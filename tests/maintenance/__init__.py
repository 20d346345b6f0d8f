"""Tests of the code that the maintenance jobs share."""
