"""Every network of the zoo at its default size: built, written and verified by the command line."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import graphkit as gk


def command(*arguments):
    done = subprocess.run(
        [sys.executable, "-P", "-m", "graphkit", *map(str, arguments)], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.full
@pytest.mark.parametrize("name", gk.models.names())
@pytest.mark.long
def test_what_the_zoo_builds_passes_verification(name, tmp_path):
    file = tmp_path / "net.onnx"
    code, _, errors = command("build", name, "-o", file)
    assert code == 0, errors
    code, found, errors = command("verify", file, "--json")
    assert code == 0, found + errors
    report = json.loads(found)
    assert report["passed"] is True
    assert report["outputs"]
    assert all(o["criterion"] in ("tolerance", "noise") for o in report["outputs"])
