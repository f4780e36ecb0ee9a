"""Gives JAX eight devices on the CPU, for tests of shardings: to be imported before JAX is used."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own, while it is imported
    import jax

COUNT = 8

if jax.config.jax_num_cpu_devices != COUNT:
    jax.config.update("jax_num_cpu_devices", COUNT)
