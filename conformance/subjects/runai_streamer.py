"""runai-model-streamer with torch, on the CPU. It returns no metadata."""

from protocol import serve
from runai_model_streamer import SafetensorsStreamer
from torch_bytes import described


def read(path):
    """Streams a file."""
    with SafetensorsStreamer() as streamer:
        streamer.stream_file(path)
        return {name: described(tensor) for name, tensor in streamer.get_tensors()}, None


serve(read)
