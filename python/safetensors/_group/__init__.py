"""Loads by groups of ranks, in which each byte of storage is read by one rank."""
