"""Mutation testing: changes one expression at a time and expects the tests to fail.

    python scripts/mutate.py python --count 100    mutants of python/safetensors
    python scripts/mutate.py core --count 50       mutants of the core's folders in src
    python scripts/mutate.py core format write     mutants of src/format and src/write
    python scripts/mutate.py weights --count 50    mutants of weights/src
    python scripts/mutate.py python --first 46     goes on with a run that was stopped

A mutant that no test notices is printed as a survivor. It needs a test, or a line in
scripts/equivalent_mutants.txt with the reason why it changes nothing that a user could see. The
exit status is 1 if a survivor is left. The tests run once without a mutant before: if they fail, so
does the run.

`python` changes the installed package of the interpreter that runs this script, and restores it:
use an environment that nothing else uses, with the packages of run-tests.sh. `core` and `weights`
change the sources, restore them, and build the C++ tests in build/mutants and
build/mutants-weights. Each takes an hour or two, so that none is part of the default checks. `core`
leaves out src/device and src/python, whose tests are other programs, and `weights` the rooms that
tests in Python cover.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import functools
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator

ROOT = pathlib.Path(__file__).resolve().parent.parent
EQUIVALENT = ROOT / "scripts" / "equivalent_mutants.txt"
PACKAGE = ROOT / "python" / "safetensors"
SUITES = [ROOT / "tests" / "python", ROOT / "weights" / "tests" / "python"]
ENVIRONMENT = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
LIMIT = 900  # seconds for the tests of one mutant: one that never ends is noticed by that

# Patterns of the files in SUITES that test a module, or all modules of a folder. Those named after
# it, or after a module that imports it, are added. Modules of frameworks that run-tests.sh does not
# install have none.
TESTS: dict[str, list[str]] = {
    "__init__.py": ["surface", "import_graph", "errors_pickled"],
    "__main__.py": ["cli_surroundings"],
    "_checking/": ["digests", "signing*", "sums*", "verify*"],
    "_checking/absent.py": ["verify_absent*", "load_files"],
    "_cli/": ["cli_*", "save_rights", "url_arguments"],
    "_dcp/": ["dcp*"],
    "_delta/": ["delta*", "patch*", "in_place*", "checkpoint_weight_patches"],
    "_compiled.py": ["weights_surface", "import_graph"],
    "_dtypes.py": ["dtypes", "cast", "writer*", "cli_convert*"],
    "_errors.py": ["errors_*", "error_fields", "call_errors"],
    "_extra.py": ["surface", "import_graph"],
    "_frameworks.py": ["frameworks_of_writers", "errors_named", "surface"],
    "_group/": ["group_*", "placements"],
    "_json.py": ["json", "hostile_table"],
    "_load_arguments.py": ["private_signatures", "load_files", "load_into", "plan"],
    "_model_folder.py": ["model_files*", "shards", "recover*"],
    "_near_names.py": ["errors_named", "plan", "cli_terminal"],
    "_numpy_arrays.py": ["serialize", "dtypes", "save_values", "errors_named", "surface"],
    "_open_shards.py": ["*shards", "load_files", "url_arguments"],
    "_outline/": ["outline", "weights_views", "cli_report"],
    "_paths.py": ["url_arguments", "shards", "cli_inputs"],
    "_pickling.py": ["pickles", "pickled_secrets"],
    "_range_reader.py": ["range_reader*", "url_arguments"],
    "_progress.py": ["progress", "load_files", "load_into", "save_files"],
    "_progress_bar.py": ["progress", "cli_terminal"],
    "_reading.py": ["cli_inputs", "sums_make"],
    "_regions.py": ["regions", "jax_reads"],
    "_remote/": ["remote_*", "hub_*", "range_server"],
    "_remote/open.py": ["remote_*", "hub_*", "range_server", "group_message"],
    "_redact.py": ["remote_*", "pickled_secrets", "outline"],
    "_rules.py": ["plan", "load_plans", "load_files"],
    "_saving/": ["writer*", "save_*", "shard_writer", "recover*", "split", "copy"],
    "_saving/companions.py": ["convert_companions", "cli_convert*"],
    "_saving/folder.py": ["own_files", "recover*", "stale"],
    "_saving/in_place.py": ["in_place*", "update_file"],
    "_saving/arguments.py": ["private_signatures", "sums_save*", "save_files"],
    "_saving/update.py": ["update_file", "in_place*"],
    "_shards.py": ["*shards", "load_files", "url_arguments"],
    "_torch/": ["load_*", "save_*", "models", "surface", "stream_files", "torch_*", "dtypes"],
    "_torch/placements.py": ["placements"],
    "_torch/tensor_parallel.py": ["tensor_parallel", "convert_transformers"],
    "_torch/wrappers.py": ["save_wrappers"],
    "_summary.py": ["outline", "weights_views"],
    "_text.py": ["outline", "cli_terminal", "cli_transcripts"],
    "_typing.py": ["surface"],
    "_warn.py": ["warnings", "shards"],
    "_weight_models.py": ["cli_any_model", "outline", "cli_ls_model"],
    "_weights.py": ["weights_surface"],
    "_workers.py": ["threads", "no_threads"],
    "dcp.py": ["dcp*"],
    "delta.py": ["delta*", "surface"],
    "flax.py": [],
    "jax.py": [],
    "mlx.py": [],
    "numpy.py": ["serialize", "dtypes", "save_*", "surface"],
    "paddle.py": [],
    "plan.py": ["plan", "load_plans"],
    "plugins/": ["plugin_*", "engine_contracts"],
    "signing.py": ["signing*"],
    "sums.py": ["sums*"],
    "tensorflow.py": [],
    "torch.py": [
        "models",
        "surface",
        "dtypes",
        "serialize",
        "save_*",
        "call_errors",
        "torch_modes",
    ],
    "weights/": ["weights_*", "convert_*", "cli_convert*"],
}


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One change of one file: the bytes [begin, end) become `after`."""

    path: pathlib.Path
    line: int
    begin: int
    end: int
    before: str
    after: str

    def key(self) -> str:
        """Names the mutant by its line's text, so that other lines may move."""
        text = self.path.read_text().splitlines()[self.line - 1].strip()
        change = " ".join(f"{self.before} -> {self.after}".split())
        return f"{self.path.relative_to(ROOT)}: {text}  [{change}]"

    def apply(self, source: bytes) -> bytes:
        return source[: self.begin] + self.after.encode() + source[self.end :]


# Python ---------------------------------------------------------------------------------------

COMPARISONS = {
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}
OPERATORS = {ast.Add: "-", ast.Sub: "+", ast.Mult: "//", ast.FloorDiv: "*", ast.Mod: "*"}


def changes_of(node: ast.AST) -> Iterator[str]:
    """The texts that may stand in the node's place."""
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            yield f"{ast.unparse(left)} {COMPARISONS[type(op)]} {ast.unparse(right)}"
        case ast.BoolOp(op=op, values=values):
            word = " or " if isinstance(op, ast.And) else " and "
            yield "(" + word.join(f"({ast.unparse(value)})" for value in values) + ")"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield f"({ast.unparse(operand)})"
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            yield f"({ast.unparse(left)} {OPERATORS[type(op)]} {ast.unparse(right)})"
        case ast.Constant(value=bool() as value):
            yield str(not value)
        case ast.Constant(value=int() as value):
            yield str(value + 1)
        case ast.Call(func=func, args=args, keywords=[*_, _] as keywords):
            for dropped in keywords:
                if dropped.arg in ("help", "description", "metavar"):
                    continue
                kept = [ast.unparse(k) for k in keywords if k is not dropped]
                yield f"{ast.unparse(func)}({', '.join([*map(ast.unparse, args), *kept])})"
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            yield "return None"
        case ast.Expr(value=ast.Call()):
            yield "pass"


def skipped_nodes(tree: ast.Module) -> Iterator[ast.AST]:
    """Annotations, and imports for type checkers: nothing runs them."""
    for node in ast.walk(tree):
        match node:
            case ast.arg(annotation=ast.expr() as annotation):
                yield annotation
            case ast.AnnAssign(annotation=annotation):
                yield annotation
            case ast.FunctionDef(returns=ast.expr() as returns):
                yield returns
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                yield from node.body


def python_mutants(path: pathlib.Path) -> Iterator[Mutant]:
    source = path.read_bytes()
    tree = ast.parse(source)
    skipped = {id(n) for root in skipped_nodes(tree) for n in ast.walk(root)}
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node in ast.walk(tree):
        if id(node) in skipped or not isinstance(node, (ast.expr, ast.stmt)):
            continue
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        for after in changes_of(node):
            yield Mutant(path, node.lineno, begin, end, source[begin:end].decode(), after)


def files_of(pattern: str) -> list[pathlib.Path]:
    return [file for suite in SUITES for file in sorted(suite.glob(f"test_{pattern}.py"))]


@functools.cache
def importers() -> dict[str, set[str]]:
    """The modules that import a module, by its name without the packages."""
    found: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ImportFrom) and node.level:
                for name in [(node.module or "").rpartition(".")[2], *(a.name for a in node.names)]:
                    found.setdefault(name, set()).add(path.stem)
    return found


def tests_of(path: pathlib.Path) -> list[str]:
    """The tests of the table, and those named after a module that imports this one."""
    name = path.relative_to(PACKAGE).as_posix()
    patterns = TESTS[name if name in TESTS else name.partition("/")[0] + "/"]
    if patterns:
        patterns = [*patterns, path.stem, *importers().get(path.stem, ())]
    found = {test for pattern in patterns for test in files_of(pattern.lstrip("_"))}
    tests = [str(test.relative_to(ROOT)) for test in sorted(found)]
    # The first failure ends a run: begin with the tests named after the module.
    return sorted(tests, key=lambda test: path.stem not in test)


def installed() -> pathlib.Path:
    """The folder of the package that the tests import."""
    code = "import os, safetensors; print(os.path.dirname(safetensors.__file__))"
    found = subprocess.run([sys.executable, "-c", code], cwd="/", capture_output=True, check=True)
    return pathlib.Path(found.stdout.decode().strip())


@contextlib.contextmanager
def changed(path: pathlib.Path, mutant: Mutant) -> Iterator[None]:
    source = path.read_bytes()
    if source != mutant.path.read_bytes():
        raise SystemExit(f"{path} is not {mutant.path}: install the package first")
    try:
        path.write_bytes(mutant.apply(source))
        yield
    finally:
        path.write_bytes(source)


def check(command: list[str]) -> None:
    """Ends the run, with the command's output, if the command fails on unchanged sources."""
    if subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, check=False).returncode != 0:
        raise SystemExit(f"fails without a mutant: {' '.join(command)}")


def passes(command: list[str]) -> bool:
    """Whether the command ends in time and succeeds."""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=ENVIRONMENT,
    )
    try:
        return process.wait(LIMIT) == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def pytest_command(tests: Iterable[str]) -> list[str]:
    return [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]


def survives_python(mutant: Mutant) -> bool:
    target = installed() / mutant.path.relative_to(PACKAGE)
    with changed(target, mutant):
        return passes(pytest_command(tests_of(mutant.path)))


def prepare_python(mutants: list[Mutant]) -> None:
    tests = {test for mutant in mutants for test in tests_of(mutant.path)}
    check(pytest_command(sorted(tests)))


# C++ ------------------------------------------------------------------------------------------

TOKENS = {
    "<": "<=",
    "<=": "<",
    ">": ">=",
    ">=": ">",
    "==": "!=",
    "!=": "==",
    "&&": "||",
    "||": "&&",
    " + ": " - ",
    " - ": " + ",
    "++": "--",
    "+=": "-=",
    "true": "false",
    "false": "true",
    "continue": "break",
}
# Angle brackets of templates have no blanks around them.
TOKEN = re.compile(r" (?:<|>|<=|>=|==|!=|&&|\|\||\+=) | [+-] |\+\+|\b(?:true|false|continue)\b")
NUMBER = re.compile(r"(?<![\w.'])\d+(?![\w.'])")
IGNORED = re.compile(
    r'//[^\n]*|"(?:\\.|[^"\\\n])*"|^\s*(?:#|static_assert|template|using)[^\n]*', re.M
)


def cpp_mutants(path: pathlib.Path) -> Iterator[Mutant]:
    source = path.read_bytes().decode("latin-1")  # a character for each byte
    hidden = IGNORED.sub(lambda found: "\0" * len(found[0]), source)
    for pattern in (TOKEN, NUMBER):
        for found in pattern.finditer(hidden):
            text = found[0]
            word = text if text in TOKENS else text.strip()
            after = TOKENS[word] if word in TOKENS else str(int(word) + 1)
            begin = found.start() + text.index(word)
            line = source.count("\n", 0, begin) + 1
            yield Mutant(path, line, begin, begin + len(word), word, after)


@dataclasses.dataclass(frozen=True)
class Library:
    """A C++ library and the program that tests it."""

    folder: str
    """It has `src` and `tests/cpp`. Relative to the root."""
    rooms: dict[str, list[str]]
    """The folders of `src` that are changed, each with those that use it and test it, too."""
    build: pathlib.Path
    program: str
    has_weights: bool

    @property
    def sources(self) -> pathlib.Path:
        return ROOT / self.folder / "src"

    def room_of(self, mutant: Mutant) -> str:
        return mutant.path.relative_to(self.sources).parts[0]

    def files(self, room: str) -> list[pathlib.Path]:
        """Returns the files of a room that are changed. src/base has headers only."""
        files = sorted((self.sources / room).rglob("*.cpp"))
        files = files or sorted((self.sources / room).rglob("*.hpp"))
        return [path for path in files if path.parent.name != "windows"]

    def builds(self) -> bool:
        # Without a limit: much is compiled again for a header.
        command = ["cmake", "--build", str(self.build), "--target", self.program]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def tests(self, room: str) -> list[str]:
        """Runs the test files that are named after a source of a room, or include a header."""
        rooms = [room, *self.rooms[room]]
        paths = [path for each in rooms for path in (self.sources / each).rglob("*.[ch]pp")]
        stems = "|".join([*rooms, *(path.stem for path in paths)])
        headers = rf"(?:{'|'.join(rooms)})/|safetensors/(?:weights/)?(?:{stems})\.hpp"
        include = re.compile(rf'^#include [<"](?:{headers})', re.M)
        named = re.compile(rf"test_(?:{stems})(?:_|$)")
        tests = [
            path.name
            for path in sorted((ROOT / self.folder / "tests" / "cpp").glob("test_*.cpp"))
            if named.match(path.stem) or include.search(path.read_text())
        ]
        program = str(self.build / self.folder / "tests" / "cpp" / self.program)
        files = ",".join(f"*{test}" for test in tests)
        return [program, f"--source-file={files}", "--test-suite-exclude=timed", "--abort-after=1"]

    def survives(self, mutant: Mutant) -> bool:
        with changed(mutant.path, mutant):
            # A compiler that refuses the mutant has noticed it.
            return self.builds() and passes(self.tests(self.room_of(mutant)))

    def prepare(self, mutants: list[Mutant]) -> None:
        options = ["-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O1"]
        # A mutant may read outside an array: the library's assertions notice that.
        options += ["-DCMAKE_CXX_FLAGS=-D_GLIBCXX_ASSERTIONS", "-DSAFETENSORS_BUILD_TESTS=ON"]
        options += [f"-DSAFETENSORS_BUILD_WEIGHTS={'ON' if self.has_weights else 'OFF'}"]
        check(["cmake", "-S", str(ROOT), "-B", str(self.build), "-G", "Ninja", *options])
        check(["cmake", "--build", str(self.build), "--target", self.program])
        for room in sorted({self.room_of(mutant) for mutant in mutants}):
            check(self.tests(room))


LIBRARIES = {
    "core": Library(
        "",
        {
            "base": ["check", "format"],
            "c": [],
            "check": [],
            "elements": [],
            "format": [],
            "io": [],
            "open": [],
            "patch": [],
            "write": [],
        },
        ROOT / "build" / "mutants",
        "safetensors_tests",
        has_weights=False,
    ),
    # Tests in Python cover config, hf, names, schemes and most of c.
    "weights": Library(
        "weights",
        {
            "common": ["gguf"],
            "dequant": [],
            "gguf": [],
            "model": ["provider"],
            "provider": [],
            "tensors": ["provider"],
        },
        ROOT / "build" / "mutants-weights",
        "safetensors_weights_tests",
        has_weights=True,
    ),
}


# Both -----------------------------------------------------------------------------------------


def all_mutants(what: str, rooms: list[str]) -> list[Mutant]:
    if what == "python":
        files = [path for path in sorted(PACKAGE.rglob("*.py")) if tests_of(path)]
        return [mutant for path in files for mutant in python_mutants(path)]
    library = LIBRARIES[what]
    paths = [path for room in rooms or library.rooms for path in library.files(room)]
    return [mutant for path in paths for mutant in cpp_mutants(path)]


def known_equivalents() -> set[str]:
    lines = EQUIVALENT.read_text().splitlines()
    return {line for line in lines if line and not line.startswith(("#", " "))}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["python", *LIBRARIES])
    parser.add_argument(
        "rooms", nargs="*", metavar="ROOM", help="of a library: folders of src; all of them"
    )
    parser.add_argument("--count", type=int, default=100, help="how many, chosen at random")
    parser.add_argument("--seed", type=int, default=0, help="which of them")
    parser.add_argument("--first", type=int, default=1, help="number of the first one to run")
    parser.add_argument("--last", type=int, help="number of the last one to run")
    parser.add_argument("--only", default="", help="mutants whose printed line contains this text")
    arguments = parser.parse_args()

    mutants = all_mutants(arguments.what, arguments.rooms)
    if arguments.only:
        mutants = [mutant for mutant in mutants if arguments.only in mutant.key()]
    chosen = random.Random(arguments.seed).sample(mutants, min(arguments.count, len(mutants)))
    numbered = list(enumerate(chosen, 1))[arguments.first - 1 : arguments.last]
    library = LIBRARIES.get(arguments.what)
    survives = library.survives if library else survives_python
    prepare = library.prepare if library else prepare_python
    prepare([mutant for _, mutant in numbered])
    equivalent = known_equivalents()
    survivors = excused = 0
    for number, mutant in numbered:
        begin = time.monotonic()
        verdict = "noticed"
        if mutant.key() in equivalent:
            verdict, excused = "equivalent", excused + 1
        elif survives(mutant):
            verdict, survivors = "SURVIVED", survivors + 1
        seconds = time.monotonic() - begin
        place = f"line {mutant.line}: {mutant.key()}"
        print(f"{number}/{len(chosen)} {verdict} ({seconds:.0f} s), {place}", flush=True)
    noticed = len(numbered) - survivors - excused
    print(
        f"{noticed} noticed, {survivors} survived, {excused} equivalent of {len(mutants)} possible"
    )
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
