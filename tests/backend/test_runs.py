"""Runs of groups: sizes, parameters, training, threads, wrong results, and what happens if a backend fails."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import BackendError, BackendWarning, UnsupportedError
from graphkit.ops import F


def images(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, 3, 8, 8)).astype(np.float32)


def assert_equal(found: Any, wanted: Any, tolerance: float = 1e-5) -> None:
    """Compare outputs by name."""
    assert found.keys() == wanted.keys()
    for name in wanted:
        assert found[name].dtype == wanted[name].dtype
        np.testing.assert_allclose(found[name], wanted[name], rtol=tolerance, atol=tolerance)


def test_results_equal_those_of_graphkit(image_net, make) -> None:
    executor = image_net.compile(backends=make(supports=["Conv", "Relu", "Gemm"]))
    for count in (1, 3):
        feeds = {"x": images(count)}
        assert_equal(executor.run(feeds), image_net.run(feeds))


@pytest.mark.parametrize("options", [{"optimize": False}, {"inplace": False, "share": False}, {"deterministic": True}])
def test_options_of_compile(options: dict[str, Any], image_net, make) -> None:
    executor = image_net.compile(backends=make(supports=["Conv", "Relu"]), **options)
    assert_equal(executor.run({"x": images(2)}), image_net.run({"x": images(2)}))


def test_static_backend_compiles_once_per_size(image_net, make, parts) -> None:
    executor = image_net.compile(backends=make())
    for count in (1, 2, 1, 2, 3, 2):
        executor.run({"x": images(count)})
    assert [part.graph.outputs[0].shape[0] for part in parts] == [1, 2, 3]
    assert parts[0].name == "toy/0"
    assert set(parts[0].params) == set(image_net.params)


def test_dynamic_backend_compiles_once(image_net, make, parts) -> None:
    executor = image_net.compile(backends=make(dynamic=True))
    for count in (1, 2, 3):
        assert_equal(executor.run({"x": images(count)}), image_net.run({"x": images(count)}))
    (part,) = parts
    assert str(part.graph.outputs[0].shape[0]) == "N"


def test_number_of_kept_functions_is_limited(image_net, make) -> None:
    executor = image_net.compile(backends=make())
    for count in range(1, 20):
        executor.run({"x": images(count)})
    calls = executor._programs.builder._settings.backends
    assert {len(kept) for kept in calls._kept.values()} == {16}


def test_parameters_are_compiled_in_until_they_change_often(image_net, make, parts) -> None:
    executor = image_net.compile(backends=make(dynamic=True))
    for change in range(5):
        if change:
            image_net.params["conv_weight"] = np.full((4, 3, 3, 3), change, np.float32)
        for _ in range(2):
            assert_equal(executor.run({"x": images(2)}), image_net.run({"x": images(2)}), 1e-3)
    assert [len(part.params) for part in parts] == [len(image_net.params)] * 2 + [0]


def test_state_dict_changes_parameters_of_a_group(image_net, make) -> None:
    executor = image_net.compile(backends=make())
    executor.run({"x": images(2)})
    changed = {name: array + 0.5 for name, array in image_net.state_dict().items()}
    image_net.load_state_dict(changed)
    assert_equal(executor.run({"x": images(2)}), image_net.run({"x": images(2)}), 1e-4)


def test_arrays_that_graphkit_derives_from_parameters_are_never_stale(make, parts) -> None:
    """graphkit computes exp(w) once for each change of w, and gives it to the backend."""
    x, w = gk.input("x", ["N", 3]), gk.parameter("w", [3, 3])
    net = gk.Model({"y": gk.tanh(x @ gk.exp(w))}, seed=0)
    executor, feeds = net.compile(backends=make(supports=["MatMul", "Tanh"], dynamic=True)), {"x": np.ones((2, 3), "f")}
    for change in range(4):
        net.params["w"] = np.full((3, 3), -change, np.float32)
        np.testing.assert_allclose(executor.run(feeds)["y"], np.tanh(3 * np.exp(-change)) * np.ones((2, 3)), rtol=1e-5)
    assert [len(part.params) for part in parts] == [1, 1, 0]


def test_fed_parameter_reaches_the_backend(image_net, make) -> None:
    executor, feeds = image_net.compile(backends=make()), {"x": images(2), "fc_bias": np.arange(5, dtype=np.float32)}
    assert_equal(executor.run(feeds), image_net.compile().run(feeds))
    assert_equal(executor.run({"x": images(2)}), image_net.run({"x": images(2)}))


def losses(net: gk.Model, **options: Any) -> list[float]:
    rng = np.random.default_rng(0)
    trainer = gk.Trainer(net, "softmax_cross_entropy", gk.optim.SGD(0.05, momentum=0.9), seed=0, **options)
    return [float(trainer.step(images(6, step), rng.integers(0, 5, 6))) for step in range(10)]


@pytest.mark.parametrize("options", [{}, {"accumulate": 2}, {"recompute": "sqrt"}, {"clip_norm": 1.0}])
def test_training_equals_training_without_backend(options: dict[str, Any], make, parts) -> None:
    found, wanted = (losses(classifier(), backends=backends, **options) for backends in (make(supports=FORWARD), ()))
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert parts
    assert found[-1] != found[0]


FORWARD = ["Conv", "Relu", "Gemm", "BatchNormalization", "Flatten"]


def classifier() -> gk.Model:
    x = gk.input("x", ["N", 3, 8, 8])
    h = gk.relu(gk.nn.batch_norm(gk.nn.conv2d(x, 4, kernel=3, name="conv"), name="norm"))
    return gk.Model({"y": gk.nn.linear(gk.flatten(h), 5, name="fc")}, name="classifier", seed=1)


def test_training_gives_only_the_forward_pass_to_the_backend(make) -> None:
    trainer = gk.Trainer(classifier(), "softmax_cross_entropy", "adam", backends=make())
    decisions = trainer.executor.backend_decisions
    given = [each.operator for each in decisions if each.group]
    assert {"Conv", "Gemm"} <= set(given)
    assert not any("Grad" in name or "Update" in name for name in given)
    trained = {each.operator: each.reason for each in decisions}["ConvGradWeight"]
    assert trained == "toy: it is not part of the forward pass of the training step."


def test_evaluation_after_training_uses_the_trained_weights(make) -> None:
    net = classifier()
    trainer = gk.Trainer(net, "softmax_cross_entropy", gk.optim.SGD(0.1), backends=make(supports=FORWARD))
    targets = np.arange(6) % 5
    for _ in range(3):
        trainer.step(images(6), targets)
        found = trainer.evaluate((images(6), targets), batch_size=6)
        plain = gk.Trainer(net, "softmax_cross_entropy", gk.optim.SGD(0.1)).evaluate((images(6), targets), batch_size=6)
        assert list(found.values()) == pytest.approx(list(plain.values()), rel=1e-5)


@pytest.mark.parametrize("concurrent", [False, True])
def test_several_threads(concurrent: bool, image_net, make) -> None:
    executor = image_net.compile(threads=1, backends=make(concurrent=concurrent))
    wanted = {count: image_net.run({"x": images(count)}) for count in (1, 2, 3)}

    def work(count: int) -> None:
        for _ in range(5):
            assert_equal(executor.run({"x": images(count)}), wanted[count])

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, [1, 2, 3, 1, 2, 3]))


@pytest.mark.parametrize("count", [0, 1])
def test_empty_batch(count: int, image_net, make, parts) -> None:
    executor = image_net.compile(backends=make())
    assert_equal(executor.run({"x": images(count)}), image_net.run({"x": images(count)}))
    assert len(parts) == count


def test_sum_over_an_empty_axis(make) -> None:
    x = gk.input("x", ["N"])
    net = gk.Model({"y": gk.reduce_sum(gk.exp(x), keepdims=False)})
    assert net.compile(backends=make()).run({"x": np.zeros(0, np.float32)})["y"] == 0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int32"])
def test_element_types(dtype: str, make) -> None:
    x = gk.input("x", ["N", 3], dtype)
    net = gk.Model({"y": x @ gk.transpose(x) * 2 + 1})
    array = np.arange(6).reshape(2, 3).astype(gk.DType(dtype).numpy)
    executor = net.compile(backends=make(supports=["MatMul", "Transpose", "Mul"], check=True))
    found, wanted = executor.run({"x": array})["y"], net.run({"x": array})["y"]
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found.astype(np.float64), wanted.astype(np.float64))


def test_outputs_that_are_inputs_and_inner_values(make) -> None:
    x = gk.input("x", [2])
    inner = gk.exp(x)
    net = gk.Model({"x": x, "a": inner, "b": inner, "y": gk.tanh(inner)})
    feeds = {"x": np.array([0.5, 1.0], np.float32)}
    assert_equal(net.compile(backends=make()).run(feeds), net.run(feeds))


def test_equal_names_of_nodes(make) -> None:
    x = gk.input("x", [2])
    y = gk.exp(gk.tanh(gk.exp(x, name="same"), name="same"), name="same")
    net = gk.Model({"same": y, "exp": x + 1})
    feeds = {"x": np.array([0.5, 1.0], np.float32)}
    assert_equal(net.compile(backends=make(supports=["Exp", "Tanh"])).run(feeds), net.run(feeds))


def test_one_model_compiled_twice(image_net, make, parts) -> None:
    backend = make(dynamic=True)
    first, second = (image_net.compile(backends=backend) for _ in range(2))
    for executor in (first, second, first):
        assert_equal(executor.run({"x": images(2)}), image_net.run({"x": images(2)}))
    assert len(parts) == 2


def test_selected_outputs(image_net, make) -> None:
    executor = image_net.compile(backends=make(supports=["Conv", "Relu"]))
    wanted = image_net.run({"x": images(2)})
    assert_equal(executor.run({"x": images(2)}, ["h"]), {"h": wanted["h"]})
    target = np.empty_like(wanted["h"])
    executor.run({"x": images(2)}, ["h"], out={"h": target})
    np.testing.assert_allclose(target, wanted["h"], rtol=1e-5, atol=1e-5)


def test_plan_shows_the_backend(image_net, make) -> None:
    executor = image_net.compile(shapes={"x": [2, 3, 8, 8]}, backends=make(supports=["Conv", "Relu"]))
    kinds = {step.node: step.kernel for step in executor.plan.steps}
    assert kinds["toy/0"] == kinds["toy/1"] == "backend"
    assert executor.plan.fallbacks == ()


def test_gpu_is_refused_before_it_is_opened(image_net, make) -> None:
    with pytest.raises(UnsupportedError, match=r"on the CPU only: leave out device='cuda' \(--device\)"):
        image_net.compile("cuda", backends=make())


CASES: list[tuple[Callable[[Any], Any], str]] = [
    (lambda r: r[:1], "it returned 1 results; the group has 2"),
    (lambda r: (*r, r[0]), "it returned 3 results; the group has 2"),
    (lambda r: (r[0], r[1].astype("f8")), "result 'y' is float64[2, 5]; float32[2, 5] is expected"),
    (lambda r: (r[0], r[1][:1]), "result 'y' is float32[1, 5]; float32[2, 5] is expected"),
    (lambda r: (r[0], r[1].tolist()), "result 'y' is of type list; float32[2, 5] is expected"),
    (lambda r: (r[0], None), "result 'y' is of type NoneType"),
]


@pytest.mark.parametrize(("change", "message"), CASES)
def test_wrong_results_are_named_errors(change: Callable[[Any], Any], message: str, image_net, make) -> None:
    executor = image_net.compile(backends=make(change=change))
    with pytest.raises(BackendError) as raised:
        executor.run({"x": images(2)})
    text = str(raised.value).replace("'softmax'", "'y'")
    assert message in text
    assert text.startswith("backend 'toy', group 'toy/0' (nodes 'conv', 'norm', 'relu', 'conv2', 'relu_1', 'flatten' a")


def fail(*_: Any) -> Any:
    raise ValueError("no luck")


def test_failure_in_a_run_is_a_named_error(image_net, make) -> None:
    executor = image_net.compile(backends=make(supports=["Conv"], change=fail, fallback=True))
    with pytest.raises(BackendError, match=r"'toy/0' \(nodes 'conv'\): it failed in a run: ValueError: no luck"):
        executor.run({"x": images(2)})


def test_failure_of_compile_is_a_named_error(image_net) -> None:
    backend = gk.backend.Backend(name="bad", supports=lambda node: node.op.name == "Conv", compile=fail)
    message = (
        r"backend 'bad', group 'bad/0' \(nodes 'conv'\): it cannot compile the group: ValueError: no luck; fallback"
    )
    with pytest.raises(BackendError, match=message):
        image_net.compile(shapes={"x": [2, 3, 8, 8]}, backends=backend)


def test_fallback_computes_in_graphkit_with_a_warning(image_net) -> None:
    backend = gk.backend.Backend(name="bad", supports=lambda node: True, compile=fail, fallback=True)
    executor = image_net.compile(backends=backend)
    with pytest.warns(BackendWarning, match=r"backend 'bad', group 'bad/0' .* graphkit computes it: ValueError"):
        found = executor.run({"x": images(2)})
    assert_equal(found, image_net.run({"x": images(2)}))
    image_net.params["fc_bias"] = np.ones(5, np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = executor.run({"x": images(2)})
    assert_equal(found, image_net.run({"x": images(2)}))


def test_table_shows_groups_that_fell_back(image_net) -> None:
    backend = gk.backend.Backend(name="bad", supports=lambda node: True, compile=fail, fallback=True)
    executor = image_net.compile(backends=backend)
    assert gk.backend.explain(executor).startswith("8 nodes of 8 in 1 group")
    with pytest.warns(BackendWarning, match="group 'bad/0'"):
        executor.run({"x": images(1)})
    # No second warning: the tests turn warnings into errors.
    executor.run({"x": images(2)})
    table = gk.backend.explain(executor)
    assert table.startswith("0 nodes of 8 in 0 groups\n8 nodes in graphkit")
    assert table.endswith(": bad: it cannot compile group bad/0 (ValueError: no luck).")


def test_table_shows_fallback_for_some_shapes(image_net, make) -> None:
    good = make()

    def compile_part(part: gk.backend.Part) -> Any:
        return good.compile(part) if part.graph.outputs[0].shape[0] == 1 else fail()

    backend = gk.backend.Backend(name="some", supports=lambda node: True, compile=compile_part, fallback=True)
    executor = image_net.compile(backends=backend)
    executor.run({"x": images(1)})
    with pytest.warns(BackendWarning):
        executor.run({"x": images(2)})
    note = "some: for some input shapes, it cannot compile the group (ValueError: no luck). graphkit computes it then."
    assert note in gk.backend.explain(executor)


def test_backend_without_nodes_is_a_warning(image_net, make) -> None:
    backend, message = make(supports=[]), "no backend gets a node, so graphkit computes the whole graph. The reason for"
    with pytest.warns(BackendWarning, match=message) as compiled:
        image_net.compile(backends=backend)
    with pytest.warns(BackendWarning, match="for 1 of 6 nodes: toy: it does not support Conv here") as trained:
        gk.Trainer(classifier(), "softmax_cross_entropy", backends=backend)
    assert {each.filename for each in (*compiled, *trained)} == {__file__}


def test_compile_must_return_a_function(image_net) -> None:
    backend = gk.backend.Backend(name="bad", supports=lambda node: True, compile=lambda part: None)
    with pytest.raises(BackendError, match="compile must return a function, not None"):
        image_net.compile(backends=backend).run({"x": images(1)})


def test_check_finds_a_wrong_result(image_net, make) -> None:
    feeds = {"x": images(2)}
    assert_equal(image_net.compile(backends=make(check=True)).run(feeds), image_net.run(feeds))
    wrong = make(change=lambda results: (results[0], results[1] + np.float32(0.01)), check=True)
    with pytest.raises(BackendError, match=r"check=True: result .* differs from graphkit's: .* by more than"):
        image_net.compile(backends=wrong).run(feeds)


def test_check_finds_errors_of_small_values(make) -> None:
    x = gk.input("x", ["N"])
    wrong = make(change=lambda results: (results[0] + np.float32(1e-6),), check=True)
    with pytest.raises(BackendError, match=r"check=True: result .* differs from graphkit's"):
        gk.Model({"y": gk.tanh(x)}).compile(backends=wrong).run({"x": np.full(3, 1e-7, np.float32)})


def add_one(results: Any) -> Any:
    return tuple((np.asarray(r) + 1).astype(r.dtype) for r in results)


def test_check_finds_wrong_small_integers(make) -> None:
    x = gk.input("x", ["N", 4])
    net = gk.Model({"y": F.cast(F.arg_max(x, axis=1, keepdims=False), to="uint8")})
    with pytest.raises(BackendError, match="by more than 0"):
        net.compile(backends=make(change=add_one, check=True)).run({"x": np.ones((2, 4), np.float32)})


def test_check_allows_one_step_of_quantised_results(make) -> None:
    x, scale, zero = gk.input("x", ["N", 4]), np.float32(0.1), np.uint8(7)
    net = gk.Model({"y": F.reshape(F.quantize_linear(x, scale, zero), np.array([-1]))})
    feeds = {"x": np.ones((2, 4), np.float32)}
    assert (net.compile(backends=make(change=add_one, check=True)).run(feeds)["y"] == 18).all()
    wrong = make(change=lambda results: add_one(add_one(results)), check=True)
    with pytest.raises(BackendError, match=r"19 instead of 17 at .*, by more than 1"):
        net.compile(backends=wrong).run(feeds)


@in_one_item()
@pytest.mark.parametrize(
    ("found", "wanted", "differs"),
    [
        ([np.nan, 1], [np.nan, 1], False),
        ([np.nan, 1], [0, 1], True),
        ([np.inf, 1], [np.inf, 1], False),
        ([np.inf, 1], [-np.inf, 1], True),
        ([1000.5], [1000], False),
        ([0.1], [0], True),
        ([1e-30], [0], True),
        ([1e-40], [0], False),
    ],
)
def test_differences(found: list[float], wanted: list[float], differs: bool) -> None:
    from graphkit.executor.run.backend_calls import _difference

    assert bool(_difference(np.array(found, np.float32), np.array(wanted, np.float32))) is differs


def test_differences_of_integers() -> None:
    from graphkit.executor.run.backend_calls import _difference

    assert _difference(np.array([3], np.uint8), np.array([2], np.uint8))
    assert _difference(np.array([3], np.uint8), np.array([2], np.uint8), is_quantised=True) == ""
    assert _difference(np.array([2**60 + 1]), np.array([2**60]))
    assert _difference(np.array([3]), np.array([2])) == "3 instead of 2 at [0], by more than 0"
    assert _difference(np.zeros(0), np.zeros(0)) == ""
