from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import (
    Any,
    Dict,
    List,
    Literal,
    Optional,
    Protocol,
    Tuple,
    Type,
    TypedDict,
    TypeVar,
    Union,
    final,
)

from ._typing import Buffer, Digests, Progress, Verify
from ._typing import Path as _Path
from ._typing import Source as _Source

# A str such as "cuda:0", an index, or a torch.device; None is the CPU.
_Device = Any

# The path of the sums, and a function that makes them: see _sums_save.py.
_Sums = Tuple[
    Optional[str],
    Callable[[str, Mapping[str, Optional[Tuple[str, bytes]]]], Optional[bytes]],
]

_Spec = TypeVar("_Spec", bound=Tuple[str, Tuple[int, ...]])

PrefetchPlan = Dict[str, Optional[slice]]

class _File(Protocol):
    @property
    def name(self) -> Any: ...
    def fileno(self) -> int: ...

class _Entry(TypedDict):
    dtype: str
    shape: List[int]
    data: bytearray

__version__: str
__build__: Dict[str, Any]

class SafetensorError(Exception):
    code: Optional[str]
    path: Optional[str]
    subject: Optional[str]

def _error_class(base: Type[Exception]) -> Type[SafetensorError]: ...
def _os_error_class(base: Type[OSError]) -> Type[OSError]: ...
def _file_kind(start: Buffer) -> Optional[Tuple[str, str]]: ...

@final
class TensorMeta:
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> List[int]: ...
    @property
    def data_offsets(self) -> Tuple[int, int]: ...

@final
class PySafeSlice:
    def get_shape(self) -> List[int]: ...
    def get_dtype(self) -> str: ...
    @property
    def shape(self) -> List[int]: ...
    @property
    def dtype(self) -> str: ...
    def __getitem__(self, index: Any, /) -> Any: ...
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...
    def __iter__(self) -> Iterator[Any]: ...

@final
class TensorStream:
    def __iter__(self) -> TensorStream: ...
    def __next__(self) -> Tuple[str, Any]: ...

@final
class PrefetchLoader:
    def names(self) -> List[str]: ...
    def take(self, name: str) -> Any: ...
    def close(self) -> None: ...
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...
    def __iter__(self) -> TensorStream: ...
    def __enter__(self) -> PrefetchLoader: ...
    def __exit__(
        self,
        _exc_type: Optional[Type[BaseException]],
        _exc_value: Optional[BaseException],
        _traceback: Optional[TracebackType],
    ) -> None: ...

class safe_open:
    def __init__(
        self,
        filename: _Source,
        framework: str,
        device: _Device = "cpu",
        *,
        backend: str = "mmap",
        storage_options: Optional[Mapping[str, Any]] = None,
        verify: Verify = None,
        expected_hashes: Optional[Mapping[str, str]] = None,
    ) -> None: ...
    def keys(self) -> List[str]: ...
    def offset_keys(self) -> List[str]: ...
    def metadata(self) -> Optional[Dict[str, str]]: ...
    def get_tensor(self, name: str) -> Any: ...
    def get_tensors(self) -> Dict[str, Any]: ...
    def values(self) -> Iterator[Any]: ...
    def items(self) -> Iterator[Tuple[str, Any]]: ...
    def __getitem__(self, name: str) -> Any: ...
    def get_slice(self, name: str) -> PySafeSlice: ...
    def get_tensor_meta(self, name: str) -> TensorMeta: ...
    def prefetch(
        self,
        plan: Optional[PrefetchPlan] = None,
        *,
        device: Optional[_Device] = None,
        threads: int = 8,
        budget_bytes: Optional[int] = None,
    ) -> PrefetchLoader: ...
    def close(self) -> None: ...
    def __enter__(self) -> safe_open: ...
    def __exit__(
        self,
        _exc_type: Optional[Type[BaseException]],
        _exc_value: Optional[BaseException],
        _traceback: Optional[TracebackType],
    ) -> None: ...
    def __contains__(self, name: object, /) -> bool: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[str]: ...
    def __bool__(self) -> bool: ...

class _safe_open_handle(safe_open):
    def __init__(
        self,
        f: _File,
        framework: str,
        device: _Device = "cpu",
        *,
        backend: str = "mmap",
    ) -> None: ...

@final
class TensorSpec:
    def __init__(
        self, *, dtype: str, shape: Sequence[int], data_ptr: int, data_len: int
    ) -> None: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> List[int]: ...
    @property
    def data_ptr(self) -> int: ...
    @property
    def data_len(self) -> int: ...

def deserialize(bytes: Buffer) -> List[Tuple[str, _Entry]]: ...
def serialize(
    tensor_dict: Dict[str, TensorSpec], metadata: Optional[Dict[str, str]] = None
) -> bytes: ...
def serialize_file(
    tensor_dict: Dict[str, TensorSpec],
    filename: _Path,
    metadata: Optional[Dict[str, str]] = None,
    *,
    fsync: bool = False,
    progress: Optional[Progress] = None,
) -> None: ...
def io_config(
    *,
    threads: Optional[int] = None,
    chunk_bytes: Optional[int] = None,
    staging_bytes: Optional[int] = None,
    streams: Optional[int] = None,
    slots: Optional[int] = None,
) -> Dict[str, int]: ...
def release_staging() -> int: ...
def _load_groups(
    groups: Sequence[Tuple[_Device, Sequence[Tuple[Any, ...]]]],
    progress: Optional[Progress] = None,
) -> List[List[Any]]: ...
def _make_empty(device: _Device, requests: Sequence[Tuple[Any, ...]]) -> List[Any]: ...
def _forms(
    handle: safe_open, names: List[str]
) -> Tuple[List[Tuple[Tuple[int, ...], int]], List[int]]: ...
def _copy_rows(source: int, nbytes: int, moves: Buffer) -> None: ...
def _read_request(handle: safe_open, name: str, index: Any, address: int, nbytes: int) -> None: ...
def _read_requests(
    requests: Sequence[Tuple[Any, ...]], progress: Optional[Progress] = None
) -> None: ...
def _open_shard(
    filename: _Source,
    backend: str,
    storage_options: Optional[Mapping[str, Any]] = None,
    digests: Optional[Digests] = None,
) -> safe_open: ...
def _dtypes() -> Dict[str, Dict[str, Any]]: ...
def _to_float(dtype: str, data: Buffer) -> bytes: ...
def _is_url(filename: object) -> bool: ...
def _explain(
    files: Sequence[Tuple[safe_open, Sequence[Tuple[str, Any]]]], gap_bytes: Optional[int] = ...
) -> List[Tuple[int, int, int, str]]: ...

@final
class _TensorHasher:
    def __init__(self, dtype: str, shape: Sequence[int], block_size: int = ...) -> None: ...
    @property
    def start(self) -> bytes: ...
    def update(self, data: Buffer) -> None: ...
    def digest(self) -> str: ...
    def blocks(self) -> bytes: ...

def _xxh3_128(data: Buffer) -> str: ...
def _parse_sums(
    data: Buffer,
) -> Tuple[
    List[Tuple[str, int, Dict[str, str], Optional[str]]],
    List[Tuple[str, str, Dict[str, str], Optional[bytes]]],
    Optional[str],
]: ...
def _sums_json(
    files: Sequence[Tuple[str, int, Dict[str, str], Optional[str]]],
    tensors: Sequence[Tuple[str, str, Dict[str, str], Optional[bytes]]],
    whole: Optional[str],
) -> bytes: ...
def _encode_patch(
    base: Buffer,
    target: Buffer,
    dtype: str,
    shape: Sequence[int],
    *,
    set_values: bool = ...,
    base_digest: Optional[str] = ...,
    target_digest: Optional[str] = ...,
) -> Tuple[bytes, bytes, int]: ...
def _whole_patch(
    target: Optional[Buffer],
    dtype: str,
    shape: Sequence[int],
    *,
    base_digest: Optional[str],
    target_digest: Optional[str] = ...,
) -> bytes: ...
def _apply_patches(pairs: List[Tuple[_PatchRecord, Buffer]]) -> None: ...

@final
class _PatchRecord:
    def __init__(
        self, record: Buffer, values: Buffer, dtype: str, algorithm: str, label: str = ...
    ) -> None: ...
    @property
    def kind(self) -> Literal["removed", "whole", "blocks"]: ...
    @property
    def unit(self) -> int: ...
    @property
    def units(self) -> int: ...
    @property
    def shape(self) -> Tuple[int, ...]: ...
    @property
    def changed(self) -> int: ...
    @property
    def has_base(self) -> bool: ...
    @property
    def base(self) -> Optional[str]: ...
    @property
    def target(self) -> Optional[str]: ...
    @property
    def codes(self) -> Dict[str, int]: ...
    def check(self, tensor: Buffer) -> Literal["base", "applied"]: ...
    def apply(self, tensor: Buffer) -> None: ...
    def overwrite(self, tensor: Buffer) -> None: ...
    def positions(self, out: Buffer) -> None: ...
    def new_values(self, base: Optional[Buffer], out: Buffer) -> None: ...

def _read_ahead(handle: safe_open) -> None: ...
def _read_range(handle: safe_open, offset: int, nbytes: int) -> bytes: ...
def _read_index(path: _Path) -> Tuple[Dict[str, List[str]], Optional[int]]: ...
def _parse_index(data: Buffer, name: str) -> Tuple[Dict[str, List[str]], Optional[int]]: ...
def _choose_model_files(
    folder: str,
    names: Iterable[str],
    name: str,
    variant: str,
    files_of_index: Callable[[str], Iterable[str]],
    exists: Callable[[str], bool],
) -> Tuple[str, str, str, str, List[str], List[str], List[str]]: ...
def _model_probes(name: str, variant: str) -> List[str]: ...
def _parse_model_file_name(file: str) -> Optional[Tuple[str, str, str, int, int]]: ...
def _use_cuda_driver(path: str) -> None: ...
def _has_cuda_driver() -> bool: ...
def _load_torch(data: Buffer, types: Dict[str, Any]) -> Dict[str, Any]: ...
def _load_numpy(data: Buffer) -> Dict[str, Any]: ...
def _save_torch(tensors: Dict[str, Any], metadata: Optional[Dict[str, str]]) -> Optional[bytes]: ...
def _save_torch_file(
    tensors: Dict[str, Any],
    filename: _Path,
    metadata: Optional[Dict[str, str]],
    fsync: bool,
    progress: Optional[Progress],
    sums: Optional[_Sums] = None,
) -> bool: ...
def _save_numpy(
    arrays: Dict[str, Any],
    prepare: Callable[[Any, Any], Tuple[Any, str, Tuple[int, ...]]],
    metadata: Optional[Dict[str, str]],
) -> bytes: ...
def _save_numpy_file(
    arrays: Dict[str, Any],
    prepare: Callable[[Any, Any], Tuple[Any, str, Tuple[int, ...]]],
    filename: _Path,
    metadata: Optional[Dict[str, str]],
    fsync: bool,
    progress: Optional[Progress],
    sums: Optional[_Sums] = None,
) -> None: ...
def _save_specs_file(
    tensor_dict: Dict[str, TensorSpec],
    filename: _Path,
    metadata: Optional[Dict[str, str]],
    fsync: bool,
    progress: Optional[Progress],
    sums: Optional[_Sums],
) -> None: ...
def _use_torch_exchange(use: bool) -> None: ...

@final
class _StagedSave:
    def __init__(
        self,
        tensors: Dict[str, TensorSpec],
        metadata: Optional[Dict[str, str]],
        filename: _Path,
        fsync: bool,
        sums: Optional[_Sums] = None,
    ) -> None: ...
    def stage(
        self,
        readers: Dict[str, Union[Callable[[int, memoryview], object], Tuple[int, int]]],
        budget_bytes: Optional[int],
    ) -> None: ...
    def write(self) -> None: ...
    def write_here(
        self,
        readers: Dict[str, Union[Callable[[int, memoryview], object], Tuple[int, int]]],
        budget_bytes: Optional[int],
    ) -> None: ...
    def stop(self) -> None: ...
    @property
    def nbytes_done(self) -> int: ...

def _renew_staging() -> None: ...
def _staging_state() -> Tuple[int, int]: ...

@final
class _OwnTarget:
    """The name of a new file in a private folder: the writers take it in place of a path."""

@final
class _Folder:
    """A folder, held open: the files whose names the package chose are reached by its descriptor.

    A name is one in the folder, and no link under it is followed. A `like` is a folder and the name
    of the file in it whose mode, owner, group and access list a new file gets.
    """

    def __init__(self, path: _Path) -> None: ...
    @property
    def path(self) -> str: ...
    @property
    def name(self) -> str:
        """The name of a private folder in its parent, or ""."""
    @property
    def inode(self) -> int: ...
    def fileno(self) -> int: ...
    def is_shared(self) -> bool:
        """Returns whether another user may rename or remove what this user makes here."""
    def flush(self) -> None: ...
    def names(self) -> List[str]: ...
    def identity(self, name: str) -> Optional[List[int]]:
        """Returns size, time of the last change in nanoseconds, and inode; None without a file.

        Raises IsADirectoryError for a folder.
        """
    def open(self, name: str, own: bool = True, write: bool = True) -> Optional[int]:
        """Returns a descriptor of a regular file, which the caller closes; None if there is none.

        Raises SafetensorError for anything else, and with `own` for a file of another user.
        """
    def remove(self, name: str, fd: int = -1) -> bool:
        """Removes a file; with `fd`, only if the name still is that file."""
    def remove_stale(self, only: Optional[str] = None) -> int:
        """Removes temporary files that killed saves of this user have left, and returns how many.

        With `only`, those of this file and its sums; else those of all `*.safetensors`.
        """
    def sees_all_locks(self) -> bool:
        """Returns whether locks are known to keep out the processes of all machines."""
    def make_private(self, name: str, kind: str) -> _Folder:
        """Makes a folder that no other user can enter, locked while it is open.

        It is called `.STEM.RANDOM.KIND`, with the result of _own_stem() as STEM.
        """
    def open_private(self, name: str, inode: int = 0) -> Optional[_Folder]: ...
    def remove_private(self, folder: _Folder) -> None: ...
    def remove_empty(self, folder: _Folder) -> bool:
        """Removes a private folder if it is empty. Returns whether it is gone."""
    def target(self, name: str, like: Optional[Tuple[_Folder, str]] = None) -> _OwnTarget: ...
    def write(
        self,
        name: str,
        data: Buffer,
        like: Optional[Tuple[_Folder, str]] = None,
        fsync: bool = False,
    ) -> None:
        """Writes a new file, whole."""
    def take_rights(self, name: str, like: Tuple[_Folder, str]) -> None: ...
    def move(self, name: str, target: _Folder, to: str) -> None:
        """Renames a file of this private folder, replacing what has the name there.

        Raises OSError with ESTALE if another user then put something else under the name.
        """

@final
class _FileWriter:
    def __init__(
        self,
        target: Any,
        seeks: bool,
        specs: Union[
            Sequence[Tuple[str, str, Sequence[int]]],
            Mapping[str, Tuple[str, Sequence[int]]],
            None,
        ],
        metadata: Optional[Dict[str, str]],
        layout: str,
        fsync: bool,
        budget_bytes: int,
        progress: Optional[Progress],
        rights_of: Optional[_Path],
        data_begin: int = 0,
        sums: Optional[_Sums] = None,
    ) -> None: ...
    def add(self, name: str, dtype: str, shape: Sequence[int]) -> int: ...
    def write(self, tensor: int, data: Any) -> bool: ...
    def write_bytes(self, tensor: int, begin: Optional[int], data: Buffer) -> None: ...
    def write_slice(
        self, tensor: int, index: Any, dtype: str, shape: Sequence[int], data: Buffer
    ) -> None: ...
    def copy(self, file: safe_open, tensors: Sequence[Tuple[int, str]], cast: bool) -> None: ...
    def missing(self) -> List[int]: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    @property
    def nbytes_written(self) -> int: ...
    @property
    def is_in_call(self) -> bool: ...
    @property
    def is_committed(self) -> bool: ...

def _specs_of_torch(tensors: Dict[str, Any], type: Type[_Spec]) -> Optional[Dict[str, _Spec]]: ...
def _plan_layout(
    specs: Sequence[Tuple[str, str, Sequence[int]]],
    metadata: Optional[Dict[str, str]],
    layout: str,
    data_begin: int = 0,
) -> Tuple[bytes, List[Tuple[int, int]]]: ...
def _write_file(
    path: _Path, data: Buffer, fsync: bool, rights_of: Optional[_Path] = None
) -> None: ...
def _write_beside(
    path: _Path,
    data: Buffer,
    like: Optional[_Path] = None,
    fsync: bool = False,
    is_wanted: Optional[Callable[[], bool]] = None,
) -> None:
    """Writes a file whose name follows from that of a model, such as sums: a link is replaced.

    It has the rights of the file `like`, which may be a link: who may not read the model may not
    read what tells about it. The file is discarded if `is_wanted()` returns false, which is called
    before it gets its name and after it.
    """

def _remove_sums(path: _Path) -> None: ...
def _sums_path(path: _Path) -> str: ...
def _leases_see_mappings(fd: int) -> bool: ...
def _write_with_header(
    path: _Path,
    file: safe_open,
    header: Buffer,
    fsync: bool,
    progress: Optional[Progress] = None,
    rights_of: Optional[_Path] = None,
    sums: Optional[_Sums] = None,
) -> None: ...
def _own_stem(name: str) -> str:
    """Returns what `.STEM.RANDOM.KIND` has of a name: all, or of a long one a part and a digest."""

def _path_to_save(filename: _Path) -> str: ...
def _make_meta(dtype: str, shape: Sequence[int], data_offsets: Tuple[int, int]) -> TensorMeta: ...
