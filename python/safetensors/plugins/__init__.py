"""Handlers for other programs, each of which imports its program only when it is used."""
