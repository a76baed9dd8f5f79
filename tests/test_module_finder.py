"""The finder of graphkit's modules agrees with Python's own about which bytecode is valid."""

import importlib.util
import inspect
import os
import py_compile
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest
from combinations import in_one_item

from graphkit.module_finder import Finder

NAME = "graphkit.imaginary"


def compiled(path: Path, text: str = "VALUE = 1\n", mode: py_compile.PycInvalidationMode | None = None) -> Path:
    """Write a source file and its bytecode; return the bytecode's path."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    cached = path.parent / "__pycache__" / f"{path.stem}.{sys.implementation.cache_tag}.pyc"
    default = py_compile.PycInvalidationMode.TIMESTAMP
    return Path(py_compile.compile(str(path), str(cached), doraise=True, invalidation_mode=mode or default))


def found(folder: Path) -> ModuleSpec | None:
    return Finder.find_spec(NAME, [str(folder)])


def executed(spec: ModuleSpec) -> ModuleType:
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_compiled_module_is_found(tmp_path):
    cached = compiled(tmp_path / "imaginary.py", "def f():\n    return 7\n")
    module = executed(found(tmp_path))
    assert module.f() == 7
    assert (module.__file__, module.__cached__) == (str(tmp_path / "imaginary.py"), str(cached))
    assert module.__package__ == "graphkit"
    assert inspect.getsource(module.f) == "def f():\n    return 7\n"


def test_compiled_package_is_found(tmp_path):
    compiled(tmp_path / "imaginary" / "__init__.py")
    module = executed(found(tmp_path))
    assert (module.VALUE, module.__path__) == (1, [str(tmp_path / "imaginary")])
    assert module.__package__ == NAME


def test_code_of_a_moved_package_has_its_present_path(tmp_path):
    compiled(tmp_path / "former" / "imaginary.py", "def f():\n    return lambda: 7\n")
    (tmp_path / "former").rename(tmp_path / "present")
    module = executed(found(tmp_path / "present"))
    assert {module.f.__code__.co_filename, module.f().__code__.co_filename} == {module.__file__}


@in_one_item()
@pytest.mark.parametrize("change", ["size", "time", "magic number", "no bytecode", "cut off", "no source"])
def test_invalid_bytecode_is_left_to_python(tmp_path, change):
    source = tmp_path / "imaginary.py"
    cached = compiled(source)
    assert found(tmp_path) is not None
    facts = source.stat()
    if change == "size":
        source.write_text("VALUE = 12\n")
        os.utime(source, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    elif change == "time":
        os.utime(source, ns=(facts.st_atime_ns, facts.st_mtime_ns + 2_000_000_000))
    elif change == "magic number":
        cached.write_bytes(b"\0" + cached.read_bytes()[1:])
    elif change == "cut off":
        cached.write_bytes(cached.read_bytes()[:12])
    else:
        (cached if change == "no bytecode" else source).unlink()
    assert found(tmp_path) is None


def test_bytecode_with_a_hash_of_the_source_is_left_to_python(tmp_path):
    compiled(tmp_path / "imaginary.py", mode=py_compile.PycInvalidationMode.CHECKED_HASH)
    assert found(tmp_path) is None


def test_other_packages_and_several_folders_are_left_to_python(tmp_path):
    compiled(tmp_path / "imaginary.py")
    assert Finder.find_spec("other.imaginary", [str(tmp_path)]) is None
    assert Finder.find_spec("imaginary") is None
    assert Finder.find_spec(NAME, [str(tmp_path), str(tmp_path)]) is None


def test_later_callers_of_the_loader_get_the_present_source(tmp_path):
    compiled(tmp_path / "imaginary.py")
    spec = found(tmp_path)
    assert executed(spec).VALUE == 1
    (tmp_path / "imaginary.py").write_text("VALUE = 123\n")
    names: dict[str, int] = {}
    exec(spec.loader.get_code(NAME), names)
    assert names["VALUE"] == 123


@in_one_item()
@pytest.mark.parametrize("option", ["", "-O", "-Xpycache_prefix={}"])
def test_finder_is_used_where_bytecode_has_its_usual_place(tmp_path, option):
    code = """if True:
        import sys

        class Watching:
            def find_spec(name, path=None, target=None):
                return None

        sys.meta_path.insert(0, Watching)
        import graphkit
        from graphkit.module_finder import Finder

        found = sys.meta_path
        python = next(i for i, finder in enumerate(found) if finder.__module__.startswith("_frozen"))
        print(found.index(Watching) < found.index(Finder) < python if Finder in found else "none")
    """
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPYCACHEPREFIX"}
    command = [sys.executable, *([option.format(tmp_path)] if option else []), "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, timeout=300)
    assert done.stdout.strip() == ("none" if option else "True")
