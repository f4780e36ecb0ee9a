"""Reads models of the weight layer: quantised ones and GGUF files, as plain tensors."""

import argparse
import contextlib
from collections import Counter
from collections.abc import Sequence

from .. import safe_open
from .._model_folder import Choice
from .._saving.writer import SafeWriter
from . import convert_report, writing
from .errors import CliError, no_weight_layer
from .model import choice_of
from .opening import Watch
from .output import Output
from .source import SourceTensor
from .weight_model import type_of

try:
    from ..weights import WeightsError
    from ..weights import _convert as engine
    from ..weights._convert_plan import Plan
except ImportError as error:
    raise no_weight_layer(error) from None


class WeightsSource:
    """The decoded tensors of a model."""

    def __init__(self, path: str, dtype: str, choice: Choice) -> None:
        self.plan = Plan(path, dtype, *choice)
        specs = self.plan.specs
        sizes = self.plan.sizes()
        self.entries = [SourceTensor(name, *spec, sizes[name]) for name, spec in specs.items()]
        self.metadata = self.plan.metadata
        self.notes = self.plan.notes
        self.names = self.plan.names
        self.left_out = self.plan.left_out
        self.paths = list(self.plan.weights.files)
        self._watch = Watch()
        for path in self.paths:
            self._watch.open(path)
        self.decoded = Counter(
            type_of(self.plan.weights[name]) for name in dict.fromkeys(self.plan.coded)
        )

    @property
    def count(self) -> int:
        weights = self.plan.weights
        if weights.format == "gguf":
            return len(weights) + len(weights.unmapped)
        total = 0
        for path in self.paths:
            with safe_open(path, "np", backend="pread") as file:
                total += len(file.keys())
        return total

    def write(self, writer: SafeWriter, names: Sequence[str]) -> None:
        engine.write(self.plan, writer, names)

    def refuse_changed(self) -> None:
        self._watch.refuse_changed()

    def close(self) -> None:
        self.plan.close()
        self._watch.close()


def convert(arguments: argparse.Namespace, to: writing.Target, out: Output) -> None:
    """Runs the command for a model of the weight layer, and reports."""
    try:
        with contextlib.closing(
            WeightsSource(arguments.source, arguments.dtype, choice_of(arguments))
        ) as source:
            source.plan.refuse_target(to.path, to.is_folder)
            written = writing.write_source(
                source, to, arguments, out, companions=source.plan.companions
            )
            if arguments.verify and not arguments.dry_run:
                total = sum(entry.nbytes for entry in source.entries)
                with out.progress("verifying", total) as advance:
                    engine.compare(source.plan, to.path, advance=advance)
            convert_report.show(source, written, arguments, out)
    except WeightsError as error:
        raise CliError(str(error)) from None
