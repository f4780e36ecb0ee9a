"""Tensors of many files, on several devices, or in memory that is there already."""

from __future__ import annotations

import fnmatch
import gc
import itertools
from collections import Counter
from contextlib import ExitStack, contextmanager
from typing import (
    TYPE_CHECKING,
    Any,
    Dict,
    Generator,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Union,
)

import torch

from .. import _core
from .._core import SafetensorError, safe_open
from .._shards import find_shards, open_tensors
from .._typing import Paths, Progress
from .devices import CPU, AnyDevice, device_of
from .dtypes import _TYPES, Form, form_of, nbytes_of

if TYPE_CHECKING:
    from .._core import PrefetchLoader, TensorMeta


# By these, a CPU tensor is made of the file's pages.
_MAPPED = ("mmap", "auto")

# What is streamed at a time to devices without an engine.
_BATCH_NBYTES = 64 << 20


def load_files(
    filenames: Paths,
    device: Union[AnyDevice, Mapping[str, AnyDevice]] = "cpu",
    *,
    backend: str = "auto",
    keys: Optional[Iterable[str]] = None,
    plan: Optional[Mapping[str, Any]] = None,
    progress: Optional[Progress] = None,
    budget_bytes: Optional[int] = None,
) -> Dict[str, torch.Tensor]:
    """The tensors of several files.

    Args:
        filenames: a file, a list of files, a directory, or the index (`.json`) of a model in
            shards. In a directory the index is followed if there is one; else all its
            `.safetensors` files are loaded. By an index, only files with wanted tensors are opened.
        device: where tensors go; or a dict from names, or patterns as `model.layers.1?.*`, to
            devices. A name counts before patterns, and of these the first that fits.
        backend: as `safe_open` has it. By "auto" and "mmap", tensors on the CPU are views of the
            files' pages, which are read when they are used.
        keys: the names of the tensors to load; None: all.
        plan: instead of `keys`, a dict from names to the parts to load, as slices or tuples of
            them; None for a whole tensor.
        progress: called now and then with the number of bytes that have been read and of those
            to read, and at the end. Views read nothing: a load of nothing else calls it once, with
            (0, 0). What it raises ends the load.
        budget_bytes: the most that tensors may take on one device.

    Returns:
        The tensors by name, in the order of files and bytes.

    Raises:
        FileNotFoundError: there is no such file, or none in the directory.
        SafetensorError: a damaged file or index, a tensor in two files or in none, a tensor
            without a device, or more bytes than the budget has.
    """
    parts = _parts(keys, plan)
    with ExitStack() as stack:
        handles, _ = open_tensors(find_shards(filenames), parts, backend, stack)
        if parts is None and budget_bytes is None and _gives_views(device, backend):
            whole = _whole_files(handles, progress)
            if whole is not None:
                return whole
        with _gc_paused():  # for as many objects as there are tensors, which all stay
            wanted = wanted_of(handles, parts)
            by_device = _by_device(wanted, device)
            if budget_bytes is not None:
                _check_budget(by_device, budget_bytes)
        loaded = _load(by_device, backend, progress)
    return {item.name: loaded[item.name] for item in wanted}


def stream_files(
    filenames: Paths,
    device: AnyDevice = "cpu",
    *,
    backend: str = "auto",
    keys: Optional[Iterable[str]] = None,
    budget_bytes: Optional[int] = None,
) -> Generator[Tuple[str, torch.Tensor], None, None]:
    """The tensors of several files one by one, as they land, with few in memory at a time.

    On the CPU and CUDA each file is loaded in the background while its tensors are handed out.
    Leaving the loop early ends the load; `close()` of the iterator does so at once.

    Args:
        filenames: as `load_files` has it. Files are loaded one after the other.
        device: where tensors go.
        backend: as `safe_open` has it.
        keys: the names of the tensors to load; None: all.
        budget_bytes: the most that tensors which are loaded but not handed out yet may take; None:
            as `safe_open.prefetch` thinks best.

    Returns:
        An iterator of names and tensors, in no order within a file.

    Raises:
        What `load_files` raises.
    """
    parts = _parts(keys, None)
    target = device_of(device).name
    with ExitStack() as stack:
        handles, _ = open_tensors(find_shards(filenames), parts, backend, stack)
        plans: Dict[safe_open, Dict[str, Optional[slice]]] = {}
        for item in wanted_of(handles, parts):
            plans.setdefault(item.handle, {})[item.name] = None
        return _stream(plans, target, budget_bytes, stack.pop_all())


def _stream(
    plans: Dict[safe_open, Dict[str, Optional[slice]]],
    device: str,
    budget_bytes: Optional[int],
    stack: ExitStack,
) -> Generator[Tuple[str, torch.Tensor], None, None]:
    with stack:
        for handle, plan in plans.items():
            loader = _prefetch(handle, plan, device, budget_bytes)
            if loader is None:
                yield from _in_turn(handle, plan, device, budget_bytes or _BATCH_NBYTES)
            else:
                with loader:
                    yield from loader
            handle.close()


def _prefetch(
    handle: safe_open,
    plan: Dict[str, Optional[slice]],
    device: str,
    budget_bytes: Optional[int],
) -> Optional[PrefetchLoader]:
    """A loader in the background; None where there is no engine for the device."""
    kind = device_of(device).kind
    if kind not in ("cpu", "cuda"):
        return None
    try:
        return handle.prefetch(plan, device=device, budget_bytes=budget_bytes)
    except SafetensorError:
        if kind == "cpu":
            raise
        return None  # no driver; if that was not why, the other way raises the same


def _in_turn(
    handle: safe_open, plan: Dict[str, Optional[slice]], device: str, budget_bytes: int
) -> Iterator[Tuple[str, torch.Tensor]]:
    """Loads as many tensors at once as the budget allows, but one at least."""
    names = list(plan)
    while names:
        count = nbytes = 0
        for name in names:
            nbytes += _nbytes(handle.get_tensor_meta(name), None)
            if count != 0 and nbytes > budget_bytes:
                break
            count += 1
        batch, names = names[:count], names[count:]
        requests = [(handle, name, None, None) for name in batch]
        (tensors,) = _core._load_groups([(device, requests)])
        pairs = list(zip(batch, tensors, strict=True))[::-1]
        del tensors
        while pairs:  # nothing here keeps what was handed out
            yield pairs.pop()


class Wanted(NamedTuple):
    """A tensor to load, or a part of one."""

    name: str
    handle: safe_open
    part: Any
    nbytes: int

    def form(self) -> Form:
        """The type and shape that torch gives it."""
        return form_of(self.handle.get_tensor_meta(self.name), self.part)


class Count:
    """Tells `progress` how many of the items' bytes have been read, each number once."""

    def __init__(self, items: Iterable[Wanted], progress: Optional[Progress]) -> None:
        self._total, self._progress = sum(item.nbytes for item in items), progress
        self._told = 0

    def while_loading(self) -> Optional[Progress]:
        """What the load is to call, if anything."""
        return None if self._progress is None else self._tell

    def _tell(self, done: int, _: int) -> None:
        # All is told once, by finish().
        if self._progress is not None and self._told < done < self._total:
            self._told = done
            self._progress(done, self._total)

    def finish(self) -> None:
        if self._progress is not None:
            self._progress(self._total, self._total)


def _parts(
    keys: Optional[Iterable[str]], plan: Optional[Mapping[str, Any]]
) -> Optional[Dict[str, Any]]:
    """From the names of wanted tensors to indices; None when all are wanted."""
    if keys is not None and plan is not None:
        raise ValueError("keys and plan cannot be given together: a plan names its tensors")
    if isinstance(keys, str):
        raise TypeError("keys is a str, but names several tensors: put it into a list")
    if keys is not None:
        return dict.fromkeys(keys)
    return dict(plan) if plan is not None else None


def wanted_of(handles: Dict[str, safe_open], parts: Optional[Dict[str, Any]]) -> List[Wanted]:
    absent = [name for name in parts or () if name not in handles]
    if absent:
        raise SafetensorError(f"The files do not contain tensor {absent[0]!r}")
    wanted = []
    for name, handle in handles.items():
        part = parts[name] if parts is not None else None
        try:
            nbytes = _nbytes(handle.get_tensor_meta(name), part)
        except (SafetensorError, IndexError, TypeError, ValueError) as error:
            raise _named(error, name) from error
        wanted.append(Wanted(name, handle, part, nbytes))
    return wanted


def _nbytes(meta: TensorMeta, part: Any) -> int:
    """Bytes of a tensor, or a part of it. Raises when torch has no such tensors."""
    if part is not None or meta.dtype not in _TYPES:
        return nbytes_of(form_of(meta, part))
    begin, end = meta.data_offsets
    return end - begin


@contextmanager
def _gc_paused() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _named(error: Exception, name: str) -> Exception:
    """The error with the tensor's name."""
    return type(error)(f"Error while loading tensor {name}: {error}")


def _by_device(
    wanted: Sequence[Wanted], device: Union[AnyDevice, Mapping[str, AnyDevice]]
) -> Dict[str, List[Wanted]]:
    by_device: Dict[str, List[Wanted]] = {}
    if not isinstance(device, Mapping):
        name = device_of(device).name
        return {name: list(wanted)} if wanted else {}
    names = {key: device_of(value).name for key, value in device.items()}
    for item in wanted:
        by_device.setdefault(_place(item.name, names), []).append(item)
    return by_device


def _place(name: str, devices: Mapping[str, str]) -> str:
    if name in devices:
        return devices[name]
    for pattern, device in devices.items():
        if fnmatch.fnmatchcase(name, pattern):
            return device
    raise SafetensorError(
        f'device says nowhere to put tensor {name!r}: no name or pattern fits it ("*" fits all)'
    )


def _check_budget(by_device: Dict[str, List[Wanted]], budget_bytes: int) -> None:
    for device, items in by_device.items():
        needed = sum(item.nbytes for item in items)
        if needed > budget_bytes:
            raise SafetensorError(
                f"The tensors need {needed} bytes on {device}, but budget_bytes allows "
                f"{budget_bytes}"
            )


def _load(
    by_device: Dict[str, List[Wanted]], backend: str, progress: Optional[Progress]
) -> Dict[str, torch.Tensor]:
    loaded: Dict[str, torch.Tensor] = {}
    copied: List[Wanted] = []
    groups = []
    for device, items in by_device.items():
        if _gives_views(device, backend):
            loaded.update(_views(items))
        else:
            copied += items
            groups.append((device, [(each.handle, each.name, each.part, None) for each in items]))
    read = itertools.chain.from_iterable(
        items for device, items in by_device.items() if _reads(device, backend)
    )
    count = Count(read, progress)
    tensors = itertools.chain.from_iterable(_core._load_groups(groups, count.while_loading()))
    loaded.update(zip((item.name for item in copied), tensors, strict=True))
    count.finish()
    return loaded


def _reads(device: str, backend: str) -> bool:
    """Whether loading to the device reads the tensors' bytes."""
    return device != "meta" and not _gives_views(device, backend)


def _gives_views(device: object, backend: str) -> bool:
    """Whether tensors are made of the files' pages."""
    return backend in _MAPPED and not isinstance(device, Mapping) and device_of(device) == CPU


def _whole_files(
    handles: Dict[str, safe_open], progress: Optional[Progress]
) -> Optional[Dict[str, torch.Tensor]]:
    """The tensors, as views; None if that is not all that the files have. Takes no time for each
    tensor but what it takes to make it."""
    if any(count != len(handle) for handle, count in Counter(handles.values()).items()):
        return None
    found: Dict[str, torch.Tensor] = {}
    for handle in dict.fromkeys(handles.values()):
        found.update(handle.get_tensors())
        _core._read_ahead(handle)
    if progress is not None:
        progress(0, 0)  # views: nothing was read
    return found


def _views(items: Sequence[Wanted]) -> Dict[str, torch.Tensor]:
    """Tensors of the files' pages."""
    found: Dict[str, torch.Tensor] = {}
    whole = {item.handle: 0 for item in items}
    for item in items:
        whole[item.handle] += item.part is None
    for handle, count in whole.items():
        if count == len(handle):  # at once, which brings files of a network into memory first
            found.update(handle.get_tensors())
            _core._read_ahead(handle)
    for item in items:
        if item.part is not None:
            found[item.name] = item.handle.get_slice(item.name)[item.part]
        elif item.name not in found:
            found[item.name] = item.handle.get_tensor(item.name)
    return found
