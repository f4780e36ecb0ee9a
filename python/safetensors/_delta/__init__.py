"""The parts of `safetensors.delta`."""
