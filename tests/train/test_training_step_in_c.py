"""The C programs of examples/c_training train with a training step: in ONNX Runtime's C API, and in graphkit's."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import graphkit as gk
from graphkit.executor.run.c_package import write_c_runtime

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "c_training"
COMPILER = shutil.which("cc")
# In the Python package, the library has no header, and its version in its name.
LIBRARY = next((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*"), None)

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not EXAMPLE.is_dir(), reason="examples/ is not there"),
    pytest.mark.skipif(COMPILER is None, reason="there is no C compiler"),
]


@pytest.mark.skipif(LIBRARY is None, reason="this onnxruntime has no library of its C API")
def test_losses_are_those_of_a_trainer(tmp_path):
    subprocess.run([sys.executable, EXAMPLE / "prepare.py"], cwd=tmp_path, check=True, timeout=300)
    (tmp_path / "libonnxruntime.so.1").symlink_to(LIBRARY)
    headers = f"-I{ROOT / 'bench' / 'native'}"
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


def test_losses_have_the_bits_of_python(tmp_path):
    subprocess.run([sys.executable, EXAMPLE / "prepare.py"], cwd=tmp_path, check=True, timeout=120)
    write_c_runtime(tmp_path / "runtime")
    command = [
        COMPILER, "-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", EXAMPLE / "train_graphkit.c",
        "-I", "runtime/include", "-L", "runtime/lib", "-lgraphkit", "-Wl,-rpath,$ORIGIN/runtime/lib", "-o", "train",
    ]  # fmt: skip
    subprocess.run(command, cwd=tmp_path, check=True, timeout=120)
    arguments = ["./train", "step.gkp", "step_init.gkp", "images.bin", "labels.bin"]
    ran = subprocess.run(arguments, cwd=tmp_path, check=True, timeout=120, stdout=subprocess.PIPE, text=True)
    found = np.array(ran.stdout.split(), np.float32)

    wrong = subprocess.run([*arguments[:-1], os.devnull], cwd=tmp_path, capture_output=True, timeout=120)
    assert wrong.returncode == 1
    assert b"less than a batch" in wrong.stderr

    step, states = gk.load(tmp_path / "step.onnx").compile(), gk.load(tmp_path / "step_init.onnx").run({})
    roles = json.loads((tmp_path / "step_roles.json").read_text())
    train, _ = gk.data.load("digits")
    expected = []
    for start in range(0, len(train) - 19, 20):
        part = slice(start, start + 20)
        feeds = {"x": np.asarray(train.inputs[part], np.float32), "target": np.asarray(train.targets[part], np.int64)}
        outputs = step.run(feeds | states)
        expected.append(outputs[roles["loss"]])
        states = {state["input"]: outputs[state["output"]] for state in roles["states"]}
    assert len(expected) > 50
    np.testing.assert_array_equal(found, np.array(expected))
