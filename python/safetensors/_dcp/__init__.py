"""The parts of safetensors.dcp."""
