"""The load format `safetensors_direct` of vLLM: weights are read by `stream_files`.

    vllm serve MODEL --load-format safetensors_direct \\
        --model-loader-extra-config '{"weights": "s3://bucket/model/"}'

vLLM finds `register` by the entry point `vllm.general_plugins`, and calls it in each process.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from .._paths import is_url
from ._contracts import agree

if TYPE_CHECKING:
    from torch import Tensor

_FORMAT = "safetensors_direct"

_logger = logging.getLogger(__name__)


def register() -> None:
    """Registers the load format. Logs a warning if this version of vLLM is not a known one."""
    try:
        _register()
    except Exception as error:
        _logger.warning("%s is not registered: %s: %s", _FORMAT, type(error).__name__, error)


def _register() -> None:
    from vllm.config.vllm import get_current_vllm_config_or_none
    from vllm.distributed.parallel_state import get_tp_group
    from vllm.model_executor.model_loader import register_model_loader
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
    from vllm.model_executor.model_loader.ep_weight_filter import should_skip_weight

    known = {
        get_current_vllm_config_or_none: "",
        get_tp_group: "",
        register_model_loader: "load_format",
        should_skip_weight: "weight_name, local_expert_ids",
        DefaultModelLoader.__init__: "self, load_config",
        DefaultModelLoader._prepare_weights: (
            "self, model_name_or_path, subfolder, revision, fall_back_to_pt, "
            "allow_patterns_overrides"
        ),
        DefaultModelLoader._get_weights_iterator: "self, source",
        DefaultModelLoader.Source: (
            "model_or_path, revision, subfolder=, prefix=, fall_back_to_pt=, "
            "allow_patterns_overrides=, is_unused_weight="
        ),
    }
    if agree(_FORMAT, known):
        register_model_loader(_FORMAT)(_loader_class())


@dataclass(frozen=True)
class _Options:
    """What the loader takes out of `model_loader_extra_config`."""

    weights: str | None = None
    """A file, a folder or a URL instead of the weights that vLLM finds for the model."""
    concurrency: int | None = None
    """Requests at once, for a URL."""
    budget_bytes: int = 1 << 30
    """The limit of bytes that are loaded and not yet copied to the model; not if distributed."""
    distributed: bool = False
    """Whether the ranks of tensor parallelism read each byte once, and send it to one another."""

    def __post_init__(self) -> None:
        if self.weights is not None and not isinstance(self.weights, str):
            raise ValueError(f"weights is a path or a URL, not {self.weights!r}")
        if not isinstance(self.distributed, bool):
            raise ValueError(f"distributed is true or false, not {self.distributed!r}")
        for name in ("concurrency", "budget_bytes"):
            value = getattr(self, name)
            is_count = isinstance(value, int) and not isinstance(value, bool) and value > 0
            if not is_count and (name, value) != ("concurrency", None):
                raise ValueError(f"{name} is a positive integer, not {value!r}")
        if self.concurrency is not None and not is_url(self.weights):
            raise ValueError(f"concurrency is for URLs, and weights is {self.weights!r}")


def _is_main(source: Any, config: Any) -> bool:
    """Returns whether a source is the model that vLLM serves, not a draft or a part elsewhere."""
    if source.subfolder is not None:
        return False
    return config is None or source.model_or_path == config.model_config.model


def _loader_class() -> type[Any]:
    import torch
    from vllm.config.vllm import get_current_vllm_config_or_none
    from vllm.distributed.parallel_state import get_tp_group
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
    from vllm.model_executor.model_loader.ep_weight_filter import should_skip_weight

    from ..torch import stream_files

    class SafetensorsDirectLoader(DefaultModelLoader):  # type: ignore[misc]
        """vLLM's own loader, with another iterator over the weights of safetensors files."""

        counter_before_loading_weights: float

        def __init__(self, load_config: Any) -> None:
            theirs = dict(load_config.model_loader_extra_config)
            names = [field.name for field in fields(_Options) if field.name in theirs]
            self._options = _Options(**{name: theirs.pop(name) for name in names})
            config = copy.copy(load_config)  # other loaders may be made of the same one
            config.load_format = "safetensors"
            config.model_loader_extra_config = theirs
            super().__init__(config)

        def _get_weights_iterator(self, source: Any) -> Generator[tuple[str, Tensor], None, None]:
            options = self._options
            config = get_current_vllm_config_or_none()
            is_torchao = self.load_config.safetensors_load_strategy == "torchao"
            storage_options: Any = None
            if options.weights is not None and _is_main(source, config):
                if is_torchao:
                    raise ValueError("a checkpoint of torchao cannot be read from `weights`")
                files: Any = options.weights
                if options.concurrency is not None:
                    storage_options = {"concurrency": options.concurrency}
            else:
                _, files, is_safetensors, _ = self._prepare_weights(
                    source.model_or_path,
                    source.subfolder,
                    source.revision,
                    source.fall_back_to_pt,
                    source.allow_patterns_overrides,
                )
                # torchao makes one tensor of several, which only vLLM's own iterator does.
                if not is_safetensors or is_torchao:
                    return super()._get_weights_iterator(source)  # type: ignore[no-any-return]
                files = sorted(files)
            keys = self._wants(source)
            if options.distributed:
                from .._group.files import stream
                from .._load_arguments import LoadArguments

                group = get_tp_group().cpu_group
                tensors = stream(group, LoadArguments(files, storage_options, keys=keys))
            else:
                device = self.load_config.device or (config and config.device_config.device)
                tensors = stream_files(
                    files,
                    torch.empty(0, device=device or "cpu").device,  # "cuda" is the current one
                    keys=keys,
                    budget_bytes=options.budget_bytes,
                    storage_options=storage_options,
                )
            if self.counter_before_loading_weights == 0.0:  # vLLM logs the time since
                self.counter_before_loading_weights = time.perf_counter()
            return ((source.prefix + name, tensor) for name, tensor in tensors)

        def _wants(self, source: Any) -> Callable[[str], bool]:
            """Returns a filter: false for weights that this rank or the model does not use."""
            is_unused = source.is_unused_weight or (lambda name: False)
            return lambda name: (
                not is_unused(name) and not should_skip_weight(name, self.local_expert_ids)
            )

    return SafetensorsDirectLoader
