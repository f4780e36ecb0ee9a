"""Plans which parts of which tensors to load. Imports no framework.

    from safetensors.plan import SKIP, Shard, experts, resolve

    rules = {
        "*.o_proj.weight": Shard(1, rank, world_size),
        "*.qkv_proj.weight": Shard(0, rank, world_size, blocks=(4096, 1024, 1024)),
        "*.rotary_emb.*": SKIP,
        "*": None,
    }
    plan = resolve("model/", rules, keys=experts(64, rank, world_size))

`load_files`, `stream_files` and `load_into` of `safetensors.torch` take such rules and plans.
"""

from __future__ import annotations

import enum
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from . import _extra
from ._checking.absent import present, refuse_absent, with_absent
from ._core import TensorMeta, safe_open
from ._load_arguments import LoadArguments
from ._model_folder import choice_of
from ._open_shards import open_tensors
from ._paths import is_url, without_secrets
from ._regions import index_of
from ._rules import match, source_of, unknown
from ._shards import ShardFile, sources_of
from ._typing import Sources

__all__ = ["SKIP", "FileReads", "Part", "Plan", "Rule", "Shard", "experts", "resolve"]

Part = Any
"""A part of a tensor: an index of integers, slices, `...` and lists of slices and integers, for
each axis, first axis first; an object with a method `part(shape)` that returns one, such as
`Shard`; or None for the whole tensor."""

Rule = Part | Callable[[str, TensorMeta], Part]
"""A part, or a function of a tensor's name and its entry in the header that returns one."""

Keys = Iterable[str] | Callable[[str], bool] | None
"""Names of tensors, a function that is true for the names to load, or None for all."""


class _Skip(enum.Enum):
    SKIP = "SKIP"

    def __repr__(self) -> str:
        return "SKIP"


SKIP: Part = _Skip.SKIP
"""As a rule: the tensor is not loaded."""


@dataclass(frozen=True)
class Shard:
    """The part that `torch.chunk(world_size, dim)` gives `rank`: the first ranks get
    ceil(size / world_size) elements each, the last ones fewer or none.

    Attributes:
        dim: the axis; a negative one counts from the end.
        rank: from 0 to world_size - 1.
        world_size: how many ranks share the tensor.
        blocks: the sizes of tensors that are fused along the axis, such as Q, K and V, or how many
            equal ones there are. Each is divided by itself; the shares of a rank lie side by side.
    """

    dim: int
    rank: int
    world_size: int
    blocks: int | Sequence[int] | None = None

    def __post_init__(self) -> None:
        for name in ("dim", "rank", "world_size"):
            _check_int(name, getattr(self, name))
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank {self.rank} is not one of {self.world_size} ranks")
        if self.blocks is None:
            return
        if isinstance(self.blocks, int):
            _check_int("blocks", self.blocks)
            if self.blocks < 1:
                raise ValueError(f"blocks is {self.blocks}: an axis has at least one")
            return
        blocks = tuple(self.blocks)  # hashable, and nobody changes it
        for size in blocks:
            _check_int("blocks", size)
            if size < 0:
                raise ValueError(f"blocks has a negative size: {size}")
        object.__setattr__(self, "blocks", blocks)

    def part(self, shape: Sequence[int]) -> tuple[slice | list[slice], ...]:
        """Returns the part of a tensor of this shape, as an index.

        Raises:
            ValueError: there is no such axis, or the blocks do not add up to its size.
        """
        axis = self.dim + len(shape) if self.dim < 0 else self.dim
        if not 0 <= axis < len(shape):
            raise ValueError(f"{self}: a tensor of shape {list(shape)} has no axis {self.dim}")
        ranges: list[range] = []
        begin = 0
        for size in self._blocks_of(shape[axis], shape):
            share = -(-size // self.world_size)
            first = begin + min(self.rank * share, size)
            last = begin + min((self.rank + 1) * share, size)
            begin += size
            if ranges and ranges[-1].stop == first:
                ranges[-1] = range(ranges[-1].start, last)
            elif first != last:
                ranges.append(range(first, last))
        return (slice(None),) * axis + (index_of(ranges),)

    def _blocks_of(self, size: int, shape: Sequence[int]) -> Sequence[int]:
        """Returns the sizes of the tensors that are fused along the axis."""
        if self.blocks is None:
            return (size,)
        if isinstance(self.blocks, int):
            if size % self.blocks != 0:
                raise ValueError(
                    f"{self}: axis {self.dim} of shape {list(shape)} is not a multiple of "
                    f"{self.blocks} equal blocks"
                )
            return (size // self.blocks,) * self.blocks
        if sum(self.blocks) != size:
            raise ValueError(
                f"{self}: the blocks add up to {sum(self.blocks)}, axis {self.dim} of shape "
                f"{list(shape)} has {size}"
            )
        return self.blocks


def _check_int(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is an int, not {type(value).__name__}")


def experts(
    num_experts: int,
    rank: int,
    world_size: int,
    *,
    placement: Literal["linear", "round_robin"] = "linear",
    pattern: str = r"\.experts\.(\d+)\.",
    scales: Literal["keep", "drop"] = "keep",
) -> Callable[[str], bool]:
    """Returns a filter for `keys=`: false for the weights of other ranks' experts.

    Names in which `pattern` finds nothing pass. An expert-parallel model whose experts are fused
    into one tensor takes `Shard(0, rank, world_size)` instead.

    Args:
        num_experts: the number of experts of a layer.
        rank: from 0 to world_size - 1.
        world_size: the number of ranks that share the experts.
        placement: "linear" gives each rank consecutive experts, the first ranks one more if they
            cannot have equally many; "round_robin" deals them out one by one.
        pattern: a regular expression whose first group is the expert's number.
        scales: "keep" also passes names of other ranks' experts that do not end with ".weight":
            some kernels need the scales of all experts.

    Raises:
        ValueError: an argument is out of range; of the filter: a name has an expert's number that
            is not below `num_experts`.
    """
    for name, value in (("num_experts", num_experts), ("rank", rank), ("world_size", world_size)):
        _check_int(name, value)
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} is not one of {world_size} ranks")
    if num_experts < 1:
        raise ValueError(f"num_experts is {num_experts}: a layer has at least one")
    if placement not in ("linear", "round_robin"):
        raise ValueError(f'placement is {placement!r}, not "linear" or "round_robin"')
    if scales not in ("keep", "drop"):
        raise ValueError(f'scales is {scales!r}, not "keep" or "drop"')
    search = re.compile(pattern).search
    if re.compile(pattern).groups < 1:
        raise ValueError(f"pattern {pattern!r} has no group for the expert's number")
    least, more = divmod(num_experts, world_size)
    first = rank * least + min(rank, more)
    owned = range(first, first + least + (rank < more))
    if placement == "round_robin":
        owned = range(rank, num_experts, world_size)
    is_owned = {str(number): number in owned for number in range(num_experts)}
    keeps = scales == "keep"

    def is_loaded(name: str) -> bool:
        found = search(name)
        if found is None:
            return True
        try:
            return is_owned[found[1]] or (keeps and not name.endswith(".weight"))
        except KeyError:
            raise ValueError(
                f"Tensor {name!r} is of expert {found[1]}, but num_experts is {num_experts}"
            ) from None

    return is_loaded


class FileReads(NamedTuple):
    """What a load reads of a file, without its header."""

    file: str
    tensors: int
    wanted_bytes: int
    """The bytes of the parts."""
    read_bytes: int
    """The bytes that are read: gaps that cost less to read than to skip are included."""
    requests: int
    largest: str
    """The tensor of which the most bytes are wanted."""


class Plan(Mapping[str, Part]):
    """The parts to load, by tensor name, in the order of the files and of the bytes in them.

    A plan cannot be changed. It can be pickled if its parts can, as those of this module. A copy
    has neither `storage_options` nor the values of a URL's query, which may be secrets.
    """

    __slots__ = ("_options", "_parts")

    def __init__(self, parts: dict[str, Part], options: LoadArguments) -> None:
        """Plans are made by `resolve`."""
        self._options = options
        self._parts = parts

    def __reduce__(self) -> tuple[Any, ...]:
        filenames = without_secrets(self._options.filenames)
        return Plan, (self._parts, LoadArguments(filenames, choice=self._options.choice))

    def __getitem__(self, name: str) -> Part:
        return self._parts[name]

    def __contains__(self, name: object) -> bool:
        return name in self._parts

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def explain(self, *, gap_bytes: int | None = None) -> list[FileReads]:
        """Returns what loading the plan reads of each file that has a tensor of it.

        Opens the files again, and reads their headers only.

        Args:
            gap_bytes: gaps between wanted bytes of up to this length are read; None for those that
                loads read. With 0, the bytes that are read from a URL or a RangeReader are the
                wanted ones. Local files are read in whole blocks of 4 KiB, and parts in one block
                by one read.

        Raises:
            FileNotFoundError, SafetensorError: as `resolve`.
            IndexError, TypeError, ValueError: a part does not fit its tensor.
        """
        found = []
        with ExitStack() as stack:
            for shard in self._options.find():
                handles, _ = open_tensors([shard], self._parts, "auto", stack)
                if not handles:
                    continue
                (handle,) = set(handles.values())
                group = (handle, [(name, self._parts[name]) for name in handles])
                ((wanted, read, requests, largest),) = _extra._explain([group], gap_bytes)
                found.append(FileReads(shard.path, len(handles), wanted, read, requests, largest))
        return found

    def __repr__(self) -> str:
        return f"<Plan of {len(self)} tensors>"

    def _repr_html_(self) -> str | None:
        from ._outline.views import of_plan

        return of_plan(self)

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)

    @property
    def _is_local(self) -> bool:
        """Whether its files are local: the headers of others would be fetched again."""
        return all(
            isinstance(each, (str, bytes, os.PathLike)) and not is_url(each)
            for each in sources_of(self._options.filenames)
        )


def resolve(
    filenames: Sources,
    rules: Mapping[str, Rule] | None = None,
    *,
    keys: Keys = None,
    storage_options: Mapping[str, Any] | None = None,
    name: str | None = None,
    variant: str | None = None,
) -> Plan:
    """Applies rules to the tensors of files. Reads the files' headers, but no data.

    Args:
        filenames: as for `safetensors.torch.load_files`.
        rules: a dict that maps names and glob patterns to rules. An exact name takes precedence
            over patterns; among patterns, the first match wins. A tensor that matches nothing is
            not in the plan. None takes all tensors as a whole.
        keys: the names of tensors, or a function that returns whether a name is in the plan. It is
            applied before `rules`.
        storage_options: settings for URLs.
        name, variant: which model of a directory, as for `safetensors.torch.load_files`.

    Raises:
        FileNotFoundError: as `load_files`.
        SafetensorError: a file or index is damaged, or a name or pattern matches nothing. A key
            whose rule is SKIP may match nothing.
    """
    options = LoadArguments(filenames, storage_options, choice=choice_of(name, variant))
    with ExitStack() as stack:
        handles, parts = open_plan(options.find(), rules, keys, options.backend, stack)
        return Plan({each: parts[each] for each in handles}, options)


def open_plan(
    shards: Sequence[ShardFile],
    rules: Mapping[str, Rule] | None,
    keys: Keys,
    backend: str,
    stack: ExitStack,
) -> tuple[dict[str, safe_open], dict[str, Part]]:
    """Opens the files that rules apply to.

    Args:
        shards: the files. A file of an index is opened only if a tensor in it is requested.
        rules, keys: as for `resolve`.
        backend: see `safe_open`.
        stack: the files are closed when it exits.

    Returns:
        The open file of each requested tensor, ordered by file and byte offset; and their parts.

    Raises:
        as `resolve`, and what rules that are functions raise.
    """
    if all(shard.names is not None for shard in shards):
        names = dict.fromkeys(name for shard in shards for name in shard.names or ())
        found = select(names, rules, keys, source_of(shards))
        handles, _ = open_tensors(shards, found, backend, stack)
    else:
        handles, _ = open_tensors(present(shards), None, backend, stack)
        found = select(with_absent(handles, shards), rules, keys, source_of(shards))
        refuse_absent(shards, found)
    parts = found
    if any(map(callable, found.values())):
        parts = {name: part for name, part in apply(found, handles).items() if part is not SKIP}
    if len(parts) != len(handles):
        handles = {name: handle for name, handle in handles.items() if name in parts}
    return handles, parts


def apply(rules: dict[str, Rule], handles: Mapping[str, safe_open]) -> dict[str, Part]:
    """Calls the rules that are functions, and returns all parts, by name."""
    return {
        name: rule(name, handles[name].get_tensor_meta(name)) if callable(rule) else rule
        for name, rule in rules.items()
    }


def select(
    names: Collection[str], rules: Mapping[str, Rule] | None, keys: Keys, source: str
) -> dict[str, Rule]:
    """Returns the rules of the names that are requested, but SKIP. Errors name `source`.

    Raises:
        SafetensorError: a name or pattern matches nothing.
        TypeError: `keys` is a str.
    """
    found: dict[str, Rule] = dict.fromkeys(names)
    if rules is not None:
        matched = match(rules, names, SKIP, source)
        found = {key: rule for key, rule in matched.items() if rule is not SKIP}
    if keys is None:
        return found
    if callable(keys):
        return {name: rule for name, rule in found.items() if keys(name)}
    if isinstance(keys, str):
        raise TypeError("keys is a str, but names several tensors: put it into a list")
    wanted = set(keys)
    for name in wanted.difference(names):
        raise unknown(name, names, source)
    return {name: rule for name, rule in found.items() if name in wanted}
