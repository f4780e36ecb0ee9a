"""Reads files from object stores and web servers. Imported on first use of a URL."""
