"""The command line: ``safetensors`` and ``python -m safetensors``.

A module for each command, over the package's own interface. Nothing here is imported by
``import safetensors``.
"""
