"""The cost of shape inference, in function calls, grows linearly with the number of nodes."""

from __future__ import annotations

import cProfile
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from combinations import in_one_item
from onnx import TensorProto, helper

from graphkit.errors import TypeMismatch
from graphkit.ir import bounds, dims
from graphkit.ir.bounds import lower_bound, never_below
from graphkit.ir.graph import Graph, Value, topological
from graphkit.ir.types import TensorType
from graphkit.onnx_io.importer import import_model
from graphkit.ops import F, constant
from graphkit.passes.core.bind import bind


def tensor(*shape: Any, name: str = "x") -> Value:
    return Value(TensorType("float32", shape), name)


def i64(*elements: int) -> Any:
    return constant(np.array(elements, np.int64))


def sizes(*names: str) -> Any:
    return F.shape(tensor(*names))


def calls(function: Callable[[], Any]) -> tuple[int, Any]:
    """How many functions `function` calls, builtin ones included, and its result."""
    with cProfile.Profile(subcalls=False) as profile:
        result = function()
    return sum(entry.callcount for entry in profile.getstats()), result


def slices_of_one_axis(n: int) -> Any:
    x = tensor("N", 4)
    joined = F.concat(*(F.slice(x, i64(0), i64(k + 1), i64(0)) for k in range(n)), axis=0)
    return F.equal(F.shape(joined), i64(7, 4))


def slices_of_many_axes(n: int) -> Any:
    parts = [F.slice(tensor(f"N{k}", 4), i64(0), i64(k + 1), i64(0)) for k in range(n)]
    return F.less(F.shape(F.concat(*parts, axis=0)), sizes("M", "K"))


def slices_of_slices(n: int) -> Any:
    x = tensor("N")
    for k in range(n):
        x = F.slice(x, i64(1), i64(-1), i64(0), i64(2 if k % 3 else -1))
    return F.equal(F.shape(x), i64(0))


def slices_at_computed_places(n: int) -> Any:
    x, start = tensor("N"), sizes("K")
    for k in range(n):
        x = F.slice(x, F.div(start, i64(k + 2)), F.shape(x), i64(0))
    return F.equal(F.shape(x), i64(0))


def best_of_many(n: int) -> Any:
    x = tensor("N")
    parts = [F.top_k(x, F.min(F.shape(x), i64(10 + k)))[0] for k in range(n)]
    return F.equal(F.shape(F.concat(*parts, axis=0)), i64(1))


def unknown_sizes_joined_at_once(n: int) -> Any:
    found = [F.transpose(F.non_zero(tensor("N", name=f"x{k}"))) for k in range(n)]
    return F.reshape(F.concat(*found, axis=0), i64(-1))


def unknown_sizes_joined_one_by_one(n: int) -> Any:
    joined = F.transpose(F.non_zero(tensor("N")))
    for k in range(n):
        joined = F.concat(joined, F.transpose(F.non_zero(tensor("N", name=f"x{k}"))), axis=0)
        first = F.slice(F.shape(joined), i64(0), i64(1), i64(0))
        joined = F.reshape(joined, F.concat(first, i64(-1), axis=0))
    return joined


def parts_joined_again(n: int) -> Any:
    x = tensor("N", 4)
    for _ in range(n):
        x = F.concat(*F.split(x, None, num_outputs=4, axis=0)[:3], axis=0)
    return x


def many_parts(n: int) -> Any:
    return F.equal(F.shape(F.concat(*F.split(tensor("N", 4), None, num_outputs=n, axis=0), axis=0)), i64(3, 4))


def strides_and_pads(n: int) -> Any:
    x = tensor("N", 1, "H", "W")
    for _ in range(n):
        x = F.pad(F.max_pool(x, kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))[0], i64(0, 0, 1, 1, 0, 0, 1, 2))
    return x


def scaled_again_and_again(n: int) -> Any:
    x = tensor("N", 1, "H", "W")
    for _ in range(n):
        x = F.resize(x, None, constant(np.array([1, 1, 1.5, 1.2], np.float32)), None)
    return x


def reshaped_again_and_again(n: int) -> Any:
    x = tensor("N", "A", "B", "C")
    for k in range(n):
        kept = F.slice(F.shape(x), i64(k % 4), i64(k % 4 + 1), i64(0))
        x = F.reshape(x, F.concat(kept, i64(1), i64(-1), i64(1), axis=0))
    return x


def broadcast_one_by_one(n: int) -> Any:
    x = tensor("A")
    for k in range(n):
        x = F.add(x, tensor(f"A{k}", name=f"a{k}"))
    return x


def expanded(n: int) -> Any:
    x, wanted = tensor("N", "M"), sizes("N", "M")
    for k in range(n):
        wanted = F.where(F.equal(wanted, i64(-1, -1)), i64(1, 1), wanted)
        x = F.expand(x, wanted)
        wanted = F.add(F.shape(x), sizes(f"Q{k}", "R"))
        x = F.pad(x, F.concat(i64(0, 0), F.sub(wanted, F.shape(x)), axis=0))
    return x


def tiled(n: int) -> Any:
    x = tensor("N")
    for k in range(n):
        x = F.tile(x, F.div(F.add(sizes(f"K{k}"), sizes("K")), i64(2)))
    return x


def products_of_sums(n: int) -> Any:
    product = sizes("N")
    for k in range(n):
        product = F.mul(product, F.add(sizes(f"A{k}"), sizes(f"B{k}")))
    return product


def squares(n: int) -> Any:
    size = sizes("N")
    for _ in range(n):
        size = F.mul(size, size)
    return size


def squares_of_a_number(n: int) -> Any:
    number = i64(3)
    for _ in range(n):
        number = F.mul(number, number)
    return number


def nested_min_and_max(n: int) -> Any:
    a, b, c = sizes("A"), sizes("B"), sizes("C")
    m = a
    for k in range(n):
        m = F.div(F.add(F.min(F.add(m, b), F.max(m, F.sub(c, i64(k)))), a), i64(2))
    return F.greater(m, i64(0))


def sum_of_min_and_max(n: int) -> Any:
    total = sizes("N")
    for k in range(n):
        total = F.add(total, F.min(sizes(f"A{k}"), F.max(sizes(f"B{k}"), sizes("C"))))
    return F.less(total, sizes("Q"))


def quotients_and_remainders(n: int) -> Any:
    size = sizes("N")
    for _ in range(n):
        size = F.add(F.mul(F.div(F.add(size, i64(6)), i64(7)), i64(7)), F.mod(size, i64(5)))
    return F.equal(size, i64(3))


BUILDERS = [
    slices_of_one_axis,
    slices_of_many_axes,
    slices_of_slices,
    slices_at_computed_places,
    best_of_many,
    unknown_sizes_joined_at_once,
    unknown_sizes_joined_one_by_one,
    parts_joined_again,
    many_parts,
    strides_and_pads,
    scaled_again_and_again,
    reshaped_again_and_again,
    broadcast_one_by_one,
    expanded,
    tiled,
    products_of_sums,
    squares,
    squares_of_a_number,
    nested_min_and_max,
    sum_of_min_and_max,
    quotients_and_remainders,
]


def inference_and_binding(build: Callable[[int], Any], n: int) -> int:
    """Calls to infer the graph's types, and to infer them again on inputs of known sizes; no earlier graph helps."""
    for cached in (bounds._searched, dims._atom_text):
        cached.cache_clear()
    dims._anonymous._names.clear()
    count, result = calls(lambda: build(n))
    inputs = list({v: None for node in topological([result]) for v in node.operands if v.is_input})
    graph = Graph(inputs, [result])
    known = {graph.name_of(v): [1 if isinstance(d, dims.DimExpr) else d for d in v.tensor.known_shape] for v in inputs}
    return count + calls(lambda: bind(graph, known))[0]


@pytest.mark.parametrize("build", BUILDERS, ids=lambda f: f.__name__)
def test_inference_is_linear(build: Callable[[int], Any]) -> None:
    inference_and_binding(build, 3)  # what is imported or registered at first use
    # The expressions of a chain grow at its beginning; then they are as large as they get.
    small, large = inference_and_binding(build, 60), inference_and_binding(build, 120)
    assert large <= 3 * small
    assert large <= 120 * 40_000


@pytest.mark.full
@pytest.mark.parametrize("build", [strides_and_pads, scaled_again_and_again, slices_of_one_axis, broadcast_one_by_one])
def test_inference_of_long_chains_is_linear(build: Callable[[int], Any]) -> None:
    small, large = inference_and_binding(build, 500), inference_and_binding(build, 2_000)
    assert large <= 4.5 * small


def detections(classes: int) -> onnx.ModelProto:
    """The end of a single-shot detector: for each class the best boxes above a threshold, and all of them joined."""
    nodes: list[onnx.NodeProto] = []
    whole = {"zero": 0, "one": 1, "two": 2, "hundred": 100}
    initial = [helper.make_tensor(k, TensorProto.INT64, [1], [v]) for k, v in whole.items()]
    initial.append(helper.make_tensor("threshold", TensorProto.FLOAT, [], [0.4]))

    def node(kind: str, inputs: str, output: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, inputs.split(), output.split(), **attributes))
        return output.split()[0]

    boxes, scores, labels = [], [], []
    for c in range(classes):
        initial.append(helper.make_tensor(f"class{c}", TensorProto.INT64, [], [c]))
        score = node("Gather", f"scores class{c}", f"score{c}", axis=1)
        above = node("NonZero", node("Greater", f"{score} threshold", f"above{c}"), f"where{c}")
        kept = node("Squeeze", f"{above} zero", f"kept{c}")
        some = node("Gather", f"{score} {kept}", f"some{c}", axis=0)
        count = node("Min", f"{node('Shape', some, f'size{c}')} hundred", f"count{c}")
        best = node("TopK", f"{some} {count}", f"best{c} order{c}", axis=0)
        place = node("Gather", f"{kept} order{c}", f"place{c}", axis=0)
        cut = node("Slice", f"{node('Gather', f'boxes {place}', f'box{c}', axis=0)} zero hundred zero", f"cut{c}")
        label = node("Expand", f"class{c} {node('Shape', best, f'length{c}')}", f"label{c}")
        boxes.append(cut)
        scores.append(best)
        labels.append(label)
    for name, parts in {"all_boxes": boxes, "all_scores": scores, "all_labels": labels}.items():
        node("Concat", " ".join(parts), name, axis=0)
    total = node("Min", f"{node('Shape', 'all_scores', 'total')} hundred", "shown")
    node("TopK", f"all_scores {total}", "top_scores top_order", axis=0)
    for name in ("boxes", "labels"):
        node("Gather", f"all_{name} top_order", f"top_{name}", axis=0)
    inputs = [
        helper.make_tensor_value_info("boxes", TensorProto.FLOAT, ["A", 4]),
        helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["A", classes]),
    ]
    outputs = [
        helper.make_tensor_value_info("top_boxes", TensorProto.FLOAT, None),
        helper.make_tensor_value_info("top_labels", TensorProto.INT64, None),
    ]
    graph = helper.make_graph(nodes, "detections", inputs, outputs, initial)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_loading_a_detector_is_linear_in_its_classes() -> None:
    import_model(detections(2))
    small, large = (calls(lambda n=n: import_model(detections(n)))[0] for n in (100, 200))  # type: ignore[misc]
    assert large <= 2.3 * small


def test_a_bound_of_a_long_sum_is_found() -> None:
    n = dims.symbol("N")
    parts = [dims.dim_min(n, k) for k in range(1, 20)]
    total = sum(parts, start=-1)
    assert never_below(190, total + 1)
    assert never_below(19 * n, total + 1)
    assert not never_below(total, 0)
    assert lower_bound(total) == -1


def test_large_expressions_have_one_name() -> None:
    names = [dims.symbol(f"s{k}") for k in range(100)]
    once, again = (sum(names, start=0) for _ in range(2))
    assert once == again
    assert not dims.is_static(once)
    assert once.atoms <= dims.MAX_ATOMS
    large = dims.product([s + 1 for s in names])
    assert not dims.is_static(large)
    assert large.atoms <= dims.MAX_ATOMS


def test_sizes_that_no_tensor_can_have() -> None:
    with pytest.raises(TypeMismatch, match="2\\^63"):
        TensorType("float32", (1 << 63,))


@in_one_item()
@pytest.mark.parametrize(("dtype", "a", "b"), [("uint8", 250, 10), ("int8", 100, 100), ("int64", 2**62, 2**62)])
def test_known_elements_do_not_exceed_their_type(dtype: str, a: int, b: int) -> None:
    operands = [constant(np.array([v], dtype)) for v in (a, b)]
    assert F.add(*operands).tensor.value is None
    assert F.cast(F.add(*operands), to="int64").tensor.value is None


@in_one_item()
@pytest.mark.parametrize(("a", "b"), [(7, -2), (-7, 2), (-7, -2), (-(2**60) - 1, 2), (2**60 + 1, -2)])
def test_known_integers_divide_towards_zero(a: int, b: int) -> None:
    quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    assert F.div(i64(a), i64(b)).tensor.value == (quotient,)


def test_names_divide_by_negative_numbers_towards_zero() -> None:
    (value,) = F.div(sizes("N"), i64(-2)).tensor.value
    assert dims.evaluate(value, {"N": 7}) == -3
