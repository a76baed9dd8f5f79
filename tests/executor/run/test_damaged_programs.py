"""Damaged and hostile .gkp files are rejected."""

import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from saved_batches import recurrent
from saved_images import residual
from saved_loops import (
    nested_model,
    random_model,
    scan_model,
    second_gradient,
    sized_random_model,
    stacks_model,
    table_gradient,
    while_gradient,
    while_model,
)
from saved_programs import branch_model, outcome, trees_model

import graphkit as gk
from graphkit.errors import RuntimeFailure
from graphkit.executor.devices.cpu import native
from graphkit.executor.lower.lowering import ARENA
from graphkit.executor.run import saved_program, saved_steps
from graphkit.executor.run.c_runtime import CSession
from graphkit.executor.run.saved_encoding import sequence

HEADER_BYTES = 64


def with_checksum(data):
    """The bytes of a file, with the right checksum."""
    checksum = native.program_checksum(np.frombuffer(data[: HEADER_BYTES - 8], np.uint8), 0)
    for start in range(HEADER_BYTES, len(data), native.checksum_piece):
        checksum = native.program_checksum(
            np.frombuffer(data[start : start + native.checksum_piece], np.uint8), checksum
        )
    return data[: HEADER_BYTES - 8] + struct.pack("<Q", checksum) + data[HEADER_BYTES:]


def metadata_bytes(data):
    return struct.unpack_from("<Q", data, 24)[0]


def test_each_damaged_byte_is_found(mlp_file, tmp_path):
    data, path = mlp_file.read_bytes(), tmp_path / "damaged.gkp"
    places = [*range(HEADER_BYTES), *range(HEADER_BYTES, len(data), 61)]
    for place in places:
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x40]) + data[place + 1 :])
        assert outcome(path) in ("GK_ERROR_FORMAT", "GK_ERROR_VERSION"), place


def test_truncated_and_extended_files_are_found(mlp_file, tmp_path):
    data, path = mlp_file.read_bytes(), tmp_path / "short.gkp"
    for size in (0, 1, 8, 63, 64, 100, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:size])
        assert outcome(path) == "GK_ERROR_FORMAT", size
    path.write_bytes(data + b"\0")
    assert outcome(path) == "GK_ERROR_FORMAT"


def test_other_processors_and_versions_are_named(mlp_file, tmp_path):
    data, path = mlp_file.read_bytes(), tmp_path / "other.gkp"
    path.write_bytes(with_checksum(data.replace(b"kernels for ", b"kernels For ", 1)))
    with pytest.raises(RuntimeFailure, match=r"lacks: kernels For .*GK_ERROR_PROCESSOR"):
        CSession(path)
    version = gk.__version__.encode()
    path.write_bytes(with_checksum(data.replace(version, b"9" * len(version), 1)))
    with pytest.raises(RuntimeFailure, match=r"written by graphkit 9.*GK_ERROR_VERSION"):
        CSession(path)
    path.write_bytes(data[:8] + struct.pack("<I", 1) + data[12:])
    with pytest.raises(RuntimeFailure, match=r"format has version 1, .*: write the file again \(GK_ERROR_VERSION"):
        CSession(path)


def test_inputs_of_a_program_are_not_packed_weights(tmp_path, monkeypatch):
    """Kernels read packed weights as the constants of the file are aligned."""
    encode, path = saved_steps._step, tmp_path / "net.gkp"

    def damaged(step, *arguments):
        places = {} if step.kernel is None else dict.fromkeys(step.kernel.packed_inputs, (0, 0))
        return encode(step._replace(inputs=[places.get(i, at) for i, at in enumerate(step.inputs)]), *arguments)

    monkeypatch.setattr(saved_steps, "_step", damaged)
    gk.models.build("mlp", inputs=12, hidden=(16,), classes=3).save(path, shapes={"x": (128, 12)})
    with pytest.raises(RuntimeFailure, match=r"'b' is packed, but not a constant \(GK_ERROR_FORMAT"):
        CSession(path)


def test_steps_that_read_unwritten_memory_read_zeros(tmp_path, monkeypatch):
    """The memory contains no data of the process: before, blocks with other contents are freed."""
    encode, path, size = saved_steps._step, tmp_path / "net.gkp", 4096
    first, second, output = (ARENA, 0), (ARENA, 4 * size), (1, 0)
    places = {"sums": ([first], [output]), "end": ([first], [first]), "last": ([second], [output])}

    def damaged(step, *arguments):
        inputs, outputs = places.get(step.name, (step.inputs, step.outputs))
        return encode(step._replace(inputs=inputs, outputs=outputs), *arguments)

    monkeypatch.setattr(saved_steps, "_step", damaged)
    x, axis = gk.input("x", [size]), gk.constant(np.array(0))
    sums = gk.cum_sum(gk.sin(x), axis, name="sums")
    gk.Model({"y": gk.cum_sum(gk.sin(sums, name="end"), axis, name="last")}).save(path)
    with CSession(path) as session:
        freed = [np.full(6 * size, 7.0, np.float32) for _ in range(8)]
        del freed
        assert not session.run({"x": np.ones(size, np.float32)})["y"].any()


def test_strides_that_overflow_are_rejected():
    for x, y, strides, offset in (([5], [8], [1 << 62], 0), ([2, 2], [8], [(1 << 63) - 1, 1], 1), ([3], [2], [1], 0)):
        with pytest.raises(native.Error, match="the view leaves the array"):
            native.StridedPlacement("SliceGrad", x, y, strides, offset, "uint8")


def test_programs_of_a_file_have_the_same_inputs(tmp_path, monkeypatch):
    net, path = gk.models.build("mlp", inputs=12, hidden=(16,), classes=3), tmp_path / "net.gkp"
    encode, names = saved_program._encoded_ports, iter(["x", "y", "z", "y"])
    monkeypatch.setattr(
        saved_program, "_encoded_ports", lambda ports: encode([ports[0]._replace(name=next(names)), *ports[1:]])
    )
    net.save(path, shapes=[{"x": (1, 12)}, {"x": (2, 12)}])
    with pytest.raises(RuntimeFailure, match=r"the programs have different inputs or outputs .GK_ERROR_FORMAT"):
        CSession(path)
    monkeypatch.setattr(saved_program._Contents, "encoded", lambda contents: sequence([]))
    net.save(path, shapes={"x": (1, 12)})
    with pytest.raises(RuntimeFailure, match=r"the number of programs is out of range .GK_ERROR_FORMAT"):
        CSession(path)


def hostile(data, count, seed):
    """Files with a right checksum, in which some bytes or numbers of the metadata are changed."""
    rng = np.random.default_rng(seed)
    end = HEADER_BYTES + metadata_bytes(data)
    extreme = [0, 1, 63, 64, 255, 1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, (1 << 64) - 2]
    # Where small numbers seem to be: sizes, positions, counts.
    small = [p for p in range(HEADER_BYTES, end - 8) if not any(data[p + 4 : p + 8]) and data[p]]
    for _ in range(count):
        changed = bytearray(data)
        for _ in range(rng.integers(1, 4)):
            match rng.integers(4):
                case 0:
                    changed[rng.integers(HEADER_BYTES, end)] = rng.integers(256)
                case 1:
                    place = rng.integers(HEADER_BYTES, end - 8)
                    struct.pack_into("<Q", changed, place, extreme[rng.integers(len(extreme))])
                case _:
                    place = small[rng.integers(len(small))]
                    number = struct.unpack_from("<Q", changed, place)[0]
                    others = [number - 1, number + 1, number * 2, number // 2, 0, -number, number + 64, 1 << 20]
                    changed_to = others[rng.integers(len(others))] % (1 << 64)
                    struct.pack_into("<Q", changed, place, changed_to)
        yield with_checksum(bytes(changed))


FUZZ = """
import resource
import sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))  # sizes may be damaged
sys.path.insert(0, {folder!r})
from saved_programs import outcome
from test_damaged_programs import hostile
data, path = Path({source!r}).read_bytes(), Path({target!r})
for changed in hostile(data, {count}, {seed}):
    path.write_bytes(changed)
    outcome(path)
print("survived")
"""


def fuzz(source, target, count, seed):
    """Open hostile files in another process, which must survive."""
    text = FUZZ.format(
        folder=str(Path(__file__).parent), source=str(source), target=str(target), count=count, seed=seed
    )
    done = subprocess.run([sys.executable, "-P", "-c", text], capture_output=True, text=True, timeout=600)
    assert "survived" in done.stdout, (done.returncode, done.stderr[-2000:])


def test_hostile_files_do_not_crash(mlp_file, tmp_path):
    fuzz(mlp_file, tmp_path / "hostile.gkp", 100, 1)


@pytest.mark.full
@pytest.mark.parametrize(
    "name",
    [
        "lenet",
        "lstm_lm",
        "branch",
        "trees",
        "scan",
        "while",
        "nested",
        "random",
        "stacks",
        "gradient",
        "table",
        "second",
        "shapes",
        "sizes",
        "random sizes",
        "images",
    ],
)
def test_hostile_files_of_many_kernels_do_not_crash(name, tmp_path):
    made = {
        "branch": lambda: branch_model("Neg", "Sin"), "trees": trees_model, "scan": scan_model, "while": while_model,
        "nested": nested_model, "random": random_model, "stacks": stacks_model, "gradient": while_gradient,
        "table": table_gradient, "second": second_gradient,
    }  # fmt: skip
    small = {"lstm_lm": {"vocab": 20}}.get(name, {})
    if name == "sizes":
        recurrent("GRU").save(tmp_path / "net.gkp", shapes={"x": (2, 3, 4), "h0": (2, 5)}, any_size=True)
        fuzz(tmp_path / "net.gkp", tmp_path / "hostile.gkp", 300, 3)
        return
    if name == "images":
        residual().save(tmp_path / "net.gkp", shapes={"x": (1, 3, 16, 16)}, any_size=True)
        fuzz(tmp_path / "net.gkp", tmp_path / "hostile.gkp", 300, 4)
        return
    if name == "random sizes":
        sized_random_model().save(tmp_path / "net.gkp", shapes={"x": (2, 6)}, any_size=True)
        fuzz(tmp_path / "net.gkp", tmp_path / "hostile.gkp", 150, 4)
        return
    if name == "shapes":  # the file says that rows are independent
        net = gk.models.build("mlp", inputs=12, hidden=(16,), classes=3)
        net.save(tmp_path / "net.gkp", shapes=[{"x": (rows, 12)} for rows in (1, 2, 9)])
        fuzz(tmp_path / "net.gkp", tmp_path / "hostile.gkp", 150, 2)
        return
    net = made[name]() if name in made else gk.models.build(name, **small)
    shapes = {n: tuple(d if isinstance(d, int) else 2 for d in t.shape) for n, t in net.input_types.items()}
    net.save(tmp_path / "net.gkp", shapes=shapes)
    fuzz(tmp_path / "net.gkp", tmp_path / "hostile.gkp", 150, 2)
