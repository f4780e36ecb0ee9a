"""Invalid models: each is refused with one error, or read, as the manifest says."""

import re

import pytest

from safetensors.weights import WeightsError, open_weights
from weights_support.data import DATA, expected

BAD = DATA / "bad"
MANIFEST = expected(BAD / "manifest.json")
CODES = expected(BAD / "codes.json")


def read_all(path):
    with open_weights(path) as w:
        for name in [*w, *w.unmapped]:
            w[name].packed()
            w[name].numpy()
        return {key: w.metadata[key] for key in w.metadata}


@pytest.mark.parametrize("name", sorted(MANIFEST))
def test_manifest(name):
    path = BAD / name.rstrip("/")
    must, code = MANIFEST[name]["must"], CODES[name]
    if code == "ok":
        assert must != "reject"
        read_all(path)
        return
    assert must != "accept"
    with pytest.raises(WeightsError) as caught:
        read_all(path)
    error = caught.value
    assert error.code == code
    assert str(error).endswith(f" (in {error.path})")
    assert path.name in error.path
    assert "\n" not in str(error)


def test_the_table_is_whole():
    assert set(CODES) == set(MANIFEST)


def test_a_closed_model_says_so():
    w = open_weights(DATA / "mlx" / "llama_bf16")
    w.close()
    w.close()
    with pytest.raises(ValueError, match="closed"):
        w["output.weight"]
    with pytest.raises(ValueError, match="closed"), w:
        pass


def test_missing_files_and_tensors():
    with pytest.raises(FileNotFoundError) as caught:
        open_weights(BAD / "absent.gguf")
    assert isinstance(caught.value, WeightsError)
    assert caught.value.code == "io"
    assert caught.value.path == str(BAD / "absent.gguf")
    with open_weights(DATA / "mlx" / "llama_bf16") as w:
        with pytest.raises(KeyError) as missing:
            w["layers.0.atention.q.weight"]
        assert missing.value.code == "unknown_tensor"
        assert "did you mean `layers.0.attention.q.weight`" in str(missing.value)
        assert "layers.0.atention.q.weight" not in w
        assert w.get("layers.0.atention.q.weight") is None


@pytest.mark.parametrize(
    ("start", "hint"),
    [
        (b"PK\x03\x04", "torch.save"),
        (b"\x80\x02}q\x00.", "pickle"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"lmgg" + b"\0" * 20, "older than GGUF"),
        (b"tjgg" + b"\0" * 20, "ggjt"),
        (b"", "begins like this"),
        (b"nonsense", "begins like this"),
    ],
)
def test_foreign_files_are_named(tmp_path, start, hint):
    path = tmp_path / "model.bin"
    path.write_bytes(start)
    with pytest.raises(WeightsError, match=re.escape(hint)) as caught:
        open_weights(path)
    assert caught.value.code == "bad_magic"
