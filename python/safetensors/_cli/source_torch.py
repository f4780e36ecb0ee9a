"""Converting from what torch.save writes. Only weights are unpickled, never code."""

import os
import pickle
import zipfile
from typing import TYPE_CHECKING, Any

from .. import SafetensorError, TensorSpec
from . import text
from .atomic_file import AtomicFile
from .errors import CliError
from .header_text import Entry
from .output import Advance
from .reader import CHUNK_NBYTES

if TYPE_CHECKING:
    import torch


class TorchSource:
    """Checkpoints that hold a dict of tensors, or of dicts of which `key` names one."""

    def __init__(self, paths: list[str], key: str | None, skip_others: bool) -> None:
        try:
            import torch
        except ImportError:
            raise CliError(
                "convert needs torch for .pt and .bin files: pip install torch"
            ) from None
        self.metadata = {"format": "pt"}
        self.notes: list[str] = []
        self._tensors: dict[str, torch.Tensor] = {}
        for path in paths:
            self._add_file(path, key, skip_others)
        self.entries = sorted(
            (_entry(name, tensor) for name, tensor in self._tensors.items()),
            key=lambda entry: text.natural_key(entry.name),
        )
        self._note_shared()

    def write(self, name: str, target: AtomicFile, advance: Advance) -> None:
        from ..torch import _to_ndarray

        array, keep_alive = _to_ndarray(self._tensors[name])
        view = memoryview(array)
        for begin in range(0, len(view), CHUNK_NBYTES):
            chunk = view[begin : begin + CHUNK_NBYTES]
            target.write(chunk)
            advance(len(chunk))
        del keep_alive

    def close(self) -> None:
        self._tensors.clear()

    def _add_file(self, path: str, key: str | None, skip_others: bool) -> None:
        import torch

        found = _load(path)
        where = text.shown_path(path)
        if key is not None:
            if not isinstance(found, dict) or key not in found:
                raise CliError(f"{where}: no entry {text.clipped(key)}")
            found = found[key]
        if not isinstance(found, dict):
            raise CliError(f"{where}: not a dict of tensors but {type(found).__name__}")
        tensors = {n: t for n, t in found.items() if isinstance(t, torch.Tensor)}
        if not tensors:
            keys = [str(n) for n, value in found.items() if isinstance(value, dict)]
            hint = f": choose one with --key: {', '.join(map(text.clipped, keys))}" if keys else ""
            raise CliError(f"{where}: no tensors at its top level{hint}")
        others = [str(n) for n in found if n not in tensors]
        if others and not skip_others:
            raise CliError(
                f"{where}: `{text.clipped(others[0])}` is no tensor: --skip-others leaves out what "
                "is none"
            )
        if others:
            self.notes.append(f"{where}: left out: {', '.join(map(text.clipped, others[:10]))}")
        for name, tensor in tensors.items():
            if not isinstance(name, str):
                raise CliError(f"{where}: the name {text.clipped(repr(name))} is no text")
            if name in self._tensors:
                raise CliError(f"{where}: tensor `{text.clipped(name)}` is in another file too")
            self._tensors[name] = tensor

    def _note_shared(self) -> None:
        """Weights that are one in memory become two in the file: no name is lost."""
        seen: dict[tuple[Any, ...], str] = {}
        for entry in self.entries:
            tensor = self._tensors[entry.name]
            if entry.nbytes == 0:
                continue
            place = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
            other = seen.setdefault(place, entry.name)
            if other != entry.name:
                self.notes.append(
                    f"`{text.clipped(entry.name)}` and `{text.clipped(other)}` are one tensor: "
                    "each is written"
                )


def _load(path: str) -> Any:
    import torch

    os.stat(path)  # its error is clearer than torch's
    try:
        # Pages of the file, so that memory holds one tensor at a time. torch before 1.6 wrote
        # files that cannot be mapped.
        mmap = zipfile.is_zipfile(path)
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except pickle.UnpicklingError as error:
        reason = _refused(str(error))
        raise CliError(f"{text.shown_path(path)}: refused: {reason}") from None
    except (RuntimeError, ValueError, EOFError, AttributeError, KeyError, IndexError) as error:
        reason = text.clipped(" ".join(str(error).split()), 200)
        raise CliError(f"{text.shown_path(path)}: torch cannot load it: {reason}") from None


def _refused(message: str) -> str:
    """Of torch's page of advice, which is about trusting the file, what it found."""
    begin = message.find("WeightsUnpickler error:")
    if begin < 0:
        return "it holds more than tensors, or is damaged"
    found = " ".join(message[begin:].removeprefix("WeightsUnpickler error:").split())
    return "it holds more than tensors: " + text.clipped(found, 120)


def _entry(name: str, tensor: "torch.Tensor") -> Entry:
    import torch

    if tensor.layout != torch.strided:
        raise CliError(f"tensor `{text.clipped(name)}` is sparse: files hold dense tensors only")
    word = str(tensor.dtype).rpartition(".")[2]
    try:
        spec = TensorSpec(dtype=word, shape=tensor.shape, data_ptr=0, data_len=0)
    except SafetensorError:
        raise CliError(f"tensor `{text.clipped(name)}`: files have no type {word}") from None
    return Entry(name, spec.dtype, spec.shape, tensor.nbytes)
