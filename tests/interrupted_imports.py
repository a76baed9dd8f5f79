"""Interrupt the import of a module, in a new process."""

from __future__ import annotations

import subprocess
import sys

_BEGIN = '''
import ast
import importlib
import pkgutil
import sys
from importlib.machinery import SourceFileLoader

import graphkit  # installs its finder

def interrupt(module, share=1.0):
    """Import a module. After this share of its statements, Ctrl-C is pressed."""
    get_code, finders = SourceFileLoader.get_code, list(sys.meta_path)

    def interrupted_code(self, name):
        if name != module:
            return get_code(self, name)
        tree = ast.parse(self.get_source(name))
        tree.body[int(share * len(tree.body)) :] = ast.parse("raise KeyboardInterrupt").body
        return compile(tree, self.path, "exec")

    assert module not in sys.modules, f"{module} is imported already"
    SourceFileLoader.get_code = interrupted_code
    # graphkit's own finder reads bytecode without `get_code`.
    sys.meta_path[:] = [finder for finder in finders if finder.__module__ != "graphkit.module_finder"]
    try:
        importlib.import_module(module)
    except KeyboardInterrupt:
        pass
    else:
        raise AssertionError(f"the import of {module} was not interrupted")
    finally:
        SourceFileLoader.get_code, sys.meta_path[:] = get_code, finders
    assert module not in sys.modules


def import_again(package):
    """Import the modules of a package again, as after interrupts at their ends."""
    for _, name, is_package in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not is_package:
            sys.modules.pop(name, None)
            importlib.import_module(name)
'''


def run_in_new_process(code: str) -> None:
    """Run code, which may call `interrupt` and `import_again`, in a new process. Warnings are errors."""
    options = ["-P", "-W", "error::UserWarning", "-c"]
    ended = subprocess.run([sys.executable, *options, _BEGIN + code], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
