"""The C program of examples/c_training trains with a training step, in ONNX Runtime's C API."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import graphkit as gk

EXAMPLE = Path(__file__).parents[2] / "examples" / "c_training"
COMPILER = shutil.which("cc")
# In the Python package, the library has no header, and its version in its name.
LIBRARY = next((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*"), None)

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not EXAMPLE.is_dir(), reason="examples/ is not there"),
    pytest.mark.skipif(COMPILER is None, reason="there is no C compiler"),
    pytest.mark.skipif(LIBRARY is None, reason="this onnxruntime has no library of its C API"),
]


def test_losses_are_those_of_a_trainer(tmp_path):
    subprocess.run([sys.executable, EXAMPLE / "prepare.py"], cwd=tmp_path, check=True, timeout=300)
    (tmp_path / "libonnxruntime.so.1").symlink_to(LIBRARY)
    headers = f"-I{Path(__file__).parent / 'c_api'}"
    command = [COMPILER, "-Wall", "-Werror", headers, EXAMPLE / "train.c", "-o", "train", "libonnxruntime.so.1"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=300)
    arguments = ["./train", "step.onnx", "step_init.onnx", "images.bin", "labels.bin"]
    environment = os.environ | {"LD_LIBRARY_PATH": str(tmp_path)}
    ran = subprocess.run(arguments, cwd=tmp_path, env=environment, check=True, timeout=300, stdout=subprocess.PIPE)
    found = [float(line) for line in ran.stdout.split()]

    empty = subprocess.run(
        [*arguments[:-1], os.devnull], cwd=tmp_path, env=environment, timeout=300, stderr=subprocess.PIPE
    )
    assert empty.returncode == 1
    assert b"less than a batch of 20" in empty.stderr

    train, _ = gk.data.load("digits")
    net = gk.models.build("lenet", image=(1, 8, 8), classes=10)
    trainer = gk.Trainer(net, optimizer=gk.optim.Adam(1e-3))
    parts = [slice(i, i + 20) for i in range(0, len(train) - 19, 20)]
    expected = [float(trainer.step(train.inputs[part], train.targets[part])) for part in parts]
    assert len(found) == len(expected) > 50
    np.testing.assert_allclose(found, expected, rtol=1e-4)
