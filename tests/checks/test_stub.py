"""The signatures that editors and type checkers see are those of the registry, and programs fit them."""

import subprocess
import sys

import pytest
from cases import each_case

from graphkit.checks import stub
from graphkit.checks.samples import dtypes_of, make_case, samples_of
from graphkit.ops import registry

PROGRAM = """
import numpy as np

import graphkit as gk

x = gk.input("x", ["N", 1, 8, 8])
w = gk.parameter("w", [4, 1, 3, 3])
h = gk.conv(x, w, pads=[1, 1, 1, 1], name="first")
values, indices = gk.top_k(gk.flatten(gk.relu(h) * 2.0 - 1), np.array([3]), axis=-1)
parts = gk.concat([values, values[:, :1]], axis=1)
net = gk.Model({"y": gk.softmax(parts, axis=1)}, name="small")
first: np.ndarray = net.compile(threads=1).run({"x": np.zeros((1, 1, 8, 8))})["y"]
gk.Trainer(net, loss="mse", optimizer=gk.optim.SGD(0.1)).step(first, first)
"""
# A line, and what a type checker says of it.
WRONG = {
    'gk.conv(x, w, strides="two")': "arg-type",
    "gk.relu(x, 1, 2)": "call-arg",
    "gk.softmax(x, axes=1)": "call-arg",
    "gk.relu(x).backward()": "attr-defined",
    "gk.transpose(perm=(0, 1))": "call-arg",
    'net.compile(device="cpu").rum({})': "attr-defined",
}


@pytest.mark.parametrize(("path", "text"), list(stub.stubs().items()), ids=["functions", "package"])
def test_current(path, text):
    assert path.read_text(encoding="utf-8") == text, "python -m graphkit.checks.stub writes it"


@pytest.fixture(scope="module")
def diagnosed(tmp_path_factory):
    pytest.importorskip("mypy")
    program = PROGRAM + "".join(f"{line}\n" for line in WRONG)
    folder = tmp_path_factory.mktemp("program")
    (folder / "program.py").write_text(program)
    # Errors of the package's own modules are the business of its own check.
    command = [
        sys.executable,
        "-P",
        "-m",
        "mypy",
        "--strict",
        "--follow-imports=silent",
        "--show-error-codes",
        "program.py",
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode in (0, 1), done.stderr
    found = {}
    for line in done.stdout.splitlines():
        if ": error: " in line:
            found.setdefault(int(line.split(":")[1]), []).append(line)
    return program.splitlines(), found


@pytest.mark.full
def test_a_program_fits_the_signatures(diagnosed):
    lines, found = diagnosed
    right = len(PROGRAM.splitlines())
    assert {lines[n - 1]: said for n, said in found.items() if n <= right} == {}


@pytest.mark.full
@pytest.mark.parametrize("line", WRONG)
def test_mistakes_are_seen(diagnosed, line):
    lines, found = diagnosed
    assert f"[{WRONG[line]}]" in " ".join(found.get(lines.index(line) + 1, []))


@each_case(list(registry), group=lambda cls: cls.name[0], name=lambda cls: cls.name)
def test_signatures_promise_what_calls_give(cls):
    promised = stub.returned(cls)
    for number, sample in enumerate(samples_of(cls)):
        case = make_case(cls, number, dtypes_of(cls, sample)[0])
        node = case.graph().nodes[-1]
        outputs = "Value" if len(node.outputs) == 1 else f"tuple[{', '.join(['Value'] * len(node.outputs))}]"
        assert promised in (outputs, "Any")
