"""The small files of a model's folder: configuration, tokenizer, licence."""

import contextlib
import json
import os
import stat
from typing import Any, Dict, Iterator, List

from safetensors import _core
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

    def __init__(self, src: Path) -> None:
        folder = os.fsdecode(src)
        self.names: List[str] = []
        if not os.path.isdir(folder):
            return
        self._folder = folder
        self.names = [name for name in sorted(visible(os.listdir(folder))) if self._is_one(name)]

    def _is_one(self, name: str) -> bool:
        if name.endswith(_LEFT_OUT) or name in _QUANTISERS:
            return False
        if not name.endswith(_SUFFIXES) and not name.startswith(_LICENCES):
            return False
        found = os.stat(os.path.join(self._folder, name))
        return stat.S_ISREG(found.st_mode) and found.st_size <= _MOST_NBYTES

    def in_folder(self, folder: str) -> List[str]:
        """Returns the paths that `written` writes."""
        return [os.path.join(folder, name) for name in self.names]

    @contextlib.contextmanager
    def written(self, folder: str, fsync: bool = False) -> Iterator[None]:
        """Writes the files, and removes the new ones if the body raises."""
        new: List[str] = []
        try:
            for name in self.names:
                data = self._data(name)
                path = os.path.join(folder, name)
                if not os.path.lexists(path):
                    new.append(path)
                _core._write_file(path, data, fsync)
            yield
        except BaseException:
            for path in new:
                with contextlib.suppress(OSError):
                    os.unlink(path)
            raise

    def _data(self, name: str) -> bytes:
        path = os.path.join(self._folder, name)
        with open(path, "rb") as file:
            data = file.read(_MOST_NBYTES + 1)
        if len(data) > _MOST_NBYTES:
            raise WeightsError(f"{path}: grew to more than {_MOST_NBYTES:,} bytes")
        return _without_quantisation(data) if name == _CONFIG else data


def _without_quantisation(data: bytes) -> bytes:
    """Returns config.json without what describes quantised tensors.

    Requires: the weight layer has read it.
    """
    config = json.loads(data)
    removed = [_remove(part) for part in (config, config.get("text_config"))]
    if not any(removed):
        return data
    return (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode()


def _remove(table: Any) -> bool:
    if not isinstance(table, Dict):
        return False
    found = [table.pop(key) for key in _QUANTISATION if key in table]
    return bool(found)
