"""Writes the decoded values of a model to safetensors files.

    open_weights --> Plan: one Output for each tensor of the result
                       |
      units: whole rows of an output, about half a million values
                       |
      several threads, each with its buffers: decode rows -> check -> write them to their place

Units do not depend on the number of threads, so the files do not, either.
"""

import contextlib
import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from safetensors import _core
from safetensors._checking.digests import processors
from safetensors._paths import is_folder_target, is_model
from safetensors._progress import Report, shows_progress
from safetensors._typing import Path, ProgressOption

from ._convert_plan import Plan
from ._convert_units import NBYTES, Output, Unit, most_values, units_of
from ._shared_work import share

if TYPE_CHECKING:
    from safetensors._saving.writer import SafeWriter

_BUFFERS_NBYTES = 384 << 20
"""Limit of the memory in which all threads together read and decode."""
_PIECE_NBYTES = 4 << 20
_MODEL = "model"
_FOLDER_NBYTES = "99999TB"
"""The limit of a shard without `max_shard_size`: one file."""
Advance = Callable[[int], None]


@shows_progress("converting")
def convert(
    src: Path,
    dst: Path,
    *,
    dtype: str = "keep",
    max_shard_size: int | str | None = None,
    threads: int = 0,
    fsync: bool = False,
    verify: bool = False,
    progress: ProgressOption = None,
    force: bool = False,
    name: str | None = None,
    variant: str | None = None,
) -> list[str]:
    """Writes a model as plain safetensors: its quantised tensors are decoded.

    Memory stays below 640 MB for models of any size. The files appear when they are complete, or
    not at all, and do not depend on the number of threads.

    Args:
        src: what `open_weights` opens.
        dst: a file, if the name ends with `.safetensors`; a folder, if it is one, is a string that
            ends with a slash, or `max_shard_size` is given. Another name is a folder if `src` is a
            folder, an index or a GGUF file. Files of an old `model` are replaced, and other models
            in the folder are an error. A folder also gets the configuration, without its entries
            about quantisation, and the other small files of a source that is a folder, such as its
            tokenizer, licence and Python code.
        dtype: "bf16", "f16" or "f32", the type of floating-point tensors; "keep" keeps that of
            plain tensors, and quantised ones become BF16.
        max_shard_size: the limit of a shard's tensors ("5GB", or bytes).
        threads: how many threads decode; 0: one for each processor.
        fsync: if true, returns only after the data is on the disk.
        verify: if true, reads the files back and compares them with the source. They have replaced
            an old model by then, and remain if they differ.
        progress: true for a bar; or called as `progress(done, total)` with bytes of tensors, by one
            thread at a time. With `verify`, the second half are those that are read back.
        force: if true, the small files replace those of the same names in the folder `dst`. The
            files of the model, and a `dst` that is a file, are replaced in any case.
        name, variant: which safetensors model of a folder `src`, as for `load_files`.

    Returns:
        Remarks about the conversion, such as tensors that are left out.

    Raises:
        ValueError: `dtype`, `max_shard_size` or `threads` is none of these; or the name `dst` has
            the ending of another format, or could be a file or a folder.
        WeightsError: `dst` has files of the names of small files, and `force` is false: nothing
            was written. Or a tensor cannot be decoded; a quantised one has a value that is not
            finite; or values are too large for the type.
        SafetensorError: writing failed.
    """
    from safetensors._saving.writer import safe_create

    assert not isinstance(progress, bool)  # shows_progress() has resolved it
    if threads < 0:
        raise ValueError(f"threads is {threads}, not 0 or more")
    text = os.fsdecode(dst)
    with Plan(src, dtype, name or "", variant or "") as plan, _removed_if_empty(text):
        of_model = is_model(os.fsdecode(src), plan.weights.format == "gguf")
        is_folder = is_folder_target(text, of_model, max_shard_size is not None)
        plan.refuse_target(text, is_folder)
        most = None
        if is_folder:
            most = _FOLDER_NBYTES if max_shard_size is None else max_shard_size
            _refuse_other_models(plan, text, most)
            if not force:
                plan.companions.refuse_to_replace(text, "force=True")
        nbytes = sum(plan.sizes().values())
        report = Report(2 * nbytes if verify else nbytes, progress)
        with safe_create(
            dst,
            plan.specs,
            metadata=plan.metadata,
            max_shard_size=most,
            fsync=fsync,
            progress=report.of_file(nbytes),
        ) as writer:
            write(plan, writer, list(plan.specs), threads)
            if is_folder:
                plan.notes += plan.companions.notes
                plan.companions.add_to(writer._open())
            if not verify:
                report.finish()  # before the files take their names
        if verify:
            compare(plan, dst, threads, report.add)
            report.finish()
        return plan.notes


def _refuse_other_models(plan: Plan, folder: str, most: int | str) -> None:
    """Raises SafetensorError if the folder has files of a model that would not be replaced."""
    from safetensors._saving import recovery, split
    from safetensors._saving.model_files import refuse_other_models

    names = split.file_names(_MODEL, len(split.split(plan.sizes(), most).shards))
    old = recovery.old_names(folder, _MODEL)
    refuse_other_models(folder, [*names, split.index_name(_MODEL), *old])


@contextlib.contextmanager
def _removed_if_empty(folder: str) -> Iterator[None]:
    """Removes a folder that the body made, if the body raises."""
    is_new = not os.path.lexists(folder)
    try:
        yield
    except BaseException:
        if is_new:
            with contextlib.suppress(OSError):  # there is none, or it has files
                os.rmdir(folder)
        raise


def write(plan: Plan, writer: "SafeWriter", names: Sequence[str], threads: int = 0) -> None:
    """Writes these outputs to a writer that expects them. Raises as `convert`."""
    wanted = set(names)
    outputs = [each for each in plan.outputs if each.name in wanted]
    copied = {plan.weights[each.source].source: each.name for each in outputs if each.how == "copy"}
    if copied:
        for path in plan.weights.files:
            with _opened([path]) as (handle,):
                found = [(copied[name], name) for name in handle.offset_keys() if name in copied]
                writer._copy(handle, found)
    for output, data in plan.stored(outputs):
        writer.open(output.name).write(data)

    def make(buffers: list[Any]) -> Callable[[Unit], None]:
        def work(unit: Unit) -> None:
            values = buffers[0][: unit.nbytes]
            plan.decode(unit, values)
            _check_finite(plan, unit, values)
            index = writer._index_of(unit.output.name)
            writer._open().write_bytes(index, unit.offset, values)

        return work

    _share(outputs, make, threads)


def compare(plan: Plan, dst: Path, threads: int = 0, advance: Advance | None = None) -> None:
    """Reads a model that was written, and compares its header and all bytes with the plan.

    Raises:
        WeightsError: it differs.
    """
    from safetensors._shards import find_shards

    paths = [os.fsdecode(shard.path) for shard in find_shards(dst)]
    lock = threading.Lock()

    def report(nbytes: int) -> None:
        if advance is not None:
            with lock:
                advance(nbytes)

    with _opened(paths) as handles:
        places = _places(handles)
        specs = {name: (place.dtype, place.shape) for name, place in places.items()}
        if specs != plan.specs:
            name = sorted(
                k for k in specs.keys() | plan.specs.keys() if specs.get(k) != plan.specs.get(k)
            )[0]
            raise plan.error(
                "different",
                name,
                f"is {specs.get(name)} in {os.fsdecode(dst)}, not {plan.specs.get(name)}",
            )
        _compare_plain(plan, places, report)

        def make(buffers: list[Any]) -> Callable[[Unit], None]:
            def work(unit: Unit) -> None:
                values = buffers[0][: unit.nbytes]
                plan.decode(unit, values)
                place = places[unit.output.name]
                _refuse_other(
                    plan, unit.output, unit.offset, place.read(unit.offset, unit.nbytes), values
                )
                report(unit.nbytes)

            return work

        _share(plan.outputs, make, threads)


def _compare_plain(plan: Plan, places: "dict[str, _Place]", report: Advance) -> None:
    """Compares the tensors that were not decoded."""

    def compare_pieces(output: Output, read: Callable[[int, int], Any]) -> None:
        place = places[output.name]
        for begin in range(0, place.nbytes, _PIECE_NBYTES):
            size = min(_PIECE_NBYTES, place.nbytes - begin)
            _refuse_other(plan, output, begin, place.read(begin, size), read(begin, size))
            report(size)

    copied = {plan.weights[each.source].source: each for each in plan.outputs if each.how == "copy"}
    for path in plan.weights.files if copied else []:
        with _opened([path]) as handles:
            for name, source in _places(handles).items():
                if name in copied:
                    compare_pieces(copied[name], source.read)
    for output, data in plan.stored(plan.outputs):
        compare_pieces(output, _reader(data))


def _reader(data: Any) -> Callable[[int, int], Any]:
    return lambda begin, size: data[begin : begin + size]


def _refuse_other(plan: Plan, output: Output, offset: int, found: Any, wanted: Any) -> None:
    """Raises WeightsError if the bytes from an offset of the result on differ from the source."""
    import numpy

    same = numpy.frombuffer(found, numpy.uint8) == numpy.frombuffer(wanted, numpy.uint8)
    if not same.all():
        at = offset + int(same.argmin())
        raise plan.error("different", output.name, f"byte {at:,} of it was not written correctly")


class _Place(NamedTuple):
    """Where a tensor is."""

    handle: _core.safe_open
    begin: int
    nbytes: int
    dtype: str
    shape: "tuple[int, ...]"

    def read(self, begin: int, nbytes: int) -> bytes:
        return _core._read_range(self.handle, self.begin + begin, nbytes)


def _places(handles: Sequence[_core.safe_open]) -> dict[str, _Place]:
    found: dict[str, _Place] = {}
    for handle in handles:
        data = _core._data_begin(handle)
        for name in handle.offset_keys():
            meta = handle.get_tensor_meta(name)
            begin, end = meta.data_offsets
            found[name] = _Place(handle, data + begin, end - begin, meta.dtype, tuple(meta.shape))
    return found


@contextlib.contextmanager
def _opened(paths: Sequence[str]) -> Iterator[list[_core.safe_open]]:
    """Yields handles that read files on request."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(_core.safe_open(path, "np", backend="pread")) for path in paths]


def _share(
    outputs: Sequence[Output],
    make: Callable[[list[Any]], Callable[[Unit], None]],
    threads: int,
) -> None:
    """Calls `make(buffers)` in each thread, and what it returned for the units of the outputs that
    are decoded. The buffer has room for the largest unit."""
    import numpy

    decoded = [each for each in outputs if each.how == "decode"]
    if not decoded:
        return
    most = max(most_values(each) for each in decoded)
    size = max(NBYTES[each.dtype] for each in decoded)
    # Beside its buffer, a thread needs up to 8 bytes for each value to read, round or transpose.
    limit = max(1, _BUFFERS_NBYTES // (most * (8 + size)))
    share(
        (unit for output in decoded for unit in units_of(output)),
        lambda: make([numpy.empty(most * size, numpy.uint8)]),
        min(threads or processors(), limit),
    )


# Values that are not finite


def _check_finite(plan: Plan, unit: Unit, values: Any) -> None:
    """Raises WeightsError if rounding made finite values infinite, or a quantised tensor has
    infinities or NaN. Plain tensors may have them, such as masks."""
    if _all_finite(values, unit.output.dtype):
        return
    import numpy

    output = unit.output
    exact = plan.exact(unit)
    bad = ~numpy.isfinite(exact)
    is_raw = output.source == "" or plan.weights[output.source].storage == "raw"
    if not is_raw and bad.any():
        first = int(bad.argmax())
        index = numpy.unravel_index(unit.begin * output.columns + first, output.shape)
        where = ", ".join(str(int(i)) for i in index)
        raise plan.error("non_finite", output.name, f"the value at [{where}] is {exact[first]}")
    if not _overflows(values, exact, output.dtype):
        return
    with plan.lock:  # the first thread counts them
        if plan.overflow is not None:
            raise plan.overflow
        count = 0
        data = numpy.empty(most_values(output) * NBYTES[output.dtype], numpy.uint8)
        for each in units_of(output):
            plan.decode(each, data[: each.nbytes])
            if not _all_finite(data[: each.nbytes], output.dtype):
                count += _overflows(data[: each.nbytes], plan.exact(each), output.dtype)
        plan.overflow = plan.error(
            "f16_overflow" if output.dtype == "F16" else "overflow",
            output.name,
            f"{count:,} of {math.prod(output.shape):,} values are too large for {output.dtype}",
        )
        raise plan.overflow


# Values at least as large as these bits, without the sign, are infinite or NaN.
_EXPONENTS = {"F32": ("4", 0x7F800000), "F16": ("2", 0x7C00), "BF16": ("2", 0x7F80)}


def _all_finite(values: Any, dtype: str) -> bool:
    """Two reductions find infinities and NaN without a temporary array: as signed integers, the
    positive ones are the largest, and as unsigned integers the negative ones."""
    size, infinite = _EXPONENTS[dtype]
    sign = 1 << (8 * int(size) - 1)
    signed, unsigned = values.view("i" + size), values.view("u" + size)
    return bool(signed.max() < infinite and unsigned.max() < sign + infinite)


def _overflows(values: Any, exact: Any, dtype: str) -> int:
    """Returns how many finite values became infinite."""
    import numpy

    size, infinite = _EXPONENTS[dtype]
    bits = values.view("u" + size) & ((1 << (8 * int(size) - 1)) - 1)
    return int(numpy.count_nonzero((bits == infinite) & numpy.isfinite(exact)))
