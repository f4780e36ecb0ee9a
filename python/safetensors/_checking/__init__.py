"""Compares tensors with sums and signatures, and makes these."""
