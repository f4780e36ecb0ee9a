"""Reads models of the weight layer: quantised ones and GGUF files, as plain tensors."""

import argparse
import contextlib
from typing import Sequence

from .._model_folder import Choice
from .._writer import SafeWriter
from . import text, writing
from .errors import CliError
from .model import choice_of
from .output import Output
from .source import Entry

try:
    from ..weights import WeightsError
    from ..weights import _convert as engine
    from ..weights._convert_plan import Plan
except ImportError as error:
    raise CliError(f"this build has no weight layer: {error}") from None


class WeightsSource:
    """The decoded tensors of a model."""

    def __init__(self, path: str, dtype: str, choice: Choice) -> None:
        self.plan = Plan(path, dtype, *choice)
        specs = self.plan.specs
        sizes = self.plan.sizes()
        self.entries = [Entry(name, *spec, sizes[name]) for name, spec in specs.items()]
        self.metadata = self.plan.metadata
        self.notes = self.plan.notes

    def write(self, writer: SafeWriter, names: Sequence[str]) -> None:
        engine.write(self.plan, writer, names)

    def close(self) -> None:
        self.plan.close()


def convert(arguments: argparse.Namespace, to: writing.Target, out: Output) -> None:
    """Runs the command for a model of the weight layer."""
    try:
        with contextlib.closing(
            WeightsSource(arguments.source, arguments.dtype, choice_of(arguments))
        ) as source:
            source.plan.refuse_target(to.path, to.is_folder)
            writing.write_source(source, to, arguments, out, companions=source.plan.companions)
            if arguments.verify and not arguments.dry_run:
                total = sum(entry.nbytes for entry in source.entries)
                with out.progress("verifying", total) as advance:
                    engine.compare(source.plan, to.path, advance=advance)
                if not out.quiet:
                    said = text.count(len(source.entries), "tensor")
                    out.line(f"{to.path}: {said} as in {arguments.source}")
    except WeightsError as error:
        raise CliError(str(error)) from None
