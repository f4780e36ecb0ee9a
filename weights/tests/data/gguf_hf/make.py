"""Writes GGUF files of llama.cpp's converter, and what their checkpoints have.

    SAFETENSORS_LLAMA_CPP=DIR PYTHONPATH=DIR/gguf-py:weights/tests/python \\
        python weights/tests/data/gguf_hf/make.py

DIR has the sources of llama.cpp (those of llama-cpp-python 0.3.36). The models are small ones of
transformers 5.23, with random weights.
"""

import hashlib
import json
import re
import tempfile
from pathlib import Path

from safetensors.numpy import load_file
from weights_support.llama_cpp import make, to_gguf
from weights_support.tiny_models import MODELS

HERE = Path(__file__).parent
#: Those whose tensors the converter rearranges, and some whose names are their own.
NAMES = (
    "apertus",
    "bloom",
    "clip-qwen2vl",
    "dbrx",
    "deepseek2",
    "ernie4_5-moe",
    "gemma4-moe",
    "gpt-oss",
    "gpt2",
    "granitehybrid",
    "granitemoe",
    "kimi-linear",
    "lfm2",
    "muse-glimmer",
    "qwen35",
    "qwen3next",
    "stablelm",
)


def main() -> None:
    expected = {}
    with tempfile.TemporaryDirectory() as top:
        for name in NAMES:
            folder = Path(top) / name
            make(MODELS[name], folder)
            to_gguf(folder, HERE / f"{name}.gguf", MODELS[name])
            expected[name] = {
                key: {
                    "shape": list(values.shape),
                    # Its logarithm is rounded.
                    **(
                        {"values": values.tolist()}
                        if key.endswith("A_log")
                        else {"sha256_f32": hashlib.sha256(values.tobytes()).hexdigest()}
                    ),
                }
                for key, values in sorted(load_file(folder / "model.safetensors").items())
                if not re.match(MODELS[name].lost, key)
            }
    (HERE / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
