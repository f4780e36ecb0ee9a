"""Loads safetensors files as an item of an Orbax checkpoint.

    import orbax.checkpoint.experimental.v1 as ocp
    from safetensors.plugins.orbax import SafetensorsHandler

    context = ocp.Context()
    context.checkpointables.registry = ocp.handlers.local_registry().add(
        SafetensorsHandler, checkpointable_name="model"
    )
    with context:
        arrays = ocp.load_checkpointables("checkpoint", {"model": abstract_arrays})["model"]

The folder `checkpoint/model` holds the files, as `safetensors.jax.load_files` takes a folder.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, NoReturn

__all__ = ["SafetensorsHandler"]


class SafetensorsHandler:
    """A `CheckpointableHandler` of Orbax: a folder of safetensors files as a dict of arrays."""

    async def save(
        self, directory: Any, checkpointable: Any, partial_save: bool = False
    ) -> NoReturn:
        """Raises NotImplementedError: this handler only loads."""
        raise NotImplementedError(
            "SafetensorsHandler only loads: save with safetensors.flax.save_file, or with "
            "Orbax's own handlers"
        )

    async def load(
        self, directory: Any, abstract_checkpointable: Mapping[str, Any] | None = None
    ) -> Awaitable[dict[str, Any]]:
        """Loads the arrays, and returns an awaitable of them by name.

        Nothing is left to the awaitable, because Orbax replaces its errors by one of its own.

        Args:
            directory: the folder with the files.
            abstract_checkpointable: the arrays' `jax.ShapeDtypeStruct`s, by name; without a
                sharding in it, an array goes to the first device of the process. None loads all
                arrays to that device.

        Raises:
            SafetensorError, ValueError: as `safetensors.jax.load_files`.
        """
        from ..jax import first_device, load_files

        shardings: Any = abstract_checkpointable
        if shardings is None:
            shardings = first_device()
        arrays = load_files(str(directory), shardings)

        async def loaded() -> dict[str, Any]:
            return arrays

        return loaded()

    async def metadata(self, directory: Any) -> dict[str, Any]:
        """Returns the arrays' `jax.ShapeDtypeStruct`s by name, without shardings."""
        import jax

        from .._core import SafetensorError
        from .._errors import while_loading
        from .._saving.specs import specs_of
        from ..jax import dtype_of

        structs = {}
        for name, spec in specs_of(str(directory)).items():
            try:
                structs[name] = jax.ShapeDtypeStruct(spec.shape, dtype_of(spec.dtype))
            except SafetensorError as error:
                raise while_loading(error, name, str(directory)) from error
        return structs

    def is_handleable(self, checkpointable: Any) -> bool:
        """Returns false: this handler saves nothing."""
        return False

    def is_abstract_handleable(self, abstract_checkpointable: Any) -> bool:
        """Returns whether the object is a dict of abstract arrays by name."""
        return isinstance(abstract_checkpointable, Mapping) and all(
            isinstance(name, str) and hasattr(value, "sharding")
            for name, value in abstract_checkpointable.items()
        )
