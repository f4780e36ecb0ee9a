"""Checks the files of torch.save before torch reads them.

torch maps the values of an archive where they begin, without looking at how they are stored or how
many there are, and unpickles keys of any depth. Nothing is unpickled here.
"""

import contextlib
import pickletools
import zipfile
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

from . import text
from .errors import CliError

_ZIP = b"PK\3\4"
_PICKLES = 4
"""How many pickles a file of torch before 1.6 has, up to the one with the tensors."""
_MAX_IN_KEY = 1000
"""The limit of the values in a key. A file of 200 bytes can have a tuple that has another one
twice, which has another one twice, and so on: the key's hash would visit 2^40 values. A tuple that
is nested 100,000 deep would overflow the stack."""
_ITEM_NBYTES = {
    "UntypedStorage": 1,
    **dict.fromkeys(("BoolStorage", "ByteStorage", "CharStorage"), 1),
    **dict.fromkeys(("QInt8Storage", "QUInt8Storage", "QUInt4x2Storage", "QUInt2x4Storage"), 1),
    **dict.fromkeys(("BFloat16Storage", "HalfStorage", "ShortStorage"), 2),
    **dict.fromkeys(("FloatStorage", "IntStorage", "QInt32Storage"), 4),
    **dict.fromkeys(("ComplexFloatStorage", "DoubleStorage", "LongStorage"), 8),
    "ComplexDoubleStorage": 16,
}


class _Value(NamedTuple):
    """What an unpickler would have on its stack."""

    content: Any = None
    """The argument of the operation that made it; of a tuple, its values."""
    size: int = 1
    """The number of values in it, up to the limit of a key."""


_OTHER = _Value()


def check(path: str) -> bool:
    """Returns whether a file is a zip archive, whose values can be mapped.

    Raises:
        CliError: a member of the archive is compressed, or has another size than the pickle says;
            or a key has too many values.
    """
    if not zipfile.is_zipfile(path):
        with open(path, "rb") as file:
            if file.read(len(_ZIP)) == _ZIP:  # torch would go by this
                raise CliError(f"{path}: a damaged zip archive")
            file.seek(0)
            for _ in range(_PICKLES):
                for _ in _storages(path, file):
                    pass
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            members = _members(path, archive)
            if "data.pkl" in members:
                with archive.open(members["data.pkl"]) as file:
                    for storage in _storages(path, file):
                        _check_storage(path, storage, members)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise CliError(f"{path}: {text.clipped(str(error))}") from None
    return True


def _members(path: str, archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Returns the members by name, without the folder that all of them are in."""
    members: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        name = info.filename.partition("/")[2]
        if name in members:
            raise CliError(f"{path}: `{text.clipped(name)}` is twice in the archive")
        if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
            raise CliError(
                f"{path}: `{text.clipped(name)}` is compressed, which torch.save never does: load "
                "the file with torch, and save it again"
            )
        members[name] = info
    return members


def _check_storage(path: str, storage: _Value, members: dict[str, zipfile.ZipInfo]) -> None:
    fields = storage.content
    if not isinstance(fields, list) or len(fields) != 5:
        raise CliError(f"{path}: refused: a storage is not described as by torch.save")
    _, kind, key, _, count = (field.content for field in fields)
    size = _ITEM_NBYTES.get(kind.rpartition(" ")[2]) if isinstance(kind, str) else None
    member = members.get(f"data/{key}")
    if size is None or type(count) is not int or member is None:
        raise CliError(f"{path}: refused: a storage is not described as by torch.save")
    if count * size != member.file_size:
        raise CliError(
            f"{path}: the storage `{text.clipped(str(key))}` has "
            f"{text.count(member.file_size, 'byte')}, but its type and size require "
            f"{count * size:,}"
        )


def _storages(path: str, file: IO[bytes]) -> Iterator[_Value]:
    """Follows a pickle, and yields what it says of storages: a tuple of a word, the class, the key,
    the place and the number of elements.

    Ends where a pickle is damaged: torch says how.
    """
    stack: list[_Value] = []
    marks: list[int] = []
    memo: dict[Any, _Value] = {}
    with contextlib.suppress(ValueError, IndexError, KeyError):
        for operation, argument, _ in pickletools.genops(file):
            name = operation.name
            if name == "MARK":
                marks.append(len(stack))
            elif name.endswith("PUT"):
                memo[argument] = stack[-1]
            elif name == "MEMOIZE":
                memo[len(memo)] = stack[-1]
            elif name.endswith("GET"):
                stack.append(memo[argument])
            else:
                taken = _taken(stack, marks, operation.stack_before)
                if name in ("SETITEM", "SETITEMS"):
                    _check_keys(path, taken[1::2])
                elif name == "ADDITEMS":
                    _check_keys(path, taken[1:])
                elif name == "BINPERSID":
                    yield taken[0]
                content = taken if name.startswith("TUPLE") else argument
                size = min(1 + sum(each.size for each in taken), _MAX_IN_KEY + 1)
                made = _OTHER if content is None and size == 1 else _Value(content, size)
                stack += [made] * len(operation.stack_after)


def _taken(stack: list[_Value], marks: list[int], before: list[Any]) -> list[_Value]:
    """Removes and returns what an operation takes from the stack."""
    count = len(before)
    if pickletools.markobject in before:
        count = len(stack) - marks.pop() + before.index(pickletools.markobject)
    if count > len(stack):
        raise IndexError
    taken = stack[len(stack) - count :]
    del stack[len(stack) - count :]
    return taken


def _check_keys(path: str, keys: list[_Value]) -> None:
    if any(key.size > _MAX_IN_KEY for key in keys):
        raise CliError(f"{path}: refused: a key of a dictionary has more than {_MAX_IN_KEY} values")
