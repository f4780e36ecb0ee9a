"""A hook of sglang: its iterators over weights read safetensors files by `stream_files`.

    SAFETENSORS_SGLANG=1 python -m sglang.launch_server --model-path MODEL

sglang finds `register` by the entry point `sglang.srt.plugins`, and calls it in each process.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ._contracts import agree

_VARIABLE = "SAFETENSORS_SGLANG"
_MODULE = "sglang.srt.model_loader.weight_utils"
_BUDGET_NBYTES = 1 << 30
_READS = ("disable_mmap", "prefetch", "drop_cache_after_load")

_logger = logging.getLogger(__name__)


def register() -> None:
    """Registers the hook if SAFETENSORS_SGLANG is 1.

    Logs a warning if this version of sglang is not a known one.
    """
    if os.environ.get(_VARIABLE) != "1":
        return
    try:
        _register()
    except Exception as error:
        _logger.warning("%s has no effect: %s: %s", _VARIABLE, type(error).__name__, error)


def _register() -> None:
    from sglang.srt.model_loader.weight_utils import (
        buffered_multi_thread_safetensors_weights_iterator,
        safetensors_weights_iterator,
    )
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    options = "disable_mmap=, prefetch=, prefetch_num_threads=, drop_cache_after_load="
    known = {
        safetensors_weights_iterator: f"hf_weights_files, {options}",
        buffered_multi_thread_safetensors_weights_iterator: (
            f"hf_weights_files, max_workers, {options}"
        ),
        HookRegistry.register: "target, hook, hook_type=, *, source=",
    }
    if agree(f"{_VARIABLE}=1", known):
        for iterator in list(known)[:2]:
            HookRegistry.register(f"{_MODULE}.{iterator.__name__}", _iterate, HookType.AROUND)


def _iterate(
    original: Callable[..., Iterator[tuple[str, Any]]],
    hf_weights_files: Sequence[str],
    *args: Any,
    **options: Any,
) -> Iterator[tuple[str, Any]]:
    """Takes the place of both iterators, unless an option asks for one way of reading."""
    if args or any(options.get(name) for name in _READS):
        return original(hf_weights_files, *args, **options)
    from ..torch import stream_files

    return stream_files(hf_weights_files, budget_bytes=_BUDGET_NBYTES)
