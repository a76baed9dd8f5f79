"""Find compiled modules of graphkit without the general search of Python, which takes twice as long.

A first result needs 120 to 160 modules. For each, Python asks all finders, lists folders, and parses the bytecode's
header in Python. `Finder` looks at one place. It only finds modules whose bytecode Python would use, too. Python's
finders look for all others: modules that were edited or never compiled, and extensions.
"""

from __future__ import annotations

import _imp
import marshal
import os
import sys
from collections.abc import Sequence
from importlib._bootstrap_external import MAGIC_NUMBER
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType

# The header of bytecode that is valid as long as the source has the time of modification and size that follow.
_HEADER = MAGIC_NUMBER + bytes(4)
_HEADER_SIZE = 16
_SUFFIX = f".{sys.implementation.cache_tag}.pyc"


class _Loader(SourceFileLoader):
    """Python's loader, with bytecode that was already read."""

    def __init__(self, name: str, path: str, bytecode: memoryview):
        super().__init__(name, path)
        self._bytecode: memoryview | None = bytecode

    def get_code(self, fullname: str) -> CodeType | None:
        bytecode, self._bytecode = self._bytecode, None
        # The bytecode serves the import. Later callers get what the files contain then.
        if bytecode is None:
            return super().get_code(fullname)
        code: CodeType = marshal.loads(bytecode)
        # The file may have been moved or copied with its bytecode, which contains the former path.
        _imp._fix_co_filename(code, self.path)  # type: ignore[attr-defined]
        return code


class Finder:
    """An entry of `sys.meta_path` for the modules in graphkit's packages."""

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        # In an editable installation, the package graphkit itself has several folders.
        if not name.startswith("graphkit.") or path is None or len(path) != 1:
            return None
        module = name.rpartition(".")[2]
        folder = path[0]
        return _spec(name, folder, module, None) or _spec(name, f"{folder}/{module}", "__init__", f"{folder}/{module}")


def _spec(name: str, folder: str, stem: str, package: str | None) -> ModuleSpec | None:
    """Return the spec of a source file of `folder` that has valid bytecode. package: its folder, if it is a package."""
    source, cached = f"{folder}/{stem}.py", f"{folder}/__pycache__/{stem}{_SUFFIX}"
    try:
        facts = os.stat(source)
        data = _content(cached)
    except OSError:
        return None
    if data[:8] != _HEADER or data[8:_HEADER_SIZE] != _low_bytes(facts.st_mtime) + _low_bytes(facts.st_size):
        return None
    spec = ModuleSpec(name, _Loader(name, source, memoryview(data)[_HEADER_SIZE:]), origin=source)
    spec.has_location, spec.cached = True, cached
    if package is not None:
        spec.submodule_search_locations = [package]
    return spec


def _content(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)


def _low_bytes(number: float) -> bytes:
    """Return the low 32 bits of a number's integer part, as a header contains them."""
    return (int(number) & 0xFFFFFFFF).to_bytes(4, "little")


def install() -> None:
    """Use the finder, unless Python keeps bytecode elsewhere, or under other names.

    It comes before Python's finders and that of an editable installation, but behind finders of other packages, which
    may watch or change imports.
    """
    if sys.pycache_prefix is not None or sys.flags.optimize or Finder in sys.meta_path:
        return
    usual = "_frozen_importlib", "_editable_skbc_graphkit"
    modules = [getattr(finder, "__module__", "") for finder in sys.meta_path]
    place = next((i for i, module in enumerate(modules) if module.startswith(usual)), len(modules))
    sys.meta_path.insert(place, Finder)
