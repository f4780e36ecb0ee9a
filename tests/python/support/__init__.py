"""Helpers that the Python tests share. Test files import them as `from support import ...`."""
