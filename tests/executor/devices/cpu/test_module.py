"""Facts about the extension, and errors of its steps for arrays that do not fit."""

import ast
import threading
from pathlib import Path

import numpy as np
import pytest
from combinations import in_one_item

import graphkit
from graphkit.executor.devices.cpu import native
from graphkit.executor.memory.packing import aligned_bytes

needs_onednn = pytest.mark.skipif(not native.has_onednn(), reason="built without oneDNN")


def test_versions():
    assert native.version == graphkit.__version__
    assert native.compiler()
    if native.has_onednn():
        assert native.onednn_version() == "3.2.0"
        assert native.onednn_isa()


def test_cpu_features_are_those_of_the_kernel():
    cpuinfo = Path("/proc/cpuinfo")
    flags = cpuinfo.read_text().split("flags", 1)[-1].split("\n", 1)[0].split() if cpuinfo.exists() else []
    if "sse4_2" not in flags:
        pytest.skip("no x86 flags to compare with")
    known = "sse4_1 sse4_2 avx f16c fma avx2 avx_vnni avx512f avx512dq avx512bw avx512vl avx512_vnni avx512_bf16"
    known += " avx512_fp16 amx_tile amx_int8 amx_bf16"
    assert native.cpu_features() == [name for name in known.split() if name in flags]


def test_default_threads():
    before = native.default_threads()
    assert before >= 1
    try:
        native.set_default_threads(2)
        assert native.default_threads() == 2
    finally:
        native.set_default_threads(0)
    assert native.default_threads() == before


def test_stub_lists_what_the_module_has():
    text = Path(native.__file__).with_name("_native.pyi").read_text()
    declared: dict[str, set[str]] = {}
    for item in ast.parse(text).body:
        if isinstance(item, ast.ClassDef):
            declared[item.name] = {m.name for m in item.body if isinstance(m, ast.FunctionDef)}
        elif isinstance(item, ast.FunctionDef):
            declared[item.name] = set()
        elif isinstance(item, ast.AnnAssign):
            declared[ast.unparse(item.target)] = set()
    assert set(declared) == {name for name in dir(native) if not name.startswith("__")}
    assert {"run", "set", "trace"} <= declared["Instance"]
    assert "::" not in text  # the C++ name of a class that is bound later than what mentions it


def pool(threads: int = 1):
    window = native.PoolWindow([2, 2], [2, 2], [1, 1], [0, 0], [0, 0])
    return native.MaxPool([1, 1, 4, 4], [1, 1, 2, 2], window, threads=threads)


X = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)


def test_repr_names_operation_and_shapes():
    assert repr(pool()) == "<MaxPool(x f32[1, 1, 4, 4]) -> y f32[1, 1, 2, 2], indices i64[1, 1, 2, 2]>"


@in_one_item()
@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([X[0]], r"'x' got an array of float32\[1, 4, 4\]"),
        ([X.astype(np.float64)], "'x' got an array of float64"),
        ([X.transpose(0, 1, 3, 2)], "x' must be a contiguous array"),
        ([None], "'x' is missing"),
        ([], "'x' is missing"),
    ],
)
def test_inputs_that_do_not_fit(inputs, message):
    y, indices = np.empty((1, 1, 2, 2), np.float32), np.empty((1, 1, 2, 2), np.int64)
    with pytest.raises(ValueError, match=message):
        pool()(inputs, [y, indices])


def test_read_only_arrays_are_inputs_and_not_outputs():
    x = X.copy()
    x.flags.writeable = False
    y = np.empty((1, 1, 2, 2), np.float32)
    pool()([x], [y, None])
    assert y.tolist() == [[[[5, 7], [13, 15]]]]
    y.flags.writeable = False
    with pytest.raises(ValueError, match="y' must be a contiguous, writable array"):
        pool()([x], [y, None])


def test_arguments_that_are_no_arrays():
    with pytest.raises(TypeError):
        pool()(3, [None, None])
    with pytest.raises(TypeError, match="x' must be an array, not int"):
        pool()([3], [None, None])


def test_step_without_weights_has_nothing_to_pack():
    step = pool()
    assert step.packed_inputs == []
    with pytest.raises(native.Error, match="input 0 is not packed"):
        step.pack(0, X, X.copy())


@needs_onednn
def test_one_step_called_from_many_threads():
    rng = np.random.default_rng(0)
    a = rng.standard_normal((8, 40, 30), dtype=np.float32)
    w = rng.standard_normal((30, 20), dtype=np.float32)
    step = native.MatMul(a[0].shape, w.shape, pack_b=True, threads=2)
    packed = aligned_bytes(step.packed_bytes(1))
    step.pack(1, w, packed)
    failures = []

    def work(i: int) -> None:
        y = np.empty((40, 20), np.float32)
        for _ in range(200):
            step([a[i], packed], [y])
            if not np.allclose(y, a[i] @ w, atol=1e-4):
                failures.append(i)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert failures == []
