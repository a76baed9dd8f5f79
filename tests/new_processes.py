"""Run Python in a new process that nothing configures."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def output_of(*arguments: str) -> str:
    """Return what Python prints with these arguments. It may import the helper modules of tests.

    None of graphkit's variables configures the process. For example, the checks of passes, which tests turn on with a
    variable, import all passes.
    """
    environment = {name: text for name, text in os.environ.items() if not name.startswith("GRAPHKIT_")}
    paths = (str(Path(__file__).parent), environment.get("PYTHONPATH"))
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    command = [sys.executable, "-P", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout
