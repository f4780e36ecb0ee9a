"""Reads models of the weight layer: quantised ones and GGUF files, as plain tensors."""

import argparse
import contextlib
from typing import Sequence

from .._model_files import ModelFiles
from .._writer import SafeWriter
from . import text, writing
from .errors import CliError
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

    def __init__(self, path: str, dtype: str) -> None:
        self.plan = Plan(path, dtype)
        specs = self.plan.specs
        sizes = self.plan.sizes()
        self.entries = [Entry(name, *spec, sizes[name]) for name, spec in specs.items()]
        self.metadata = self.plan.metadata
        self.notes = self.plan.notes

    def write(self, writer: SafeWriter, names: Sequence[str]) -> None:
        engine.write(self.plan, writer, names)

    def close(self) -> None:
        self.plan.close()


class _Content(writing.FileContent):
    """The tensors, and the files beside them."""

    def __init__(self, source: WeightsSource, layout: str) -> None:
        super().__init__(source, layout)
        self._companions = source.plan.companions

    def add_beside(self, files: ModelFiles) -> None:
        self._companions.add_to(files)


def convert(arguments: argparse.Namespace, to: writing.Target, out: Output) -> None:
    """Runs the command for a model of the weight layer."""
    try:
        with contextlib.closing(WeightsSource(arguments.source, arguments.dtype)) as source:
            companions = source.plan.companions
            source.plan.refuse_target(to.path, to.is_folder)
            if to.is_folder:
                source.notes += companions.notes
                engine.refuse_to_replace(source.plan, to.path, arguments.force, "--force")
            content = _Content(source, arguments.layout)
            writing.write_source(source, to, arguments, out, content)
            if arguments.verify and not arguments.dry_run:
                total = sum(entry.nbytes for entry in source.entries)
                with out.progress("verifying", total) as advance:
                    engine.compare(source.plan, to.path, advance=advance)
                if not out.quiet:
                    said = text.count(len(source.entries), "tensor")
                    out.line(f"{to.path}: {said} as in {arguments.source}")
    except WeightsError as error:
        raise CliError(str(error)) from None
