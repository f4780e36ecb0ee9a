"""The command line: ``safetensors`` and ``python -m safetensors``.

There is one module for each command; the commands use the public interface of the package.
``import safetensors`` imports none of these modules.
"""
