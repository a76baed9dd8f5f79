"""Programs that follow from a template: the same results, errors and memory as those compiled for a size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.checks.inputs import make_feeds
from graphkit.errors import GraphkitError, InputError, TypeMismatch
from graphkit.executor.run.params import ParamStore
from graphkit.executor.run.program import Program
from graphkit.executor.run.session import Executor
from graphkit.executor.run.sized_program import SizedProgram
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def batches_as_wholes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that are not those of parts."""
    monkeypatch.setattr("graphkit.executor.lower.batch._CACHED", 1 << 60)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, dtype=np.float32)


def parameter(*shape: int) -> Value:
    return gk.parameter(f"w{RNG.integers(1 << 60)}", shape, "ones")


def compare(
    net: gk.Model, sizes: list[Mapping[str, tuple[int, ...]]], *, native: bool = True, **options: Any
) -> Executor:
    """Run one executor over all sizes, and a fresh one for each; results must be the same but for rounding."""
    executor = net.compile(**options)
    for number, shapes in enumerate([*sizes, *sizes[::-1]]):
        feeds = make_feeds(net, shapes=shapes, seed=number).arrays
        found = executor.run(feeds)
        assert isinstance(executor._choice.latest, SizedProgram) == (native and 0 < number < 2 * len(sizes) - 1)
        expected = net.compile(**options).run(feeds)
        for name, array in expected.items():
            assert found[name].shape == array.shape
            assert found[name].dtype == array.dtype
            np.testing.assert_allclose(found[name], array, rtol=2e-4, atol=2e-5, err_msg=f"{name} {shapes}")
    return executor


# --- networks -----------------------------------------------------------------------------------------


@pytest.mark.onednn
@in_one_item("values")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("deterministic", [False, True])
def test_an_encoder(threads: int, deterministic: bool) -> None:
    net = gk.models.build("bert", vocab=50, width=64, heads=4, layers=2, length=40)
    shapes = [dict.fromkeys(("x", "segments", "mask"), (b, t)) for b, t in [(2, 7), (1, 1), (3, 33), (5, 2), (2, 40)]]
    compare(net, shapes, native=not deterministic, threads=threads, deterministic=deterministic)


@pytest.mark.full
@pytest.mark.onednn
@in_one_item()
@pytest.mark.parametrize("name", ["lenet", "mobilenetv2", "resnet"])
def test_images_in_batches(name: str) -> None:
    options: dict[str, Any] = {
        "mobilenetv2": {"image": (3, 32, 32), "classes": 7},
        "resnet": {"layers": 18, "image": (3, 32, 32), "classes": 7},
    }
    net = gk.models.build(name, **options.get(name, {}))
    image = [int(d) for d in net.input_types["x"].known_shape[1:]]
    compare(net, [{"x": (n, *image)} for n in (2, 1, 5, 3)], threads=2)


@pytest.mark.onednn
def test_a_recurrent_network() -> None:
    net = gk.models.build("lstm_lm", vocab=30, hidden=12, layers=2)
    compare(net, [{"x": s} for s in [(3, 2), (1, 1), (9, 4), (2, 17)]], threads=1)


def images() -> Value:
    return gk.input("x", ["N", 3, "H", "W"])


@pytest.mark.onednn
@in_one_item()
@pytest.mark.parametrize("auto_pad", ["NOTSET", "SAME_UPPER", "VALID"])
def test_images_of_any_size(auto_pad: str) -> None:
    pads = {"pads": (1, 1, 1, 1)} if auto_pad == "NOTSET" else {"auto_pad": auto_pad}
    h = F.relu(F.conv(images(), parameter(16, 3, 3, 3), strides=(2, 2), **pads))
    h = F.clip(F.conv(h, parameter(16, 1, 3, 3), parameter(16), group=16, **pads), np.float32(0), np.float32(6))
    h = F.conv(h, parameter(24, 16, 1, 1), parameter(24))
    h = F.max_pool(F.sigmoid(h), kernel_shape=(2, 2), strides=(2, 2))[0]
    net = gk.Model({"y": F.reduce_mean(h, np.array([2, 3])), "map": F.mul(h, np.float32(2))})
    for value in net.params:
        net.params[value] = normal(*net.params[value].shape)
    sizes = [(2, 20, 21), (1, 15, 40), (3, 33, 15), (1, 64, 64)]
    compare(net, [{"x": (n, 3, h, w)} for n, h, w in sizes], threads=2)


def pointwise(x: Value) -> Value:
    return F.tanh(F.add(F.mul(x, x), np.float32(1)))


def with_sizes(x: Value) -> Value:
    """Elements that follow from sizes are operands of kernels."""
    shape = F.shape(x)
    whole = F.cast(F.reduce_prod(shape, keepdims=False), to="float32")
    return F.add(F.mul(x, whole), F.cast(F.gather(shape, np.int64(0)), to="float32"))


def moved(x: Value) -> Value:
    rows = F.reshape(x, np.array([-1, 2]))
    return F.concat(F.transpose(rows, perm=(1, 0)), F.transpose(F.exp(rows), perm=(1, 0)), axis=0)


def broadcast(x: Value) -> Value:
    total = F.reduce_sum(x, np.array([0]), keepdims=True)
    return F.sub(F.expand(total, F.shape(x)), x)


def sliced(x: Value) -> Value:
    size = F.gather(F.shape(x), np.array([0]))
    half = F.div(size, np.array([2]))
    return F.softmax(F.slice(x, half, size, np.array([0])), axis=-1)


def positions(x: Value) -> Value:
    size = F.squeeze(F.gather(F.shape(x), np.array([0])), np.array([0]))
    return F.mul(x, F.unsqueeze(F.cast(F.range(np.int64(0), size, np.int64(1)), to="float32"), np.array([1])))


def normalised(x: Value) -> Value:
    return F.layer_normalization(F.mat_mul(x, parameter(4, 8)), parameter(8), parameter(8), axis=-1)[0]


def by_itself(x: Value) -> Value:
    return F.mat_mul(x, F.transpose(x, perm=(1, 0)))


@pytest.mark.onednn
@in_one_item()
@pytest.mark.parametrize(
    "body",
    [pointwise, with_sizes, moved, broadcast, sliced, positions, normalised, by_itself],
    ids=lambda f: f.__name__,
)
def test_small_networks(body: Callable[[Value], Value]) -> None:
    net = gk.Model({"y": body(gk.input("x", ["N", 4]))})
    for name in net.params:
        net.params[name] = normal(*net.params[name].shape)
    executor = compare(net, [{"x": (n, 4)} for n in (3, 1, 6, 20, 200)], threads=2)
    empty = np.zeros((0, 4), np.float32)
    (found,) = executor.run({"x": empty}).values()
    (expected,) = net.compile().run({"x": empty}).values()
    np.testing.assert_array_equal(found, expected)


def test_one_row_is_a_view_where_more_are_none() -> None:
    """A transposition moves nothing when the first size is 1, as it was when the template was made."""
    x = gk.input("x", ["N", "M", 3])
    net = gk.Model({"y": F.relu(F.transpose(F.exp(x), perm=(1, 0, 2)))})
    compare(net, [{"x": s} for s in [(1, 5, 3), (1, 4, 3), (2, 4, 3), (4, 1, 3)]])


def test_what_is_not_a_number_passes() -> None:
    x = gk.input("x", ["N", 8])
    net = gk.Model({"y": F.relu(F.mat_mul(F.relu(x), parameter(8, 40)))})
    for name in net.params:
        net.params[name] = normal(*net.params[name].shape)
    executor = net.compile()
    for rows in (3, 4, 5):
        array = normal(rows, 8)
        array[1, 2], array[2, 3] = np.nan, np.inf
        (found,) = executor.run({"x": array}).values()
        (expected,) = net.compile().run({"x": array}).values()
        np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
        assert np.isnan(found[1]).all()


# --- sizes that do not fit ----------------------------------------------------------------------------


def raised(executor: Executor, feeds: Mapping[str, np.ndarray]) -> type[BaseException] | None:
    try:
        executor.run(feeds)
    except GraphkitError as error:
        return type(error)
    return None


@in_one_item()
@pytest.mark.parametrize(
    ("body", "fits", "misfits"),
    [
        (F.add, [((3, 4), (3, 4)), ((5, 4), (1, 4))], [((3, 4), (2, 4))]),
        (lambda a, b: F.add(F.mat_mul(a, F.transpose(b)), np.float32(1)), [((2, 3), (4, 3)), ((5, 6), (1, 6))],
         [((2, 3), (4, 5))]),
        (lambda a, b: F.relu(F.concat(a, b, axis=0)), [((2, 3), (4, 3)), ((5, 6), (1, 6))], [((2, 3), (4, 5))]),
        (lambda a, b: F.relu(F.reshape(F.exp(F.add(a, b)), np.array([-1, 6]))), [((2, 3), (2, 3)), ((4, 3), (4, 3))],
         [((3, 3), (3, 3))]),
        (lambda a, b: F.relu(F.conv(F.unsqueeze(a, np.array([0])), F.unsqueeze(b, np.array([0])))),
         [((2, 5), (2, 3)), ((1, 9), (1, 2))], [((2, 5), (3, 3)), ((2, 3), (2, 5))]),
    ],
    ids=["add", "matmul", "concat", "reshape", "conv"],
)  # fmt: skip
def test_sizes_that_contradict_each_other(body: Any, fits: Any, misfits: Any) -> None:
    a, b = gk.input("a", ["A", "B"]), gk.input("b", ["C", "D"])
    try:
        net = gk.Model({"y": body(a, b)})
    except TypeMismatch:
        pytest.skip("refused whatever the sizes")
    executor = net.compile()
    for left, right in [*fits, *misfits, *fits, *misfits]:
        feeds = {"a": normal(*left), "b": normal(*right)}
        fresh = net.compile()
        assert raised(executor, feeds) is raised(fresh, feeds)
        if (left, right) in fits:
            np.testing.assert_allclose(executor.run(feeds)["y"], fresh.run(feeds)["y"], rtol=1e-5)


def test_one_name_means_one_size() -> None:
    a, b = gk.input("a", ["N", 2]), gk.input("b", ["N"])
    executor = gk.Model(F.add(a, F.unsqueeze(b, np.array([1])))).compile()
    for n in (1, 2, 3):
        executor.run({"a": normal(n, 2), "b": normal(n)})
    with pytest.raises(InputError, match="dimension N is 4 in input 'a' and 3 in input 'b'"):
        executor.run({"a": normal(4, 2), "b": normal(3)})


def test_a_window_larger_than_the_image() -> None:
    x = gk.input("x", ["N", 1, "H", "W"])
    net = gk.Model(F.relu(F.conv(x, parameter(2, 1, 3, 3))))
    executor = net.compile()
    for size in (5, 6, 7):
        executor.run({"x": normal(1, 1, size, size)})
    with pytest.raises(TypeMismatch, match="the kernel size 3 is greater than the input size 1"):
        executor.run({"x": normal(1, 1, 1, 1)})


@pytest.mark.onednn
@in_one_item()
@pytest.mark.parametrize("width", ["W", "?4", f"?{(1 << 40) + 3}"])
def test_sizes_whose_expressions_are_large(width: str) -> None:
    """Each layer halves an image in two branches, so the expression of its size doubles with each layer."""

    def body(x: Value) -> Value:
        for number in range(5):
            w = gk.parameter(f"w{number}", (3, 3, 3, 3), "xavier_normal")
            halved = F.conv(x, w, strides=(2, 2), pads=(1, 1, 1, 1))
            pooled = F.max_pool(x, kernel_shape=(2, 2), strides=(2, 2))[0]
            x = F.tanh(F.add(halved, pooled))
        return F.reduce_mean(x, [2, 3])

    net = gk.Model({"y": body(gk.input("x", ["N", 3, "H", width]))})
    compare(net, [{"x": (1, 3, h, w)} for h, w in ((64, 64), (32, 96), (128, 32), (96, 64))])
    executor = net.compile()
    for h in (64, 96):
        executor.run({"x": normal(1, 3, h, 64)})
    with pytest.raises(TypeMismatch, match="do not broadcast"):
        executor.run({"x": normal(1, 3, 70, 64)})


@pytest.mark.onednn
def test_pools_that_round_up() -> None:
    def body(x: Value) -> Value:
        for number, (kernel, stride, pad) in enumerate([(3, 2, 0), (2, 2, 0), (2, 3, 1), (3, 2, 1)]):
            x = F.conv(x, gk.parameter(f"w{number}", (3, 3, 1, 1), "xavier_normal"))
            window = dict(kernel_shape=(kernel, kernel), strides=(stride, stride), pads=(pad,) * 4)
            x = F.max_pool(x, **window, ceil_mode=True)[0]
        return x

    net = gk.Model({"y": body(gk.input("x", ["N", 3, "H", "W"]))})
    compare(net, [{"x": (1, 3, h, h + 3)} for h in range(20, 40)])


# --- which graphs have one ----------------------------------------------------------------------------


@in_one_item()
@pytest.mark.parametrize(
    "make",
    [
        lambda x: F.non_zero(x),
        lambda x: F.mul(x, F.cast(F.size(F.non_zero(x)), to="float32")),
        lambda x: gk.cond(
            F.greater(F.reduce_max(x, keepdims=False), np.float32(0)),
            lambda: F.non_zero(x),
            lambda: F.non_zero(F.neg(x)),
        ),
    ],
    ids=["data decides", "inside", "data decides in a branch"],
)
def test_others_are_compiled(make: Callable[[Value], Value]) -> None:
    net = gk.Model({"y": make(gk.input("x", ["N", 3]))})
    compare(net, [{"x": (n, 3)} for n in (1, 2, 5)], native=False)


def test_an_output_that_is_an_input() -> None:
    x = gk.input("x", ["N"])
    executor = gk.Model({"x2": x, "y": F.exp(x)}).compile()
    for n in (1, 2, 3, 2):
        array = normal(n)
        np.testing.assert_array_equal(executor.run({"x": array})["x2"], array)


def test_changed_parameters_are_followed() -> None:
    net = gk.Model({"y": F.mat_mul(gk.input("x", ["N", 6]), gk.parameter("w", (6, 40)))})
    net.params["w"] = normal(6, 40)
    executor = net.compile()
    for rows in (2, 3, 4, 3):
        array, weights = normal(rows, 6), normal(6, 40)
        executor.params["w"] = weights
        np.testing.assert_allclose(executor.run({"x": array})["y"], array @ weights, rtol=1e-4, atol=1e-5)


def test_a_fed_parameter_has_a_template_of_its_own() -> None:
    net = gk.Model({"y": F.mat_mul(gk.input("x", ["N", 6]), gk.parameter("w", (6, 40)))})
    net.params["w"] = normal(6, 40)
    executor = net.compile()
    for rows in (2, 3, 4):
        array, weights = normal(rows, 6), normal(6, 40)
        stored = executor.params["w"].copy()
        np.testing.assert_allclose(executor.run({"x": array, "w": weights})["y"], array @ weights, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(executor.run({"x": array})["y"], array @ stored, rtol=1e-4, atol=1e-5)


def test_given_memory_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = gk.Model({"y": F.exp(gk.input("x", ["N", 4]))}).compile()
    for rows in (2, 3, 4):
        array, out = normal(rows, 4), np.zeros((rows, 4), np.float32)
        assert executor.run({"x": array}, out={"y": out})["y"] is out
        np.testing.assert_allclose(out, np.exp(array), rtol=1e-5)
    with pytest.raises(InputError, match=r"^output 'y' is float32\[5, 4\]; out\['y'\] is float32\[4, 4\]$"):
        executor.run({"x": normal(5, 4)}, out={"y": np.zeros((4, 4), np.float32)})


def test_outputs_are_selected() -> None:
    x = gk.input("x", ["N"])
    executor = gk.Model({"a": F.exp(x), "b": F.tanh(x)}).compile()
    for n in (1, 2, 3):
        array = normal(n)
        assert list(executor.run({"x": array}, outputs=["b"])) == ["b"]
        np.testing.assert_allclose(executor.run({"x": array})["a"], np.exp(array), rtol=1e-5)


@pytest.mark.onednn
def test_plans_and_profiles_of_sizes() -> None:
    net = gk.Model({"y": F.relu(F.mat_mul(gk.input("x", ["N", 6]), gk.parameter("w", (6, 40))))})
    net.params["w"] = normal(6, 40)
    executor = net.compile()
    for rows in (2, 3):
        executor.run({"x": normal(rows, 6)})
    assert isinstance(executor._choice.latest, SizedProgram)
    assert not executor.plan.fallbacks
    assert [str(o.type) for o in executor.plan.steps[-1].outputs] == ["float32[3, 40]"]
    with gk.profile() as profile:
        executor.run({"x": normal(3, 6)})
    assert [(o.operator, o.calls) for o in profile.operators] == [("ai.graphkit.FusedMatMul", 1)]


@pytest.mark.onednn
def test_a_program_of_a_template_needs_no_graph_of_its_own() -> None:
    """Parts of the template that are valid for every size are not built again."""
    net = gk.models.build("bert", vocab=50, width=64, heads=4, layers=4, length=40)
    executor = net.compile()
    for t in (3, 4):
        executor.run(make_feeds(net, shapes=dict.fromkeys(("x", "segments", "mask"), (2, t))).arrays)
    program = executor._choice.latest
    assert isinstance(program, SizedProgram)
    assert program._lowered is None
    template = executor._programs.builder._sized.popitem()[1].template  # type: ignore[union-attr]
    # Layers that are alike share their kernels.
    computed = [step for step in template._distinct_steps if step.context is not None]
    assert 0 < len(computed) < len(program.placement.steps) / 2


def test_the_first_size_is_compiled_for_itself() -> None:
    executor = gk.Model(F.exp(gk.input("x", ["N"]))).compile()
    executor.run({"x": normal(3)})
    assert isinstance(executor._choice.latest, Program)


def test_a_size_that_comes_often_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = gk.Model(F.exp(gk.input("x", ["N"]))).compile()
    executor.run({"x": normal(3)})
    for number in range(40):
        array = normal(4)
        np.testing.assert_allclose(executor.run({"x": array})["exp"], np.exp(array), rtol=1e-5)
        assert isinstance(executor._choice.latest, Program) == (number >= 32)
    count = len(executor._programs)
    monkeypatch.setattr("graphkit.executor.run.program_cache.COMPILED_SIZE_RATIO", 1 << 20)  # the cache is too small
    for _ in range(80):
        executor.run({"x": normal(5)})
    assert isinstance(executor._choice.latest, SizedProgram)
    assert len(executor._programs) == count + 1


def test_least_recently_used_kernel_of_a_node_is_dropped_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphkit.executor.lower.template._KEPT", 2)
    rows, columns = gk.input("rows", ["N", 3]), gk.input("columns", ["M", 3])
    executor = gk.Model({"a": gk.softmax(rows), "b": gk.reduce_sum(columns)}).compile()
    for n, m in ((9, 9), (4, 1), (5, 2), (4, 3), (6, 4)):
        executor.run({"rows": normal(n, 3), "columns": normal(m, 3)})
    (template,) = [b.template for b in executor._programs.builder._sized.values()]  # type: ignore[union-attr]
    assert _kept(template) == {"Softmax": [(4,), (6,)], "ReduceSum": [(3,), (4,)]}


def test_only_the_latest_kernel_is_kept_if_each_size_needs_another() -> None:
    executor = gk.Model(gk.softmax(gk.input("x", ["N", 3]))).compile()
    for n in (9, 4, 5, 6):
        np.testing.assert_allclose(executor.run({"x": np.zeros((n, 3), np.float32)})["softmax"], 1 / 3, rtol=1e-6)
    (template,) = [b.template for b in executor._programs.builder._sized.values()]  # type: ignore[union-attr]
    assert _kept(template) == {"Softmax": [(6,)]}


def _kept(template) -> dict[str, list[tuple[int, ...]]]:
    """The sizes of the kernels that a template keeps, by operator."""
    kept = zip(template._distinct_steps, template.programs.kept(), strict=True)
    return {step.node.op.name: list(map(tuple, sizes)) for step, sizes in kept}


def test_names_of_sizes_are_anybodys_text() -> None:
    x = Value(TensorType("float32", ("__import__('os')", "a b", 2)), "x")
    executor = Executor(Graph([x], [F.exp(F.reshape(x, np.array([-1, 2])))]), ParamStore({}, {}))
    for n in (1, 2, 3):
        assert executor(normal(n, 4, 2))[0].shape == (4 * n, 2)
