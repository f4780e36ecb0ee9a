"""Loads tensors from several files straight to JAX shardings.

    from jax.sharding import NamedSharding, PartitionSpec

    sharding = NamedSharding(mesh, PartitionSpec("data"))
    arrays = load_files("model_dir", {"*.kernel": sharding, "*": replicated})

`safetensors.flax` loads and saves whole files.
"""

from __future__ import annotations  # evaluating them would dominate the import time

import math
from contextlib import ExitStack
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import jax
import ml_dtypes
import numpy as np

from . import _core
from ._core import SafetensorError, safe_open
from ._errors import failure, while_loading
from ._load_arguments import LoadArguments
from ._model_folder import choice_of
from ._progress import Report, shows_progress
from ._regions import Bounds, SelectedPart, bounds_of, grid_of, sizes_of
from ._rules import match
from ._shards import with_hashes
from ._typing import ProgressOption, Sources, Verify
from .plan import SKIP, Keys, Part, Rule, open_plan

__all__ = ["load_files"]

Placement = Union[jax.sharding.Sharding, jax.ShapeDtypeStruct]
"""A sharding; or an array's dtype, shape and sharding."""

# XLA uses memory of the CPU in place if it is so aligned, and copies it otherwise.
_ALIGNMENT = 64

_DTYPES = _core._dtypes()


@shows_progress("loading")
def load_files(
    filenames: Sources,
    shardings: Union[Placement, Mapping[str, Placement]],
    *,
    keys: Keys = None,
    plan: Optional[Mapping[str, Rule]] = None,
    progress: ProgressOption = None,
    storage_options: Optional[Mapping[str, Any]] = None,
    verify: Verify = None,
    expected_hashes: Optional[Mapping[str, str]] = None,
    name: Optional[str] = None,
    variant: Optional[str] = None,
) -> Dict[str, jax.Array]:
    """Loads tensors from several files straight to the devices of shardings.

    A process reads the regions of its own devices, each distinct region once, all in one load. It
    compiles nothing and does not communicate. On the CPU, the arrays are the memory that was read.

    Args:
        filenames: a file, a directory, the index (`.json`) of a sharded model, or a list of these;
            or URLs or `RangeReader`s. See `safetensors.torch.load_files`.
        shardings: the sharding of all arrays; or a dict that maps names and glob patterns to
            shardings, or to `jax.ShapeDtypeStruct`s, whose dtype and shape are compared with the
            file's, and which without a sharding mean the first device. An exact name takes
            precedence over patterns; among patterns, the first match wins. A tensor that nothing
            matches is not loaded.
        keys: the names of the tensors to load, or a function that returns whether to load a name;
            None loads all.
        plan: a `Plan`, or a dict that maps names and glob patterns to parts or other rules, see
            `safetensors.plan.resolve`. The sharding applies to the part. `shardings` is then
            matched with the plan's tensors. `keys` may be given as well if it is a function.
        progress: true for a bar; or called as `progress(done, total)` with byte counts, on the
            calling thread. Its last call has `done == total`. If it raises, the load stops and the
            exception propagates.
        storage_options: settings for URLs.
        verify: compares what is read with digests, see docs/verify.md.
        expected_hashes, name, variant: as for `safetensors.torch.load_files`.

    Returns:
        The arrays by name, ordered by file and within a file by byte offset.

    Raises:
        IntegrityError: a digest differs; `.damaged` has the tensors and ranges.
        FileNotFoundError: a file does not exist, or a directory holds no files to load.
        SafetensorError: a file or index is damaged; a name is in two files or in none; a pattern
            matches nothing; a dtype or shape differs from the one in `shardings`; JAX has no such
            dtype, or has it only with jax_enable_x64.
        ValueError: a sharding does not divide the axes of an array evenly.
    """
    assert not isinstance(progress, bool)  # shows_progress() has resolved it
    options = LoadArguments(
        filenames, storage_options, with_hashes(verify, expected_hashes), choice_of(name, variant),
        "pread", keys, plan,
    )  # fmt: skip
    with ExitStack() as stack:
        arrays = _open(options, shardings, stack)
        requests = [request for array in arrays for request in array.requests()]
        if requests:
            _core._read_requests(requests, progress)
        else:
            Report(0, progress).finish()
    return {array.name: array.assembled() for array in arrays}


def first_device() -> jax.sharding.Sharding:
    """Returns the sharding of an array for which none is given."""
    return jax.sharding.SingleDeviceSharding(jax.local_devices()[0])


class _Array:
    """An array to load, and the memory for its regions: one after the other, each aligned."""

    def __init__(self, name: str, handle: safe_open, part: Part, placement: Any) -> None:
        self.name = name
        self._handle = handle
        meta = handle.get_tensor_meta(name)
        self._is_f4 = meta.dtype == "F4"
        self._dtype = dtype_of(meta.dtype)
        self._part = SelectedPart(part, meta.shape)
        self._sharding = self._sharding_of(placement)
        indices = _indices_of(self._sharding, self._part.shape)
        regions = sorted({self._read_region(index) for index in indices.values()})
        self._places = {region: i for i, region in enumerate(regions)}
        self._sizes = sizes_of(regions[0]) if regions else ()  # JAX's are all of one shape
        count = math.prod(self._sizes)
        self._nbytes = count // 2 if self._is_f4 else count * self._dtype.itemsize
        self._step = -(-self._nbytes // _ALIGNMENT) * _ALIGNMENT
        self._memory = _aligned(len(regions) * self._step)

    def requests(self) -> List[Tuple[Any, ...]]:
        """Returns what the compiled module reads."""
        if not self._nbytes or not self._places:
            return []
        address = self._memory.ctypes.data
        grid = None
        if len(self._places) > 1 and self._part.is_whole:
            grid = grid_of(self._places, self._part.shape)
        if grid is None:
            tensor = self._handle, self.name
            return [
                (*tensor, self._part.index(region), address + i * self._step, self._nbytes)
                for region, i in self._places.items()
            ]
        # One request for all regions: they may share rows of the file, which are then read once.
        strides = []
        cell, element = len(self._places) * self._step, self._nbytes
        for count, size in zip(grid.counts, self._sizes, strict=True):
            cell, element = cell // count, element // size
            strides += [cell, element]
        nbytes = len(self._places) * self._nbytes
        return [(self._handle, self.name, grid.cells, address, nbytes, grid.shape, strides)]

    def assembled(self) -> jax.Array:
        """Returns the array, which then owns the memory."""
        memory, self._memory = self._memory, np.empty(0, np.uint8)

        def region_of(index: Tuple[slice, ...]) -> np.ndarray:
            begin = self._places[self._read_region(index)] * self._step
            stored = memory[begin : begin + self._nbytes]
            if self._is_f4:
                return self._unpacked(stored, index)
            return stored.view(self._dtype).reshape(self._sizes)

        return jax.make_array_from_callback(
            self._part.shape, self._sharding, region_of, dtype=self._dtype
        )

    def _sharding_of(self, placement: Any) -> Any:
        if hasattr(placement, "addressable_devices_indices_map"):
            return placement
        if not hasattr(placement, "dtype") or not hasattr(placement, "shape"):
            raise TypeError(
                "expected a Sharding or a ShapeDtypeStruct, found " + type(placement).__name__
            )
        wanted = np.dtype(placement.dtype), tuple(placement.shape)
        found = self._dtype, self._part.shape
        if wanted != found:
            raise failure(
                "invalid_argument", f"the file has {_described(*found)}, not {_described(*wanted)}"
            )
        return placement.sharding or first_device()

    def _read_region(self, index: Sequence[slice]) -> Bounds:
        """Returns the region that is read for an index: of F4 tensors, whole rows."""
        region = bounds_of(index, self._part.shape)
        return (*region[:-1], (0, self._part.shape[-1])) if self._is_f4 else region

    def _unpacked(self, packed: np.ndarray, index: Sequence[slice]) -> np.ndarray:
        """Returns the F4 elements of an index, each in a byte, from rows with two in a byte."""
        halves = np.stack((packed & 0x0F, packed >> 4), axis=-1)
        elements = halves.reshape(self._sizes)[..., index[-1]]
        memory = _aligned(elements.size).reshape(elements.shape)
        memory[...] = elements
        return memory.view(self._dtype)


def _open(options: LoadArguments, shardings: Any, stack: ExitStack) -> List[_Array]:
    """Opens the files and returns the arrays to load.

    Raises:
        as `load_files`; the text names the tensor.
    """
    shards, plan, conflict = options.find(), options.plan, options.conflict()
    if conflict is not None:
        raise conflict
    rules = shardings if isinstance(shardings, Mapping) else None
    chosen = rules if plan is None else plan
    handles, found = open_plan(shards, chosen, options.keys, options.backend, stack)
    parts = dict.fromkeys(handles) if plan is None else found
    if rules is None:
        placed = dict.fromkeys(handles, shardings)
    else:
        placed = found if plan is None else match(rules, handles, SKIP)
    arrays = []
    for name, handle in handles.items():
        if name not in placed:
            continue
        try:
            arrays.append(_Array(name, handle, parts[name], placed[name]))
        except (SafetensorError, IndexError, TypeError, ValueError) as error:
            raise while_loading(error, name, _core._file_of(handle)) from error
    return arrays


def _indices_of(sharding: Any, shape: Tuple[int, ...]) -> Mapping[Any, Tuple[slice, ...]]:
    """Returns what each device of this process takes of an array.

    Raises:
        ValueError: the array has too few axes, or axes that the sharding does not divide evenly.
    """
    try:
        indices: Mapping[Any, Tuple[slice, ...]] = sharding.addressable_devices_indices_map(shape)
    except IndexError:  # JAX takes an axis that the array does not have
        raise ValueError(f"{list(shape)} has fewer axes than {sharding}") from None
    return indices


def dtype_of(code: str) -> np.dtype[Any]:
    """Returns the dtype that JAX gives a tensor.

    Raises:
        SafetensorError: JAX has no such dtype, or has it only with jax_enable_x64.
    """
    row = _DTYPES[code]
    try:
        dtype: np.dtype[Any] = np.dtype(row["numpy"] or getattr(ml_dtypes, row["ml_dtypes"] or ""))
        found = jax.dtypes.canonicalize_dtype(dtype)
    except (AttributeError, TypeError):
        raise failure(
            "unsupported_dtype", f"Dtype not understood: {code}: JAX has no such type"
        ) from None
    if found != dtype:
        raise failure(
            "unsupported_dtype", f"JAX has the dtype {dtype.name} only with jax_enable_x64"
        )
    return dtype


def _described(dtype: np.dtype[Any], shape: Sequence[int]) -> str:
    return f"{dtype.name}{list(shape)}"


def _aligned(nbytes: int) -> np.ndarray:
    """Returns memory that JAX uses in place on the CPU."""
    block = np.empty(nbytes + _ALIGNMENT, np.uint8)
    begin = -block.ctypes.data % _ALIGNMENT
    return block[begin : begin + nbytes]
