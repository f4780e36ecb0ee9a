# What __init__.py makes: the names of the compiled module, under upstream's name.
from ._core import PrefetchLoader as PrefetchLoader
from ._core import PySafeSlice as PySafeSlice
from ._core import SafetensorError as SafetensorError
from ._core import TensorMeta as TensorMeta
from ._core import TensorSpec as TensorSpec
from ._core import TensorStream as TensorStream
from ._core import __version__ as __version__
from ._core import _safe_open_handle as _safe_open_handle
from ._core import deserialize as deserialize
from ._core import safe_open as safe_open
from ._core import serialize as serialize
from ._core import serialize_file as serialize_file

__all__ = [
    "PrefetchLoader",
    "PySafeSlice",
    "SafetensorError",
    "TensorMeta",
    "TensorSpec",
    "TensorStream",
    "__version__",
    "_safe_open_handle",
    "deserialize",
    "safe_open",
    "serialize",
    "serialize_file",
]
