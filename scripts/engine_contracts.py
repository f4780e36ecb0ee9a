"""Compares tests/plugins/contracts.json with the sources of the engines on PyPI.

    python scripts/engine_contracts.py

Of each engine, takes the version that the file names and the newest one. Only the sources that the
file names are read, by ranges of the wheels; nothing is imported or run. Prints each difference;
the exit status is 1 if there is one.
"""

from __future__ import annotations

import ast
import json
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CONTRACTS = ROOT / "tests" / "plugins" / "contracts.json"
CACHE = ROOT / "build" / "engines"
# Of the machine that the wheels are for; the engines have none for others.
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in range(17, 40)] + ["any"]


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Returns the names of a function's parameters; "=" follows those that have a default."""
    found = function.args
    positional = [*found.posonlyargs, *found.args]
    required = len(positional) - len(found.defaults)
    names = [each.arg + "=" * (i >= required) for i, each in enumerate(positional)]
    if found.vararg is not None:
        names.append("*" + found.vararg.arg)
    elif found.kwonlyargs:
        names.append("*")
    for each, default in zip(found.kwonlyargs, found.kw_defaults, strict=True):
        names.append(each.arg + "=" * (default is not None))
    if found.kwarg is not None:
        names.append("**" + found.kwarg.arg)
    return names


def fields(body: ast.ClassDef) -> list[str]:
    """Returns the names that a class annotates or assigns: the fields of a dataclass or an Enum."""
    names = []
    for node in body.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.append(node.target.id + "=" * (node.value is not None))
        elif isinstance(node, ast.Assign):
            names += [each.id + "=" for each in node.targets if isinstance(each, ast.Name)]
    return names


def attributes(function: ast.AST) -> list[str]:
    """Returns the attributes of self that a function sets."""
    found = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(ast.unparse(node))
    return sorted(name.removeprefix("self.") for name in found if name.startswith("self."))


def calls(function: ast.AST) -> list[str]:
    """Returns what a function calls."""
    found = {ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)}
    return sorted(found)


def definitions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Yields the classes and functions of a module and of its classes, by their qualified names."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield prefix + node.name, node
        if isinstance(node, ast.ClassDef):
            yield from definitions(node, f"{prefix}{node.name}.")


def found_in(node: Any, what: str, wanted: str) -> str:
    """Returns what a definition has of one kind of fact, spelled as in the contracts.

    "parameters", "fields" and "calls" are complete; of "has" (fields) and "sets", the wanted ones.
    """
    kinds = {"parameters": parameters, "fields": fields, "calls": calls}
    if what in kinds:
        return ", ".join(kinds[what](node))
    names = {"has": fields, "sets": attributes}[what](node)
    return ", ".join(each for each in wanted.split(", ") if each in names)


def differences(module: str, source: str, contract: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Returns a sentence for each difference of a module's source from its contract."""
    defined = dict(definitions(ast.parse(source)))
    found = []
    for name, facts in contract.items():
        if name not in defined:
            found.append(f"{module} has no {name}")
            continue
        for what, wanted in facts.items():
            actual = found_in(defined[name], what, wanted)
            if actual != wanted:
                found.append(f"{module}.{name}: {what} ({actual}), not ({wanted})")
    return found


def sources(engine: str, version: str | None, modules: list[str]) -> tuple[str, dict[str, str]]:
    """Returns the version and the sources of modules, from a wheel on the package index.

    Reads the wheel by ranges, with pip's own settings, and keeps the sources in CACHE.
    """
    from pip._internal.commands import create_command
    from pip._internal.models.target_python import TargetPython
    from pip._internal.network.lazy_wheel import LazyZipOverHTTP

    command = create_command("download")
    options, _ = command.parse_args(["--no-deps", "--only-binary=:all:", engine])
    with command.main_context():
        session = command.get_default_session(options)
        target = TargetPython(platforms=PLATFORMS, py_version_info=(3, 12, 0))
        finder = command._build_package_finder(options, session, target_python=target)
        found = finder.find_all_candidates(engine)
        releases = [each for each in found if not each.version.is_prerelease]
        if version is not None:
            releases = [each for each in releases if str(each.version) == version]
        link = max(releases, key=lambda each: each.version).link
        cached = {name: CACHE / link.filename / f"{name}.py" for name in modules}
        if not all(path.exists() for path in cached.values()):
            with LazyZipOverHTTP(link.url_without_fragment, session) as file:
                unpack(zipfile.ZipFile(file), cached)
    return link.filename, {
        name: path.read_text(encoding="utf-8") for name, path in cached.items() if path.exists()
    }


def unpack(wheel: zipfile.ZipFile, paths: Mapping[str, Path]) -> None:
    """Writes the sources of modules to files."""
    names = set(wheel.namelist())
    for module, path in paths.items():
        inside = module.replace(".", "/")
        for name in (f"{inside}.py", f"{inside}/__init__.py"):
            if name in names:
                path.parent.mkdir(parents=True, exist_ok=True)
                partial = path.with_suffix(".partial")
                partial.write_bytes(wheel.read(name))
                partial.replace(path)


def main() -> int:
    """Returns the exit status: 1 if anything differs."""
    failed = 0
    for engine, contract in json.loads(CONTRACTS.read_text()).items():
        for version in (contract["version"], None):
            wheel, found = sources(engine, version, list(contract["modules"]))
            print(f"{wheel}: {len(found)} modules")
            for module, wanted in contract["modules"].items():
                if module not in found:
                    differing = [f"there is no module {module}"]
                else:
                    differing = differences(module, found[module], wanted)
                failed += len(differing)
                print(*(f"  {each}" for each in differing), sep="\n", end="\n" * bool(differing))
    print(f"{failed} differences: {'failed' if failed else 'passed'}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
