"""The modules that a new process imports up to the first result of a small file."""

import textwrap
from pathlib import Path

import pytest
from new_processes import output_of

import graphkit as gk

# The most modules of graphkit after each step, 2 to 3% more than there are. Each takes 0.2 to 1 ms of processor time.
MOST = {"import": 2, "load": 64, "compile": 131, "run": 135}
# The most modules after a file is loaded, with those of other packages.
MOST_LOADED = 71
# The most calls that set up operators or register kernels while a module is imported, about 5% more than there are.
MOST_CALLS = {"ops.tensor.shape": 93, "ops.math.arithmetic": 158, "executor.devices.cpu.pointwise": 460}
# Other packages that a file does not need before it is compiled.
HEAVY = {"onnx", "google", "scipy", "ml_dtypes", "json", "dataclasses", "difflib", "hashlib", "pathlib"}
CODE = """
    import re
    import sys

    import numpy as np

    def show(step):
        print(step, *sorted(set(sys.modules) - before))

    before = set(sys.modules)
    patterns = len(re._cache)
    import graphkit as gk

    show("import")
    net = gk.load(sys.argv[1])
    show("load")
    exe = net.compile(threads=1)
    show("compile")
    exe.run({name: np.zeros([2, *t.shape[1:]], np.float32) for name, t in net.input_types.items()})
    show("run")
    print("patterns", len(re._cache) - patterns)
"""


def in_new_process(code: str, *arguments: str) -> str:
    """Return what the code prints in a new process."""
    return output_of("-c", textwrap.dedent(code), *arguments)


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Return the imported modules after each step of using a LeNet."""
    path: Path = tmp_path_factory.mktemp("models") / "lenet.onnx"
    gk.models.build("lenet").save(path)
    steps = (line.split() for line in in_new_process(CODE, str(path)).splitlines())
    return {step: set(names) for step, *names in steps}


@pytest.mark.parametrize("step", MOST)
def test_number_of_modules(imported: dict[str, set[str]], step: str) -> None:
    own = sorted(name for name in imported[step] if name.partition(".")[0] == "graphkit")
    assert len(own) <= MOST[step], own


def test_number_of_all_modules_after_load(imported: dict[str, set[str]]) -> None:
    assert len(imported["load"]) <= MOST_LOADED, sorted(imported["load"])


@pytest.mark.full
def test_number_of_all_modules_after_load_of_mobilenet(tmp_path: Path) -> None:
    """This network has more kinds of operators than other small ones."""
    path = tmp_path / "mobilenetv3.onnx"
    gk.models.build("mobilenetv3").save(path)
    code = """
        import sys

        import numpy

        before = set(sys.modules)
        import graphkit

        graphkit.load(sys.argv[1])
        print(*set(sys.modules) - before)
    """
    modules = in_new_process(code, str(path)).split()
    assert len(modules) < 80, sorted(modules)


def test_first_run_imports_neither_openssl_nor_dataclasses(imported: dict[str, set[str]]) -> None:
    assert imported["run"].isdisjoint({"hashlib", "_hashlib", "dataclasses"})


def test_multilayer_perceptron_needs_no_convolutions_and_no_onednn(tmp_path: Path) -> None:
    path = tmp_path / "mlp.onnx"
    gk.models.build("mlp").save(path)
    code = (
        CODE
        + """
    with open("/proc/self/maps") as maps:
        print("oneDNN", *(line for line in maps.read().split() if "libdnnl" in line))
    """
    )
    found = {step: names for step, *names in map(str.split, in_new_process(code, str(path)).splitlines())}
    assert found["oneDNN"] == []
    assert {"bisect", "_bisect", "mmap"}.isdisjoint(found["run"])
    for name in ("ops.nn.conv", "ops.tensor.layout", "ir.bounds", "ir.origin", "executor.devices.groups"):
        assert f"graphkit.{name}" not in found["run"]


def test_first_run_imports_nothing_for_rare_cases(imported: dict[str, set[str]]) -> None:
    """Python's operators on values, calls in other styles, scheduling in Python, states, other precisions."""
    rare = {"ops._value_operators", "ops._calls", "executor.memory.schedule", "executor.run.states"}
    rare |= {"executor.run.precision", "executor.run.executable", "executor.lower.collaborators"}
    rare |= {"ops.nn.smooth_activation", "ops.internal.fused_attention"}
    assert imported["run"].isdisjoint(f"graphkit.{name}" for name in rare)
    assert "heapq" not in imported["run"]


def test_first_run_compiles_no_regular_expressions(imported: dict[str, set[str]]) -> None:
    assert imported["patterns"] == {"0"}


def test_import_of_operators_makes_no_samples() -> None:
    """Samples are for tests."""
    code = """
        import gc
        import importlib
        import pkgutil

        import graphkit.ops

        for module in pkgutil.walk_packages(graphkit.ops.__path__, "graphkit.ops."):
            importlib.import_module(module.name)
        samples = [made for made in gc.get_objects() if type(made).__name__ == "Sample"]
        assert not samples, samples
        from graphkit.ops.nn.activation import Relu
        assert Relu.samples()
    """
    in_new_process(code)


@pytest.mark.parametrize(("module", "most"), MOST_CALLS.items())
def test_import_takes_few_calls(module: str, most: int) -> None:
    code = """
        import importlib
        import sys

        import graphkit.executor.devices.pointwise.rules
        import graphkit.ops.axes

        def count(frame, event, argument):
            global calls
            calls += event == "call" and frame.f_code.co_filename.endswith(files)

        files = "ops/_op.py", "ops/_base.py", "ops/_registry.py", "devices/registry.py", "devices/cpu/_base.py"
        calls = 0
        sys.setprofile(count)
        importlib.import_module(f"graphkit.{sys.argv[1]}")
        sys.setprofile(None)
        print(calls)
    """
    assert int(in_new_process(code, module)) <= most


def test_modules_of_searches_are_imported_when_used() -> None:
    code = """
        import sys

        from graphkit.executor.memory.first_fit import FirstFit
        from graphkit.ir import bounds

        FirstFit([(8, 0, 1), (8, 1, 2)], 1).search(16, 24)
        print(*{"random", "heapq"} & set(sys.modules))
    """
    assert in_new_process(code) == "\n"


def test_bounds_are_imported_for_symbolic_sizes() -> None:
    code = """
        import sys

        from graphkit.ops.known_elements import decide_equal, decide_less
        from graphkit.ops.tensor import concat

        print(decide_equal(2, 2), decide_equal(2, 3), decide_less(2, 3), decide_less(3, 3))
        print("graphkit.ir.bounds" in sys.modules)
    """
    assert in_new_process(code) == "1 0 1 0\nFalse\n"


def test_load_imports_no_heavy_packages(imported: dict[str, set[str]]) -> None:
    assert imported["load"].isdisjoint(HEAVY)


def test_load_imports_operators_of_the_file_alone(imported: dict[str, set[str]]) -> None:
    assert "graphkit.ops.nn.conv" in imported["load"]
    for name in ("ops.nn.norm", "ops.control.operators", "onnx_io.upgrade.contrib", "onnx_io.downgrade", "passes"):
        assert f"graphkit.{name}" not in imported["load"]


def test_compile_imports_passes_that_may_change_the_graph(imported: dict[str, set[str]]) -> None:
    assert "graphkit.passes.fuse.conv" in imported["compile"]
    for name in ("fuse.attention", "fuse.layer_norm", "quantise.integers", "control.scan_axes", "training.recompute"):
        assert f"graphkit.passes.{name}" not in imported["compile"]


def test_compile_of_classifier_imports_no_passes_for_attention_and_formulas(tmp_path: Path) -> None:
    """The file has a Softmax, a Gemm and a Flatten, but no chain that these passes change."""
    path = tmp_path / "classifier.onnx"
    x = gk.flatten(gk.input("x", ["N", 4, 2]))
    gk.Model({"y": gk.softmax(gk.nn.linear(x, 3))}).save(path)
    found = {step: set(names) for step, *names in map(str.split, in_new_process(CODE, str(path)).splitlines())}
    assert not [name for name in found["run"] if name.startswith(("graphkit.passes.fuse", "graphkit.passes.simplify"))]


def test_numeric_model_imports_no_tokenizer(imported: dict[str, set[str]]) -> None:
    assert not [name for name in imported["run"] if "tokenize" in name and name.startswith("graphkit.")]


def test_networks_of_the_zoo_are_imported_when_used(imported: dict[str, set[str]]) -> None:
    assert not [name for step in imported.values() for name in step if name.startswith("graphkit.models")]
    code = """
        import sys

        import graphkit as gk

        def networks():
            found = (name.partition("graphkit.models.")[2] for name in sys.modules)
            return [name for name in found if name and not name.startswith("_")]

        print(networks())
        gk.models
        print(networks())
        gk.models.lenet
        print(networks())
    """
    assert in_new_process(code).splitlines() == ["[]", "[]", "['lenet']"]


def test_threads_may_load_and_run_their_first_models_at_once(tmp_path: Path) -> None:
    paths = [str(tmp_path / f"{name}.onnx") for name in ("lenet", "mlp")]
    for path in paths:
        gk.models.build(Path(path).stem).save(path)
    code = """
        import sys
        import threading

        import numpy as np

        import graphkit as gk

        sys.setswitchinterval(1e-6)
        together, done = threading.Barrier(6), []

        def run(path):
            together.wait()
            net = gk.load(path)
            net.run({name: np.zeros([2, *t.shape[1:]], np.float32) for name, t in net.input_types.items()})
            done.append(path)

        threads = [threading.Thread(target=run, args=(path,)) for path in sys.argv[1:] * 3]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(done) == 6
    """
    in_new_process(code, *paths)


def test_help_imports_neither_numpy_nor_mpi() -> None:
    code = """
        import contextlib
        import io
        import sys

        from graphkit.cli import main

        shown = io.StringIO()
        with contextlib.suppress(SystemExit), contextlib.redirect_stdout(shown):
            main(["--help"])
        assert "quickstart" in shown.getvalue()
        print(*sys.modules)
    """
    modules = in_new_process(code).split()
    assert {"numpy", "mpi4py", "onnx", "rich", "subprocess"}.isdisjoint(modules)
    own = [name for name in modules if name.partition(".")[0] == "graphkit"]
    assert len(own) <= 13, own
