"""huggingface_hub: its own savers, loaders, header readers and containers."""

from __future__ import annotations

import json
from pathlib import Path

import huggingface_hub.errors
import pytest
import torch
from conftest import Spy
from huggingface_hub import (
    PyTorchModelHubMixin,
    export_entries_as_dduf,
    get_local_safetensors_metadata,
    load_state_dict_from_file,
    load_torch_model,
    parse_local_safetensors_file_metadata,
    read_dduf_file,
    save_torch_model,
    save_torch_state_dict,
)
from tiny import (
    assert_files_hold,
    assert_same_tensors,
    names_in,
    randomize,
    raw_header,
    shards_of,
)

import safetensors
import safetensors.torch


class Net(torch.nn.Module, PyTorchModelHubMixin):  # type: ignore[misc]
    """Layers of several sizes, two of them tied."""

    def __init__(self, width: int = 16) -> None:
        """Build and randomize."""
        super().__init__()
        self.first = torch.nn.Linear(width, width)
        self.second = torch.nn.Linear(width, 2 * width)
        self.tied = torch.nn.Linear(width, width)
        self.tied.weight = self.first.weight
        self.scale = torch.nn.Parameter(torch.zeros(5, 3, dtype=torch.bfloat16))
        randomize(self)


def stored(net: Net) -> dict[str, torch.Tensor]:
    """Return what a file holds: the tied weight under its first name."""
    state = net.state_dict()
    del state["tied.weight"]
    return state


def files_in(folder: Path) -> list[Path]:
    """Return the weight files, through the index where there is one."""
    single = folder / "model.safetensors"
    return [single] if single.exists() else shards_of(folder)


@pytest.mark.parametrize("max_shard_size", ["5GB", "1KB"])
def test_save_and_load_model(max_shard_size: str, tmp_path: Path, spy: Spy) -> None:
    """One file or shards, saved and loaded by name of the folder."""
    saved = spy(safetensors.torch, "save_file")
    loaded = spy(safetensors.torch, "load_file")
    opened = spy(safetensors, "safe_open")
    net = Net()
    save_torch_model(net, tmp_path, max_shard_size=max_shard_size, metadata={"note": "é"})
    files = files_in(tmp_path)
    assert (len(files) > 1) is (max_shard_size == "1KB")
    assert saved.count == len(files)
    assert_files_hold(files, stored(net))
    metadata = [raw_header(file)["__metadata__"] for file in files]
    assert all(found["format"] == "pt" for found in metadata)
    # Of several shards the index holds the caller's metadata, not the files.
    if len(files) == 1:
        assert metadata == [{"format": "pt", "note": "é", "tied.weight": "first.weight"}]

    target = Net()
    result = load_torch_model(target, tmp_path)
    assert loaded.count == opened.count == len(files)
    assert result.unexpected_keys == []
    assert_same_tensors(target.state_dict(), net.state_dict())


def test_save_state_dict_of_awkward_tensors(tmp_path: Path) -> None:
    """Transposed and shared tensors are made contiguous and single before they are saved."""
    whole = torch.randn(6, 4)
    state = {"transposed": torch.randn(6, 4).T, "whole": whole, "alias": whole}
    save_torch_state_dict(state, tmp_path)
    loaded = load_state_dict_from_file(tmp_path / "model.safetensors")
    (kept,) = set(loaded) - {"transposed"}
    assert_same_tensors(loaded, {kept: whole, "transposed": state["transposed"]})


def test_stale_shards_are_removed(tmp_path: Path) -> None:
    """A second save with fewer shards leaves only its own files."""
    net = Net()
    save_torch_model(net, tmp_path, max_shard_size="1KB")
    assert len(files_in(tmp_path)) > 1
    save_torch_model(net, tmp_path)
    assert [file.name for file in tmp_path.glob("*.safetensors")] == ["model.safetensors"]
    assert_files_hold([tmp_path / "model.safetensors"], stored(net))


def test_pickle_is_refused(tmp_path: Path) -> None:
    """A pickle checkpoint under any name is an error of this package, wrapped by the client."""
    file = tmp_path / "model.safetensors"
    torch.save({"a": torch.ones(2)}, file)
    with pytest.raises(ValueError, match="as safetensors") as caught:
        load_state_dict_from_file(file)
    assert isinstance(caught.value.__cause__, safetensors.SafetensorError)


def test_foreign_format_is_refused(tmp_path: Path) -> None:
    """The format in the metadata is checked."""
    file = tmp_path / "model.safetensors"
    safetensors.torch.save_file({"a": torch.ones(2)}, file, {"format": "tf"})
    with pytest.raises(OSError, match="does not contain the valid metadata"):
        load_state_dict_from_file(file)


def test_header_reader(tmp_path: Path) -> None:
    """The hub's own header parser understands the files that this package writes."""
    net = Net()
    file = tmp_path / "model.safetensors"
    safetensors.torch.save_file(stored(net), file, {"format": "pt", "note": 'quote " and é'})
    found = parse_local_safetensors_file_metadata(file)
    assert found.metadata == {"format": "pt", "note": 'quote " and é'}
    assert sorted(found.tensors) == sorted(stored(net))
    for name, tensor in stored(net).items():
        info = found.tensors[name]
        assert info.shape == list(tensor.shape)
        assert info.dtype == ("BF16" if tensor.dtype == torch.bfloat16 else "F32")
        begin, end = info.data_offsets
        assert end - begin == tensor.numel() * tensor.element_size()
    assert found.parameter_count["BF16"] == 15


@pytest.mark.parametrize("max_shard_size", ["5GB", "1KB"])
def test_folder_header_reader(max_shard_size: str, tmp_path: Path) -> None:
    """The same for a folder, sharded or not."""
    net = Net()
    save_torch_model(net, tmp_path, max_shard_size=max_shard_size)
    found = get_local_safetensors_metadata(tmp_path)
    assert found.sharded is (max_shard_size == "1KB")
    assert sorted(found.weight_map) == sorted(stored(net))
    assert set(found.files_metadata) == {file.name for file in files_in(tmp_path)}
    assert sum(found.parameter_count.values()) == sum(t.numel() for t in stored(net).values())


def test_truncated_header_is_refused_by_both(tmp_path: Path) -> None:
    """The hub's parser and this package agree that half a header is none."""
    file = tmp_path / "model.safetensors"
    safetensors.torch.save_file(stored(Net()), file)
    file.write_bytes(file.read_bytes()[:60])
    with pytest.raises(huggingface_hub.errors.SafetensorsParsingError):
        parse_local_safetensors_file_metadata(file)
    with pytest.raises(safetensors.SafetensorError):
        safetensors.safe_open(file, framework="pt")


def test_model_mixin(tmp_path: Path, spy: Spy) -> None:
    """PyTorchModelHubMixin saves by save_model and loads by load_model."""
    saved, loaded = spy(safetensors.torch, "save_model"), spy(safetensors.torch, "load_model")
    net = Net(width=8)
    net.save_pretrained(tmp_path)
    assert saved.count == 1
    assert names_in([tmp_path / "model.safetensors"]) == set(stored(net))
    assert json.loads((tmp_path / "config.json").read_text()) == {"width": 8}
    again = Net.from_pretrained(tmp_path, local_files_only=True)
    assert loaded.count == 1
    assert_same_tensors(again.state_dict(), net.state_dict())
    assert again.tied.weight.data_ptr() == again.first.weight.data_ptr()


def test_dduf(tmp_path: Path) -> None:
    """Bytes of save() inside a DDUF archive load from its memory map."""
    state = stored(Net())
    archive = tmp_path / "tiny.dduf"
    export_entries_as_dduf(
        archive,
        [
            ("model_index.json", b'{"vae": ["diffusers", "AutoencoderKL"]}'),
            ("vae/config.json", b"{}"),
            ("vae/diffusion_pytorch_model.safetensors", safetensors.torch.save(state)),
        ],
    )
    entry = read_dduf_file(archive)["vae/diffusion_pytorch_model.safetensors"]
    with entry.as_mmap() as mapped:
        loaded = safetensors.torch.load(mapped)
    assert_same_tensors(loaded, state)
