"""Reads checkpoints of torch.save. Only weights are unpickled, never code."""

import pickle
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .. import SafetensorError, TensorSpec
from .._near_names import suggestions
from .._saving.writer import SafeWriter
from . import text, torch_archive
from .errors import CliError
from .model import Index, refuse_misplaced
from .opening import Watch
from .source import Copies, SourceTensor

if TYPE_CHECKING:
    import torch

_MAX_REPEATED_NBYTES = 64_000_000
"""The limit for tensors that have more bytes than they store, as after expand(). Without it, a
file of a kilobyte could take any amount of memory and disk."""


class TorchSource(Copies):
    """Checkpoints that hold a dict of tensors, or a dict of dicts, of which `key` selects one."""

    def __init__(
        self, paths: list[str], index: Index | None, key: str | None, skip_others: bool
    ) -> None:
        """`index` is that of the files, if they have one."""
        try:
            import torch
        except ImportError:
            raise CliError(
                "convert needs torch for .pt and .bin files: pip install torch"
            ) from None
        self.metadata = {"format": "pt"}
        self.paths = paths
        self._others: list[str] = []
        self.notes: list[str] = []
        self._tensors: dict[str, torch.Tensor] = {}
        self._where: dict[str, str] = {}
        self._repeated_nbytes = 0
        self._watch = Watch()
        try:
            for path in paths:
                self._add_file(path, key, skip_others)
            if index is not None:
                self._refuse_misplaced(index)
            self.entries = sorted(
                (_entry(name, tensor) for name, tensor in self._tensors.items()),
                key=lambda entry: text.natural_key(entry.name),
            )
        except BaseException:
            self.close()
            raise
        if self._others:
            self.left_out = {"not tensors": self._others}
        self._note_shared()

    def write(self, writer: SafeWriter, names: Sequence[str]) -> None:
        for name in names:
            try:
                writer.write(name, self._tensors[name])
            except (MemoryError, RuntimeError) as error:
                raise self._error(name, _reason(error)) from None

    def refuse_changed(self) -> None:
        self._watch.refuse_changed()

    def close(self) -> None:
        self._tensors.clear()
        self._watch.close()

    def _add_file(self, path: str, key: str | None, skip_others: bool) -> None:
        import torch

        self._watch.open(path)  # its errors are clearer than torch's, and it does not wait
        found = _load(path)
        self._watch.refuse_replaced(path)  # torch opens the path itself
        where = path
        if key is not None:
            if not isinstance(found, dict) or key not in found:
                near = suggestions(key, map(str, found)) if isinstance(found, dict) else ""
                raise CliError(f"{where}: no entry {text.clipped(key)}{near}")
            found = found[key]
        if not isinstance(found, dict):
            raise CliError(f"{where}: expected a dict of tensors, found {type(found).__name__}")
        tensors = {n: t for n, t in found.items() if isinstance(t, torch.Tensor)}
        if not tensors:
            keys = [str(n) for n, value in found.items() if isinstance(value, dict)]
            hint = (
                f"; choose a dict with --key: {', '.join(map(text.clipped, keys))}" if keys else ""
            )
            raise CliError(f"{where}: no tensors at the top level{hint}")
        others = [str(n) for n in found if n not in tensors]
        if others and not skip_others:
            raise CliError(
                f"{where}: `{text.clipped(others[0])}` is not a tensor; --skip-others leaves out "
                "such entries"
            )
        if others:
            self.notes.append(f"{where}: left out: {', '.join(map(text.clipped, others[:10]))}")
            self._others.extend(others)
        for name, tensor in tensors.items():
            if not isinstance(name, str):
                raise CliError(f"{where}: the name {text.clipped(repr(name))} is not a string")
            if name in self._tensors:
                raise CliError(f"{where}: tensor `{text.clipped(name)}` is also in another file")
            self._tensors[name] = tensor
            self._where[name] = where
            self._refuse_a_blown_up_one(name, tensor)

    def _refuse_misplaced(self, index: Index) -> None:
        """Raises CliError if a tensor is not where the index puts it."""
        others = set(self._others)  # which the user leaves out
        wanted = {name: at for name, at in index.weight_map.items() if name not in others}
        found = {name: {path} for name, path in self._where.items()}
        refuse_misplaced(index._replace(weight_map=wanted), found)

    def _refuse_a_blown_up_one(self, name: str, tensor: "torch.Tensor") -> None:
        """Limits the sum of tensors that have more bytes than the file stores for them."""
        import torch

        if tensor.layout != torch.strided:
            return  # refused later, because it is sparse
        if tensor.device.type != "cpu":
            raise self._error(name, "the file has its shape only, not its values")
        stored = tensor.untyped_storage().nbytes()
        if tensor.nbytes <= stored:
            return
        self._repeated_nbytes += tensor.nbytes
        if self._repeated_nbytes > _MAX_REPEATED_NBYTES:
            raise self._error(
                name,
                f"it would take {text.size(tensor.nbytes)}, but the file stores only "
                f"{text.size(stored)}: it was saved after expand(). Such tensors may take "
                f"{text.size(_MAX_REPEATED_NBYTES)} together: save clones of them, or only the "
                "values that are not repeated",
            )

    def _error(self, name: str, message: str) -> CliError:
        return CliError(f"{self._where[name]}: tensor `{text.clipped(name)}`: {message}")

    def _note_shared(self) -> None:
        """Notes which tensors share memory. The file gets a copy for each name."""
        seen: dict[tuple[Any, ...], str] = {}
        for entry in self.entries:
            tensor = self._tensors[entry.name]
            if entry.nbytes == 0:
                continue
            place = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
            other = seen.setdefault(place, entry.name)
            if other != entry.name:
                self.notes.append(
                    f"`{text.clipped(entry.name)}` and `{text.clipped(other)}` share memory: "
                    "both are written"
                )


def _load(path: str) -> Any:
    import torch

    try:
        # A mapped file takes memory for one tensor at a time. Files of torch before 1.6, which are
        # not zip archives, cannot be mapped.
        mmap = torch_archive.check(path)
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except pickle.UnpicklingError as error:
        reason = _refused(str(error))
        raise CliError(f"{path}: refused: {reason}") from None
    except (OSError, CliError):
        raise
    except Exception as error:
        # torch may raise any exception for a damaged file.
        raise CliError(f"{path}: torch cannot load it: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    """Returns the message of torch as one line."""
    message = " ".join(str(error).split())
    if isinstance(error, MemoryError) or "can't allocate memory" in message:
        return "not enough memory"
    return text.clipped(message or type(error).__name__, 200)


def _refused(message: str) -> str:
    """Returns what torch found, without its page of advice about trusting the file."""
    begin = message.find("WeightsUnpickler error:")
    if begin < 0:
        return "it holds more than tensors, or is damaged"
    found = " ".join(message[begin:].removeprefix("WeightsUnpickler error:").split())
    return "it holds more than tensors: " + text.clipped(found, 120)


def _entry(name: str, tensor: "torch.Tensor") -> SourceTensor:
    import torch

    if tensor.layout != torch.strided:
        raise CliError(
            f"tensor `{text.clipped(name)}` is sparse; the format holds dense tensors only"
        )
    word = str(tensor.dtype).rpartition(".")[2]
    try:
        spec = TensorSpec(dtype=word, shape=tensor.shape, data_ptr=0, data_len=0)
    except SafetensorError:
        raise CliError(f"tensor `{text.clipped(name)}`: the format has no type {word}") from None
    return SourceTensor(name, spec.dtype, spec.shape, tensor.nbytes)
