"""Writes files and models: one by one, tensor by tensor, in place and in the background."""
