"""The bindings of examples/ for Rust, Go and ctypes print what the Python package reads."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from safetensors.numpy import load_file, save_file
from safetensors.weights import open_weights
from support import c_library
from support.c_library import LIBRARY, ROOT

MODELS = ROOT / "weights" / "tests" / "data"
QUANTISED = {
    "gguf/llama_q4_k_m.gguf": "token_embedding.weight",
    "mlx/llama_q4_g64_bf16": "layers.0.attention.q.weight",
    "schemes/fp8_rows": None,
}
TENSORS = {
    "embedding": np.arange(48, dtype=np.float16).reshape(6, 8) / 7,
    "bias": np.zeros(3, np.int64),
}

c_library.require()


def tool(name):
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"there is no {name}")
    return found


def build_rust(target):
    links = ["-L", LIBRARY.parent, "-C", f"link-arg=-Wl,-rpath,{LIBRARY.parent}"]
    source = ROOT / "examples" / "rust" / "bindings.rs"
    command = [tool("rustc"), "--edition", "2021", "-D", "warnings", source, *links, "-o", target]
    subprocess.run(command, check=True)
    return [target]


def build_go(target):
    folder = target.parent
    environment = {
        **os.environ,
        "CGO_ENABLED": "1",
        "CGO_CFLAGS": f"-I{ROOT / 'include'} -I{ROOT / 'weights' / 'include'}",
        "CGO_LDFLAGS": f"-L{LIBRARY.parent} -lsafetensors_c -Wl,-rpath,{LIBRARY.parent}",
        "GOCACHE": str(folder / "cache"),
        "GOPATH": str(folder / "path"),
    }
    command = [tool("go"), "build", "-o", target, ROOT / "examples" / "go" / "main.go"]
    subprocess.run(command, env=environment, check=True)
    return [target]


def build_ctypes(_target):
    return [sys.executable, c_library.BINDINGS, LIBRARY]


@pytest.fixture(scope="module", params=["rust", "go", "ctypes"])
def program(request, tmp_path_factory):
    build = {"rust": build_rust, "go": build_go, "ctypes": build_ctypes}[request.param]
    return build(tmp_path_factory.mktemp(request.param) / "program")


def run(program, *arguments):
    return subprocess.run(
        [*program, *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def bits(values):
    return " ".join(f"{each:08x}" for each in np.ascontiguousarray(values).view(np.uint32).ravel())


@pytest.mark.parametrize("model", QUANTISED)
def test_output(program, model, tmp_path):
    save_file(TENSORS, tmp_path / "m.safetensors")
    target = tmp_path / "out.safetensors"
    path = MODELS / model
    with open_weights(path) as weights:
        name = QUANTISED[model] or next(
            each for each in weights if weights[each].scheme and len(weights[each].shape) == 2
        )
        about = weights[name]
        part = TENSORS["embedding"][0:4:2, 1:4].astype(np.float32)
        expected = [
            "tensor bias I64 [3]",
            "tensor embedding F16 [6, 8]",
            f"slice {bits(part)}",
            f"streamed {bits(part)}",
            "missing 12",
            f"model {weights.config.architecture} {weights.config.n_layers or 0}",
            f"weight {about.type_name} {len(about.parts())}",
            f"row {bits(about.numpy(rows=1))}",
        ]
    done = run(program, tmp_path / "m.safetensors", "embedding", path, name, target)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == expected
    np.testing.assert_array_equal(load_file(target)["slice"], part)


def test_errors(program, tmp_path):
    done = run(program, tmp_path / "nowhere", "a", "b", "c", tmp_path / "out")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert str(tmp_path / "nowhere") in done.stderr
    assert run(program).returncode != 0
