"""Helpers that the tests of the weight layer share."""
