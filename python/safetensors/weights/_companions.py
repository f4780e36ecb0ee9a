"""The small files of a model's folder: configuration, tokenizer, licence."""

import contextlib
import json
import os
import stat
from typing import Any, Dict, Iterator, List, Optional

from safetensors import _core, _files
from safetensors._paths import visible
from safetensors._typing import Path
from safetensors._weights import WeightsError

_SUFFIXES = (".json", ".jinja", ".model", ".txt", ".tiktoken", ".py")
_LICENCES = ("LICENSE", "LICENCE", "NOTICE", "USE_POLICY")
# What describes the files that are replaced.
_LEFT_OUT = (".index.json", ".sums.json")
_QUANTISERS = ("quantize_config.json", "quant_config.json", "hf_quant_config.json")
_CONFIG = "config.json"
_QUANTISATION = ("quantization", "quantization_config")
_MOST_NBYTES = 64 << 20


class Companions:
    """The files of a source's folder that the result needs, too; none if the source is a file."""

    def __init__(self, src: Path, dtype: Optional[str] = None) -> None:
        """Reads config.json, in which a `dtype` such as "bfloat16" replaces the old one.

        Raises:
            WeightsError: config.json is not a JSON object.
        """
        self._folder = os.fsdecode(src)
        self.names: List[str] = []
        self.notes: List[str] = []
        if not os.path.isdir(self._folder):
            return
        self.names = [
            name for name in sorted(visible(os.listdir(self._folder))) if self._is_one(name)
        ]
        self._config = b""
        if _CONFIG in self.names:
            path = os.path.join(self._folder, _CONFIG)
            self._config = _plain_config(self._stored(_CONFIG), dtype, path)

    def _is_one(self, name: str) -> bool:
        if name.endswith(_LEFT_OUT) or name in _QUANTISERS:
            return False
        if not name.endswith(_SUFFIXES) and not name.startswith(_LICENCES):
            return False
        if not self._is_inside(name):
            self.notes.append(f"`{name}` is left out: it is a link to a file outside of the folder")
            return False
        try:
            found = os.stat(os.path.join(self._folder, name))
        except OSError as error:
            self.notes.append(f"`{name}` is left out: {error.strerror}")
            return False
        if not stat.S_ISREG(found.st_mode):
            return False
        if found.st_size > _MOST_NBYTES:
            self.notes.append(
                f"`{name}` is left out: it has {found.st_size:,} bytes, more than {_MOST_NBYTES:,}"
            )
            return False
        return True

    def _is_inside(self, name: str) -> bool:
        """Returns whether a name leads to a file of the folder, or of a Hugging Face cache:
        snapshots/REVISION/NAME is a link to ../../blobs/DIGEST."""
        folder = os.path.realpath(self._folder)
        parent = os.path.dirname(os.path.realpath(os.path.join(folder, name)))
        snapshots = os.path.dirname(folder)
        blobs = os.path.join(os.path.dirname(snapshots), "blobs")
        is_cached = os.path.basename(snapshots) == "snapshots" and parent == blobs
        return is_cached or os.path.commonpath([folder, parent]) == folder

    def in_folder(self, folder: str) -> List[str]:
        """Returns the paths that `written` writes."""
        return [os.path.join(folder, name) for name in self.names]

    @contextlib.contextmanager
    def written(self, folder: str, fsync: bool = False) -> Iterator[None]:
        """Writes the files under temporary names, and renames them after the body, which commits
        the model. If the body raises before the model is replaced, the old files remain."""
        random = os.urandom(8).hex()
        paths = dict(zip(self.names, self.in_folder(folder), strict=True))
        waiting = {
            os.path.join(folder, f".{name}.{random}.tmp"): path for name, path in paths.items()
        }
        before = _model_in(folder)
        try:
            for (name, path), temporary in zip(paths.items(), waiting, strict=True):
                if os.path.isdir(path):
                    raise WeightsError(f"{path} is a folder, so it cannot be replaced")
                data = self._config if name == _CONFIG else self._stored(name)
                like = path if os.path.exists(path) else None
                _core._write_file(temporary, data, fsync, like)
            yield
            _rename(waiting)
        except BaseException:
            if _model_in(folder) == before:
                for temporary in waiting:
                    with contextlib.suppress(OSError):
                        os.unlink(temporary)
            else:  # interrupted after the model took its place
                _rename(waiting)
            raise
        if fsync:
            _files.flush(folder)

    def _stored(self, name: str) -> bytes:
        path = os.path.join(self._folder, name)
        # Without O_NONBLOCK, opening a pipe that replaced the file would wait for a writer.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise WeightsError(f"{path} is not a regular file any more")
            data = file.read(_MOST_NBYTES + 1)
        if len(data) > _MOST_NBYTES:
            raise WeightsError(f"{path}: grew to more than {_MOST_NBYTES:,} bytes")
        return data


def _model_in(folder: str) -> Dict[str, Any]:
    """Returns what tells the files of a model from those that replace them."""
    with os.scandir(folder) as entries:
        found = [
            (each.name, each.stat(follow_symlinks=False))
            for each in entries
            if each.name.endswith((".safetensors", ".index.json"))
        ]
    return {name: (status.st_ino, status.st_mtime_ns) for name, status in found}


def _rename(waiting: Dict[str, str]) -> None:
    for temporary, path in waiting.items():
        if os.path.lexists(temporary):
            os.replace(temporary, path)


def _plain_config(data: bytes, dtype: Optional[str], path: str) -> bytes:
    """Returns config.json without what describes quantised tensors, and with this dtype."""
    try:
        config = json.loads(data)
        if not isinstance(config, dict):
            raise ValueError(f"expected an object, found {type(config).__name__}")
        changed = _remove_quantisation(config)
        for table in (config, config.get("text_config")):
            for key in ("torch_dtype", "dtype"):
                if dtype and isinstance(table, dict) and isinstance(table.get(key), str):
                    changed |= table[key] != dtype
                    table[key] = dtype
        return (json.dumps(config, indent=2) + "\n").encode() if changed else data
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{path} is not a configuration: {error}") from None


def _remove_quantisation(table: Dict[str, Any]) -> bool:
    """Removes its entries at any depth of tables such as `text_config`."""
    changed = bool([table.pop(key) for key in _QUANTISATION if key in table])
    for key, value in table.items():
        if key.endswith("_config") and isinstance(value, dict):
            changed |= _remove_quantisation(value)
    return changed
