"""The implementation of `safetensors.torch`. Its modules import each other in one direction:

    load_into -> load_files -> devices
                            -> dtypes
    transfer -> devices, dtypes, pieces
    shared_memory -> dtypes

The compiled module imports `transfer` when it loads tensors to a device.
"""
