"""How `safetensors.torch` loads tensors: their types, devices, and the ways to fill them."""
