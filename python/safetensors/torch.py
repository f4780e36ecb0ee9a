"""Loads and saves torch tensors, and models whose weights share memory."""

from __future__ import annotations  # evaluating them would dominate the import time

from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Set, Tuple

import torch

from . import _core
from ._core import TensorSpec, deserialize, safe_open, serialize, serialize_file
from ._torch import AnyDevice
from ._torch.dtypes import _SIZE as _SIZE  # upstream has it here
from ._torch.dtypes import _TYPES
from ._typing import Buffer, Path, ProgressOption, Source, SumsOption, Verify

if TYPE_CHECKING:
    from ._torch.load_files import load_files
    from ._torch.load_into import load_into
    from ._torch.placements import plan_placements
    from ._torch.save_file_async import save_file_async
    from ._torch.save_files import save_files
    from ._torch.shared_memory import storage_ptr, storage_size
    from ._torch.stream_files import stream_files
    from ._torch.tensor_parallel import plan_tp

__all__ = [
    "TensorSpec",
    "deserialize",
    "load",
    "load_file",
    "load_files",
    "load_into",
    "load_model",
    "plan_placements",
    "plan_tp",
    "safe_open",
    "save",
    "save_file",
    "save_file_async",
    "save_files",
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

# Names and their modules in _torch, which are imported on first access to keep the import short.
_LAZY = {
    "load_files": "load_files",
    "load_into": "load_into",
    "plan_placements": "placements",
    "plan_tp": "tensor_parallel",
    "save_file_async": "save_file_async",
    "save_files": "save_files",
    "_check_data": "checks",
    "_check_dense": "checks",
    "_evaluate_tensors_for_save": "checks",
    "stream_files": "stream_files",
    "storage_ptr": "shared_memory",
    "storage_size": "shared_memory",
    "_flatten_as_ptr": "save_file",
    "_swapped": "arrays",
    "_to_ndarray": "arrays",
    "_tobytes": "arrays",
    "_view2torch": "arrays",
    "_end_ptr": "shared_memory",
    "_filter_shared_not_shared": "shared_memory",
    "_find_shared_tensors": "shared_memory",
    "_is_complete": "shared_memory",
    "_remove_duplicate_names": "shared_memory",
}


def __dir__() -> List[str]:
    return sorted({*globals(), *_LAZY})


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    found = getattr(importlib.import_module("._torch." + _LAZY[name], __package__), name)
    globals()[name] = found
    return found


def save_model(
    model: torch.nn.Module,
    filename: Path,
    metadata: Optional[Dict[str, str]] = None,
    force_contiguous: bool = True,
    *,
    fsync: bool = False,
    progress: ProgressOption = None,
    sums: SumsOption = None,
) -> None:
    """Saves a model's state dict, keeping one of each group of tensors that share memory.

    Parts of one storage that do not overlap are saved as the tensors that they are.

    Args:
        model: the model, whose `state_dict()` is saved.
        filename: the file to write.
        metadata: strings to store in the file's header. For each tensor that is left out, an entry
            `{its name: the name of the tensor that is kept}` is added, unless the key exists.
        force_contiguous: if true, tensors that are not contiguous are copied; if false, they raise
            ValueError.
        fsync, progress, sums: as for `save_file`.

    Raises:
        RuntimeError: tensors overlap, and none covers the memory that they share.
        ValueError, SafetensorError: as `save_file`.
    """
    from ._progress import reported
    from ._saving.arguments import SaveArguments
    from ._torch.models import state_to_save
    from ._torch.save_file import to_file

    state_dict, notes = state_to_save(model, metadata, force_contiguous)
    advice = " Or use save_model(..., force_contiguous=True), read the docs for potential caveats."
    with reported(progress, "saving") as report:
        options = SaveArguments(notes, fsync, report, sums)
        to_file(state_dict, filename, options, advice)


def load_model(
    model: torch.nn.Module,
    filename: Source,
    strict: bool = True,
    device: Device = "cpu",
    *,
    backend: str = "mmap",
    storage_options: Optional[Mapping[str, Any]] = None,
    verify: Verify = None,
    expected_hashes: Optional[Mapping[str, str]] = None,
    strip_prefixes: bool = False,
    progress: ProgressOption = None,
) -> Tuple[Set[str], List[str]]:
    """Loads a file that `save_model` wrote into a model.

    Args:
        model: the model; the tensors are passed to its `load_state_dict`.
        filename: the file to read: a path, a URL, or a `RangeReader`.
        strict: if true, missing or unexpected names raise RuntimeError.
        device: the device that the tensors are loaded to before `load_state_dict` copies them.
        backend, storage_options, verify, expected_hashes: as for `load_file`.
        strip_prefixes: as for `load_into`.
        progress: as for `load_files`.

    Returns:
        The missing names (in the model, not in the file) and the unexpected names (in the file,
        not in the model). A name is not missing if the file has a tensor that shares its memory.

    Raises:
        RuntimeError: names differ and `strict` is true, or a tensor does not fit.
        SafetensorError: a parameter or buffer is a DTensor, or is on the meta device although
            `device` is not: then the others have been loaded.
        SafetensorError, OSError: as `load_file`.
    """
    from ._torch.models import load_state

    options: Dict[str, Any] = {
        "device": device,
        "backend": backend,
        "storage_options": storage_options,
        "verify": verify,
        "expected_hashes": expected_hashes,
    }
    if progress is None:
        loaded = load_file(filename, **options)
    else:
        from ._torch.load_files import load_files

        loaded = load_files([filename], **options, progress=progress)
    return load_state(model, loaded, strict, strip_prefixes)


def save(tensors: Dict[str, torch.Tensor], metadata: Optional[Dict[str, str]] = None) -> bytes:
    """Returns a file with the tensors, as bytes.

    Args:
        tensors: dense, contiguous tensors by name, on any devices. No two may share memory.
        metadata: strings to store in the file's header.

    Raises:
        ValueError: a value is not a tensor, or a tensor is sparse or not contiguous.
        RuntimeError: tensors share memory (see `save_model`), or the memory of a tensor does not
            hold its elements, as that of a DTensor. The latter is a SafetensorError, too.
        NotImplementedError: a tensor is on the meta device.
        SafetensorError: the format has no such dtype, or a name cannot be written.
    """
    if isinstance(tensors, dict):
        data = _core._save_torch(tensors, metadata)
        if data is not None:
            return data
    # The compiled module declined: some tensor needs preparation, or is an error to be raised here.
    from ._torch.save_file import _flatten_as_ptr

    keep_alive: List[Any] = []
    return serialize(_flatten_as_ptr(tensors, keep_alive), metadata=metadata)


def save_file(
    tensors: Dict[str, torch.Tensor],
    filename: Path,
    metadata: Optional[Dict[str, str]] = None,
    *,
    fsync: bool = False,
    progress: ProgressOption = None,
    sums: SumsOption = None,
) -> None:
    """Saves tensors to a file, atomically: if it fails, an existing file is unchanged.

    Args:
        tensors: as for `save`. They may be views of the file that is replaced.
        filename: the file to write.
        metadata: strings to store in the file's header.
        fsync: if true, returns only after the file and its name are on the disk.
        progress: true for a bar; or called as `progress(done, total)` with byte counts, on the
            calling thread. Its last call has `done == total`. If it raises, nothing is saved and
            the exception propagates.
        sums: whether to write the digests of the tensors to `STEM.sums.json` beside the file: by
            XXH3-128 if true, and also by SHA-256 if it is "sha256" or a list with it. Old sums are
            removed in any case. See docs/verify.md.

    Raises:
        SafetensorError: as `save`. If an operating system call fails, the error is an OSError too,
            such as FileNotFoundError or PermissionError.
        ValueError, RuntimeError, NotImplementedError: as `save`.
    """
    from ._progress import reported
    from ._saving.arguments import SaveArguments
    from ._torch.save_file import to_file

    with reported(progress, "saving") as report:
        to_file(tensors, filename, SaveArguments(metadata, fsync, report, sums))


def load(data: Buffer) -> Dict[str, torch.Tensor]:
    """Returns the tensors of a file that is in memory, copied, on the CPU.

    Args:
        data: the file's bytes: any object with a contiguous buffer.

    Raises:
        SafetensorError: the file is damaged, or torch has no such dtype.
    """
    return _core._load_torch(data, _TYPES)


def load_file(
    filename: Source,
    device: Device = "cpu",
    *,
    backend: str = "mmap",
    storage_options: Optional[Mapping[str, Any]] = None,
    verify: Verify = None,
    expected_hashes: Optional[Mapping[str, str]] = None,
) -> Dict[str, torch.Tensor]:
    """Returns all tensors of a file.

    Args:
        filename: the file to read: a path, a URL, or a `RangeReader`.
        device: the device of the tensors.
        backend: see `safe_open`. With "mmap", tensors on the CPU are views of the file's pages:
            a page is read when it is first used, and writing to a tensor does not change the file.
            A background thread reads ahead once an eighth of the file has been used.
        storage_options: settings for a URL.
        verify: compares what is read with digests. True: with the sums beside the file.
            Then nothing is mapped. See docs/verify.md.
        expected_hashes: the SHA-256 of the whole file by its name or path, in hexadecimal digits.
            The file is read to memory at once, and kept there while its tensors are copied.

    Raises:
        SafetensorError: the file is damaged, torch has no such dtype, or there is no such device.
        IntegrityError: a digest differs; `.damaged` has the tensors and ranges.
        OSError: the file cannot be read.
    """
    with safe_open(
        filename,
        framework="pt",
        device=device,
        backend=backend,
        storage_options=storage_options,
        verify=verify,
        expected_hashes=expected_hashes,
    ) as f:
        tensors: Dict[str, torch.Tensor] = f.get_tensors()
        _core._read_ahead(f)
    return tensors


def _getdtype(dtype_str: str) -> torch.dtype:
    return _TYPES[dtype_str]
