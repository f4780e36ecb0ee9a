"""Files of torch tensors: loading, saving, and models with shared weights."""

from __future__ import annotations  # to evaluate them takes most of an import

import sys
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Set, Tuple

import torch

from . import _core
from ._core import TensorSpec, deserialize, safe_open, serialize, serialize_file
from ._torch.devices import AnyDevice
from ._torch.dtypes import _SIZE, _TYPES
from ._torch.shared_memory import (  # noqa: F401  (programs import them from this module)
    _end_ptr,
    _filter_shared_not_shared,
    _find_shared_tensors,
    _is_complete,
    _remove_duplicate_names,
    storage_ptr,
    storage_size,
)
from ._typing import Buffer, Path, Progress

if TYPE_CHECKING:
    from ._torch.load_files import load_files, stream_files
    from ._torch.load_into import load_into

__all__ = [
    "TensorSpec",
    "deserialize",
    "load",
    "load_file",
    "load_files",
    "load_into",
    "load_model",
    "safe_open",
    "save",
    "save_file",
    "save_model",
    "serialize",
    "serialize_file",
    "storage_ptr",
    "storage_size",
    "stream_files",
]

Device = AnyDevice

# Names that programs import from upstream's module; None if this torch has no such type.
_float8_e4m3fn = _TYPES.get("F8_E4M3")
_float8_e4m3fnuz = _TYPES.get("F8_E4M3FNUZ")
_float8_e5m2 = _TYPES.get("F8_E5M2")
_float8_e5m2fnuz = _TYPES.get("F8_E5M2FNUZ")
_float8_e8m0 = _TYPES.get("F8_E8M0")
_float4_e2m1_x2 = _TYPES.get("F4")

# Functions and their modules, which are imported on first access: together they take as long to
# import as the rest of this module.
_LAZY = {
    "load_files": "_torch.load_files",
    "load_into": "_torch.load_into",
    "stream_files": "_torch.load_files",
}


def __dir__() -> List[str]:
    return sorted({*globals(), *_LAZY})


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    found = getattr(importlib.import_module("." + _LAZY[name], __package__), name)
    globals()[name] = found
    return found


def save_model(
    model: torch.nn.Module,
    filename: Path,
    metadata: Optional[Dict[str, str]] = None,
    force_contiguous: bool = True,
) -> None:
    """Saves a model's state, of weights that share memory one.

    Args:
        model: the model; its state_dict is saved.
        filename: the file to write.
        metadata: text to go with it. For each name that is left out, the name that stands for it
            is added, unless the key is taken.
        force_contiguous: whether tensors that are not contiguous are copied to be so. Else they
            raise ValueError.
    """
    state_dict = model.state_dict()
    notes = dict(metadata) if metadata is not None else {}
    for kept, removed in _remove_duplicate_names(state_dict).items():
        for name in removed:
            notes.setdefault(name, kept)
            del state_dict[name]
    if force_contiguous:
        state_dict = {name: tensor.contiguous() for name, tensor in state_dict.items()}
    try:
        save_file(state_dict, filename, metadata=notes if notes else metadata)
    except ValueError as error:
        raise ValueError(
            f"{error} Or use save_model(..., force_contiguous=True), read the docs for potential "
            "caveats."
        ) from error


def load_model(
    model: torch.nn.Module,
    filename: Path,
    strict: bool = True,
    device: Device = "cpu",
    *,
    backend: str = "mmap",
) -> Tuple[Set[str], List[str]]:
    """Loads a file that `save_model` wrote into a model.

    Args:
        model: the model; its load_state_dict takes the tensors in.
        filename: the file to read.
        strict: whether names that are missing or unexpected raise RuntimeError.
        device: where the tensors are loaded to before they are copied.
        backend: as `safe_open` has it.

    Returns:
        The names that the file lacks, and those that the model lacks. Names that stand for others
        with the same memory count as there.
    """
    state_dict = load_file(filename, device=device, backend=backend)
    to_remove = _remove_duplicate_names(model.state_dict(), preferred_names=list(state_dict))
    incompatible = model.load_state_dict(state_dict, strict=False)
    missing, unexpected = set(incompatible.missing_keys), list(incompatible.unexpected_keys)
    for removed in to_remove.values():
        for name in removed:
            if name in missing:
                missing.remove(name)
            else:
                unexpected.append(name)
    if strict and (missing or unexpected):
        from ._torch.load_into import mismatch

        heading = f"Error(s) in loading state_dict for {type(model).__name__}:"
        raise RuntimeError(mismatch(heading, missing, unexpected))
    return missing, unexpected


def save(tensors: Dict[str, torch.Tensor], metadata: Optional[Dict[str, str]] = None) -> bytes:
    """A file of the tensors, as bytes.

    Args:
        tensors: contiguous and dense, on any device. None may share memory with another.
        metadata: text to go with them.

    Raises:
        ValueError: a tensor is sparse or not contiguous, or no tensor.
        RuntimeError: tensors share memory; see `save_model`.
        SafetensorError: a name that cannot be written.
    """
    if isinstance(tensors, dict):
        data = _core._save_torch(tensors, metadata)
        if data is not None:
            return data
    keep_alive: List[Any] = []
    return serialize(_flatten_as_ptr(tensors, keep_alive), metadata=metadata)


def save_file(
    tensors: Dict[str, torch.Tensor],
    filename: Path,
    metadata: Optional[Dict[str, str]] = None,
    *,
    fsync: bool = False,
    progress: Optional[Progress] = None,
) -> None:
    """Writes a file of the tensors: whole, or not at all, leaving an old file as it was.

    Args:
        tensors: as `save` has them. They may be mapped from the file that is replaced.
        filename: the file to write.
        metadata: text to go with them.
        fsync: whether to wait until the file is on the disk.
        progress: called as progress(done, total) with the bytes that are written and those of the
            file; the last call has both equal. If it raises, the save is undone and the exception
            passes through.

    Raises:
        What `save` raises, and an error that is both SafetensorError and OSError when the system
        refuses.
    """
    if isinstance(tensors, dict) and _core._save_torch_file(
        tensors, filename, metadata, fsync, progress
    ):
        return
    keep_alive: List[Any] = []
    specs = _flatten_as_ptr(tensors, keep_alive)
    serialize_file(specs, filename, metadata=metadata, fsync=fsync, progress=progress)


def load(data: Buffer) -> Dict[str, torch.Tensor]:
    """The tensors of a file held in memory, copied, on the CPU.

    Args:
        data: the file: bytes, or any object with a contiguous buffer.
    """
    return _core._load_torch(data, _TYPES)


def load_file(
    filename: Path,
    device: Device = "cpu",
    *,
    backend: str = "mmap",
) -> Dict[str, torch.Tensor]:
    """All tensors of a file.

    Args:
        filename: the file to read.
        device: where the tensors go.
        backend: as `safe_open` has it. By "mmap", tensors on the CPU are views of the file's
            pages, which are read when they are used; once an eighth is used, a background
            thread reads ahead.
    """
    with safe_open(filename, framework="pt", device=device, backend=backend) as f:
        tensors: Dict[str, torch.Tensor] = f.get_tensors()
        _core._read_ahead(f)
    return tensors


def _getdtype(dtype_str: str) -> torch.dtype:
    return _TYPES[dtype_str]


def _view2torch(safeview: List[Tuple[str, Dict[str, Any]]]) -> Dict[str, torch.Tensor]:
    """Tensors of what `deserialize` returns, over its memory."""
    result = {}
    for name, entry in safeview:
        dtype = _getdtype(entry["dtype"])
        shape = list(entry["shape"])
        if dtype == _float4_e2m1_x2:
            shape[-1] //= 2
        if len(entry["data"]) == 0:
            result[name] = torch.empty(shape, dtype=dtype, device="cpu")
            continue
        data = entry["data"]
        if sys.byteorder == "big":
            data = _swapped(data, _SIZE[dtype], dtype.is_complex)
        flat = torch.frombuffer(data, dtype=torch.uint8)
        result[name] = flat.view(dtype).reshape(shape)
    return result


def _swapped(data: Any, itemsize: int, is_complex: bool) -> bytearray:
    """The bytes of each element turned round; of a complex one those of its halves."""
    import numpy as np

    width = itemsize // 2 if is_complex else itemsize
    return bytearray(np.frombuffer(data, dtype=f"V{width}").view(f"u{width}").byteswap().tobytes())


def _to_ndarray(tensor: torch.Tensor) -> Tuple[Any, torch.Tensor]:
    """The tensor's bytes as files have them, as a NumPy array of uint8, and the CPU tensor whose
    memory that is."""
    dense = tensor.detach().to("cpu").resolve_conj().resolve_neg().contiguous()
    # Not reshape: a single element may keep a stride that a view by bytes does not take.
    flat = dense.as_strided((dense.nelement(),), (1,))
    array = flat.view(torch.uint8).numpy()
    if sys.byteorder == "big":
        import numpy as np

        swapped = _swapped(array, _SIZE[tensor.dtype], tensor.is_complex())
        array = np.frombuffer(swapped, dtype=np.uint8)
    return array, dense


def _tobytes(tensor: torch.Tensor, name: str = "") -> bytes:
    """The tensor's bytes as files have them."""
    _check_dense(tensor, name)
    return bytes(_to_ndarray(tensor)[0].tobytes())


def _check_dense(tensor: torch.Tensor, name: str) -> None:
    if tensor.layout != torch.strided:
        raise ValueError(
            f"You are trying to save a sparse tensor: `{name}` which this library does not support."
        )
    if not tensor.is_contiguous():
        raise ValueError(
            f"You are trying to save a non contiguous tensor: `{name}` which is not allowed. It "
            "either means you are trying to save tensors which are reference of each other in "
            "which case it's recommended to save only the full tensors, and reslice at load time, "
            "or simply call `.contiguous()` on your tensor to pack it before saving."
        )


def _check_data(tensor: torch.Tensor, name: str) -> None:
    """Raises when a file cannot hold the tensor. The texts begin with those that reading its memory
    would bring."""
    if hasattr(tensor, "full_tensor"):  # DTensor, without importing torch.distributed
        raise RuntimeError(
            "Attempted to access the data pointer on an invalid python storage. Tensor "
            f"`{name}` is a DTensor, of which this process holds a part. Save its "
            "`.full_tensor()`, or save the parts with `torch.distributed.checkpoint`."
        )
    if tensor.device.type == "meta":
        raise NotImplementedError(
            f"Cannot copy out of meta tensor; no data! Tensor `{name}` is on the meta device. Load "
            "its values before saving, or leave it out."
        )
    if tensor.dtype not in _SIZE:
        advice = "`.dequantize()` or `.int_repr()`" if tensor.is_quantized else "`.to(...)`"
        raise _core._error_class(KeyError)(
            f"{tensor.dtype}: tensor `{name}` is of this type, which the file format does not "
            f"have. Convert it with {advice}."
        )


def _evaluate_tensors_for_save(tensors: Dict[str, torch.Tensor]) -> None:
    """Raises when the tensors cannot be saved together."""
    if not isinstance(tensors, dict):
        raise ValueError(f"Expected a dict of [str, torch.Tensor] but received {type(tensors)}")
    sparse = []
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(
                f"Key `{name}` is invalid, expected torch.Tensor but received {type(tensor)}"
            )
        if tensor.layout != torch.strided:
            sparse.append(name)
    if sparse:
        raise ValueError(
            f"You are trying to save a sparse tensors: `{sparse}` which this library does not "
            "support. You can make it a dense tensor before saving with `.to_dense()` but be aware "
            "this might make a much larger file than needed."
        )
    for name, tensor in tensors.items():
        _check_data(tensor, name)
    failing = [group for group in _find_shared_tensors(tensors) if len(group) > 1]
    if failing:
        # The spaces are part of the text that programs know.
        indent = "\n            "
        raise RuntimeError(
            f"{indent}Some tensors share memory, this will lead to duplicate memory on disk and "
            f"potential differences when loading them again: {failing}."
            f"{indent}A potential way to correctly save your model is to use `save_model`."
            f"{indent}More information at "
            f"https://huggingface.co/docs/safetensors/torch_shared_tensors{indent}"
        )


def _flatten_as_ptr(
    tensors: Dict[str, torch.Tensor], keep_alive_buffer: List[Any]
) -> Dict[str, TensorSpec]:
    """What `serialize` takes; the memory stays while `keep_alive_buffer` does."""
    _evaluate_tensors_for_save(tensors)
    specs = {}
    for name, tensor in tensors.items():
        _check_dense(tensor, name)
        array, dense = _to_ndarray(tensor)
        keep_alive_buffer.append((array, dense))
        specs[name] = TensorSpec(
            dtype=str(tensor.dtype).rpartition(".")[2],
            shape=tensor.shape,
            data_ptr=array.ctypes.data,
            data_len=array.nbytes,
        )
    return specs
