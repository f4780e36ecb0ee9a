"""Loads tensors from several files to one or more devices: load_files."""

from __future__ import annotations

import fnmatch
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

from .. import _core
from .._core import safe_open
from .._errors import failure
from .._load_arguments import LoadArguments
from .._model_folder import choice_of
from .._open_shards import backend_for, open_tensors
from .._progress import Report, shows_progress
from .._shards import ShardFile, with_hashes
from .._typing import ProgressOption, Sources, Verify
from ..plan import Keys, Part, Rule, open_plan
from . import AnyDevice, torch
from .devices import CPU, device_of
from .wanted import Wanted, gc_paused, refuse_excess, wanted_of

# With these backends, a tensor on the CPU is a view of the file's pages.
_MAPPED = ("mmap", "auto")


@shows_progress("loading")
def load_files(
    filenames: Sources,
    device: AnyDevice | Mapping[str, AnyDevice] = "cpu",
    *,
    backend: str = "auto",
    keys: Keys = None,
    plan: Mapping[str, Rule] | None = None,
    progress: ProgressOption = None,
    budget_bytes: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    verify: Verify = None,
    expected_hashes: Mapping[str, str] | None = None,
    group: torch.distributed.ProcessGroup | None = None,
    timeout: timedelta | None = None,
    name: str | None = None,
    variant: str | None = None,
) -> dict[str, torch.Tensor]:
    """Loads tensors from several files.

    Args:
        filenames: a file, a directory, the index (`.json`) of a sharded model, or a list of these;
            or URLs or `RangeReader`s. Of a directory, the files of its model are loaded, see
            docs/loading.md. With an index, only files with a requested tensor are opened.
        device: a device, or a dict that maps tensor names and glob patterns, such as
            `model.layers.1?.*`, to devices. An exact name takes precedence over patterns; among
            patterns, the first match wins.
        backend: see `safe_open`. With "auto" and "mmap", tensors on the CPU are views of the
            files' pages: a page is read when it is first used.
        keys: the names of the tensors to load, or a function that returns whether to load a name;
            None loads all.
        plan: a `Plan`, or a dict that maps names and glob patterns to parts or other rules, see
            `safetensors.plan.resolve`. A tensor that nothing matches is not loaded. `keys` may be
            given as well if it is a function.
        progress: true for a bar; or called as `progress(done, total)` with byte counts, on the
            calling thread. Its last call has `done == total`. With it, views are read into the page
            cache during the call, if they fit in memory. If it raises, the load stops and the
            exception propagates.
        budget_bytes: the limit of the tensors' bytes on each device.
        storage_options: settings for URLs.
        verify: compares what is read with digests. True: with the sums beside the model. Then
            nothing is mapped, and no tensor is returned if one is damaged. See docs/verify.md.
        expected_hashes: the SHA-256 of each whole file by its name or path, in hexadecimal digits.
            The files are read to memory at once, and kept there while their tensors are copied.
        group: ranks of torch.distributed that call this together, for the same files. They share
            the reads: what several ranks take is read by one of them, which sends it to the others.
            `plan`, `keys` and `device` may differ between ranks. `device` is one device, and no
            tensor is a view of a file's pages.
        timeout: with `group`, the longest time without progress of any rank; None for 5 minutes.
        name, variant: which model of a directory to load: what the names of its files begin with,
            such as "consolidated", and its variant, such as "fp16".

    Returns:
        The tensors by name, ordered by file and within a file by byte offset.

    Raises:
        FileNotFoundError: a file does not exist, or a directory holds no files to load.
        IntegrityError: a digest differs; `.damaged` has the tensors and ranges.
        SafetensorError: a file or index is damaged, a name is in two files or in none, a pattern of
            `plan` matches nothing, no entry of `device` matches a tensor, or the tensors exceed
            `budget_bytes`. With `group`, whatever a rank raises while it loads, all ranks raise
            SafetensorError with the same text, such as `rank 3: <error>`; on its own rank, the
            error is the `__cause__`. KeyboardInterrupt is raised as such on its own rank.
    """
    assert not isinstance(progress, bool)  # shows_progress() has resolved it
    options = LoadArguments(
        filenames, storage_options, with_hashes(verify, expected_hashes), choice_of(name, variant),
        backend, keys, plan, budget_bytes, progress,
    )  # fmt: skip
    if group is not None:
        from .._group import files

        problem = _problem_with_group(device, options)
        if files.checked(group).size() > 1:
            return files.load_files(group, timeout, problem, device, options)
        if problem is not None:
            raise problem
        if backend == "auto":
            options = options._replace(backend="pread")
    elif timeout is not None:
        raise ValueError("timeout is for loads with a group")
    with ExitStack() as stack:
        shards = options.find()
        options = options._replace(backend=backend_for(shards, options.backend))
        handles, parts = open_files(shards, options, stack)
        is_plain = parts is None and budget_bytes is None and progress is None
        if is_plain and _returns_views(device, options.backend):
            whole = _whole_files(handles)
            if whole is not None:
                return whole
        with gc_paused():  # makes several objects for each tensor, none of them garbage
            wanted = wanted_of(handles, parts)
            by_device = _by_device(wanted, device)
            if budget_bytes is not None:
                _check_budget(by_device, budget_bytes)
        loaded = _load(by_device, options)
    return {item.name: item.finished(loaded[item.name]) for item in wanted}


def _problem_with_group(device: object, options: LoadArguments) -> Exception | None:
    """Returns why these arguments cannot be given with a group, or None."""
    if isinstance(device, Mapping):
        return TypeError("device is a dict; with a group, it is the one device of this rank")
    if options.backend == "mmap":
        return ValueError('backend is "mmap", but with a group no tensor is a view of a file')
    return options.conflict()


def open_files(
    shards: Sequence[ShardFile], options: LoadArguments, stack: ExitStack
) -> tuple[dict[str, safe_open], dict[str, Part] | None]:
    """Returns the open file of each requested tensor, and their parts; None if all are whole."""
    conflict = options.conflict()
    if conflict is not None:
        raise conflict
    if options.plan is None and options.keys is None:
        return open_tensors(shards, None, options.backend, stack)[0], None
    return open_plan(shards, options.plan, options.keys, options.backend, stack)


def _by_device(
    wanted: Sequence[Wanted], device: AnyDevice | Mapping[str, AnyDevice]
) -> dict[str, list[Wanted]]:
    """Groups the tensors by the name of their device.

    Raises:
        SafetensorError: a device is invalid, or no entry of `device` matches a tensor.
    """
    by_device: dict[str, list[Wanted]] = {}
    if not isinstance(device, Mapping):
        name = device_of(device).name
        return {name: list(wanted)} if wanted else {}
    names = {key: device_of(value).name for key, value in device.items()}
    for item in wanted:
        by_device.setdefault(_place(item.name, names), []).append(item)
    return by_device


def _place(name: str, devices: Mapping[str, str]) -> str:
    """Returns the device of a tensor: by its exact name, else by the first pattern that matches."""
    if name in devices:
        return devices[name]
    for pattern, device in devices.items():
        if fnmatch.fnmatchcase(name, pattern):
            return device
    raise failure(
        "invalid_argument",
        f'device says nowhere to put tensor {name!r}: no name or pattern fits it ("*" fits all)',
        subject=name,
    )


def _check_budget(by_device: dict[str, list[Wanted]], budget_bytes: int) -> None:
    for device, items in by_device.items():
        refuse_excess(sum(item.nbytes for item in items), device, budget_bytes)


def _load(by_device: dict[str, list[Wanted]], options: LoadArguments) -> dict[str, torch.Tensor]:
    """Loads the tensors of all devices: views at once, the others in one load of all devices."""
    views: list[Wanted] = []
    copied: list[Wanted] = []
    groups = []
    for device, items in by_device.items():
        if _returns_views(device, options.backend):
            views += items
        else:
            copied += items
            groups.append((device, [each.request() for each in items]))
    read = itertools.chain.from_iterable(
        items for device, items in by_device.items() if device != "meta"
    )
    report = Report(sum(item.nbytes for item in read), options.progress)
    if options.progress is not None:
        _core._fill_page_cache([each.request() for each in views], report.counter())
    loaded = _views(views)
    tensors = itertools.chain.from_iterable(_core._load_groups(groups, report.counter()))
    loaded.update(zip((item.name for item in copied), tensors, strict=True))
    report.finish()
    return loaded


def _returns_views(device: object, backend: str) -> bool:
    """Returns whether tensors are views of the files' pages."""
    return backend in _MAPPED and not isinstance(device, Mapping) and device_of(device) == CPU


def _whole_files(handles: dict[str, safe_open]) -> dict[str, torch.Tensor] | None:
    """Returns views of all tensors of the files; None if `handles` lacks some of them.

    This is the fast path of `load_files`: nothing is done for a tensor but to create it.
    """
    if any(count != len(handle) for handle, count in Counter(handles.values()).items()):
        return None
    found: dict[str, torch.Tensor] = {}
    for handle in dict.fromkeys(handles.values()):
        found.update(handle.get_tensors())
        _core._read_ahead(handle)
    return found


def _views(items: Sequence[Wanted]) -> dict[str, torch.Tensor]:
    """Returns the tensors as views of the files' pages."""
    found: dict[str, torch.Tensor] = {}
    whole = {item.handle: 0 for item in items}
    for item in items:
        whole[item.handle] += item.part is None
    for handle, count in whole.items():
        if count == len(handle):  # one call, which reads files on a network in advance
            found.update(handle.get_tensors())
            _core._read_ahead(handle)
    for item in items:
        if item.part is not None:
            found[item.name] = item.handle.get_slice(item.name)[item.part]
        elif item.name not in found:
            found[item.name] = item.handle.get_tensor(item.name)
    return found
