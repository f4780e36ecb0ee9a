"""Loads and saves NumPy arrays.

The modules of other frameworks have the same functions. What their arguments have in common is
described here.
"""

from __future__ import annotations  # evaluating them would dominate the import time

from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Union

import numpy as np

from . import _core
from ._core import TensorSpec, deserialize, safe_open, serialize, serialize_file
from ._numpy_arrays import _TYPES as _TYPES  # these names are upstream's, too
from ._numpy_arrays import _as_dict, _prepare, _read_all, _stored_nbytes
from ._numpy_arrays import _flatten as _flatten
from ._numpy_arrays import _getdtype as _getdtype
from ._numpy_arrays import _is_little_endian as _is_little_endian
from ._numpy_arrays import _tobytes as _tobytes
from ._numpy_arrays import _view2np as _view2np
from ._typing import Buffer, Path, ProgressOption, Source, SumsOption, Verify

if TYPE_CHECKING:
    from ._saving.arguments import SaveArguments
    from ._saving.numpy_async import save_file_async

__all__ = [
    "TensorSpec",
    "deserialize",
    "load",
    "load_file",
    "safe_open",
    "save",
    "save_file",
    "save_file_async",
    "save_files",
    "serialize",
    "serialize_file",
]


def __dir__() -> List[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    # Imported on first access, because it needs threads and futures.
    if name != "save_file_async":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ._saving.numpy_async import save_file_async

    globals()[name] = save_file_async
    return save_file_async


def save(
    tensor_dict: Mapping[str, Union[np.ndarray, np.generic]],
    metadata: Optional[Dict[str, str]] = None,
) -> bytes:
    """Returns a file with the arrays, as bytes.

    Args:
        tensor_dict: arrays by name, of any layout and byte order, including the dtypes of
            ml_dtypes; also of JAX and MLX. Values are stored in C order and little-endian.
        metadata: strings to store in the file's header.

    Raises:
        SafetensorError: the format has no such dtype, or a name cannot be written. The error
            for a value that is no array is an AttributeError, too.

    Warns:
        UserWarning: elements of an array are masked: files keep no masks.
    """
    return _core._save_numpy(_as_dict(tensor_dict), _prepare, metadata)


def save_file(
    tensor_dict: Mapping[str, Union[np.ndarray, np.generic]],
    filename: Path,
    metadata: Optional[Dict[str, str]] = None,
    *,
    fsync: bool = False,
    progress: ProgressOption = None,
    sums: SumsOption = None,
) -> None:
    """Saves arrays to a file, atomically: if it fails, an existing file is unchanged.

    Args:
        tensor_dict: as for `save`. They may be views of the file that is replaced.
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
    """
    from ._progress import reported
    from ._saving.arguments import SaveArguments

    with reported(progress, "saving") as report:
        _to_file(tensor_dict, filename, SaveArguments(metadata, fsync, report, sums))


def _to_file(tensor_dict: Any, filename: Any, options: SaveArguments) -> None:
    how = options.of_file(filename)
    _core._save_numpy_file(_as_dict(tensor_dict), _prepare, filename, how)


def save_files(
    tensor_dict: Mapping[str, Union[np.ndarray, np.generic]],
    folder: Path,
    metadata: Optional[Dict[str, str]] = None,
    *,
    max_shard_size: Union[int, str] = "5GB",
    name: str = "model",
    fsync: bool = False,
    progress: ProgressOption = None,
    sums: SumsOption = None,
) -> List[str]:
    """Saves a model to a folder, as one file or as shards with an index.

    The files have the names and the content that huggingface_hub gives them. They replace a model
    of the same name as a whole: if the save fails or is killed, the folder holds the old model, or
    `recover` completes the new one. The old model's files are removed.

    Args:
        tensor_dict: as for `save`. They may be views of the files that are replaced.
        folder: made if it does not exist; its parent must exist.
        metadata: strings to store in the header of each file.
        max_shard_size: the limit of the arrays of a file, in bytes or as "5GB" (decimal) or
            "2GiB". A larger array gets a file of its own.
        name: the first part of the names: `model.safetensors`, or
            `model-00001-of-00002.safetensors` and `model.safetensors.index.json`.
        fsync: if true, returns only after the model is on the disk. If a model is replaced, the
            new files are flushed in any case before the first old one is removed.
        progress: true for a bar; or called as `progress(done, total)` with bytes of arrays, on the
            calling thread, until all files are written. If it raises, nothing is saved and the
            exception propagates.
        sums: whether to write the digests of the tensors to `model.sums.json`, as `save_file`.

    Returns:
        The paths of the files with arrays.

    Raises:
        SafetensorError: as `save_file`; another process is saving to the folder; the index of the
            old model is damaged, or another user's.
        OSError: an operating system call failed.
        ValueError: `max_shard_size` or `name` is not valid.
    """
    from ._progress import reported
    from ._saving.arguments import SaveArguments
    from ._saving.model_files import save_files as save_all
    from ._saving.split import split

    arrays = _read_all(tensor_dict)

    def save(names: List[str], target: Any, options: SaveArguments) -> None:
        _to_file({each: arrays[each] for each in names}, target, options)

    sizes = {key: _stored_nbytes(key, array) for key, array in arrays.items()}
    with reported(progress, "saving") as report:
        options = SaveArguments(metadata, fsync, report, sums)
        return save_all(split(sizes, max_shard_size), sizes, save, folder, name, options)


def load(data: Buffer) -> Dict[str, np.ndarray]:
    """Returns the arrays of a file that is in memory, copied.

    Args:
        data: the file's bytes: any object with a contiguous buffer.

    Raises:
        SafetensorError: the file is damaged, or NumPy has no such dtype.
    """
    return _core._load_numpy(data)


def load_file(
    filename: Source,
    *,
    backend: str = "mmap",
    storage_options: Optional[Mapping[str, Any]] = None,
    verify: Verify = None,
    expected_hashes: Optional[Mapping[str, str]] = None,
) -> Dict[str, np.ndarray]:
    """Returns all arrays of a file.

    Args:
        filename: the file to read: a path, a URL, or a `RangeReader`.
        backend: see `safe_open`. With "mmap", the arrays are views of the file's pages: a page is
            read when it is first used, and writing to an array does not change the file. A
            background thread reads ahead once an eighth of the file has been used.
        storage_options: settings for a URL.
        verify: compares what is read with digests. True: with the sums beside the file.
            Then nothing is mapped. See docs/verify.md.
        expected_hashes: the SHA-256 of the whole file by its name or path, in hexadecimal digits.
            The file is read to memory at once, and kept there while its tensors are copied.

    Raises:
        SafetensorError: the file is damaged, or NumPy has no such dtype.
        IntegrityError: a digest differs; `.damaged` has the tensors and ranges.
        OSError: the file cannot be read.
    """
    with safe_open(
        filename,
        framework="np",
        backend=backend,
        storage_options=storage_options,
        verify=verify,
        expected_hashes=expected_hashes,
    ) as f:
        arrays: Dict[str, np.ndarray] = f.get_tensors()
        _core._read_ahead(f)
    return arrays
