"""gk.reduce_precision: nodes in float16, number of Casts, and results of ONNX Runtime."""

import itertools

import numpy as np
import onnx
import pytest
from combinations import in_one_item
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnx_networks import check, conv_net, floats, info, initializers, model, run

import graphkit as gk
from graphkit.errors import InputError, UnsupportedError, UsageError

node = helper.make_node
LOW = {TensorProto.FLOAT16, TensorProto.BFLOAT16}


def casts(proto):
    return [n for n in proto.graph.node if n.op_type == "Cast"]


def types(proto):
    """Element types of all values, by onnx's own inference."""
    found = onnx.shape_inference.infer_shapes(proto, strict_mode=True).graph
    every = (*found.value_info, *found.output, *found.input)
    return {v.name: v.type.tensor_type.elem_type for v in every} | {t.name: t.data_type for t in found.initializer}


def test_a_convolutional_network_in_float16(tmp_path):
    proto, x = conv_net(), floats(4, 3, 8, 8)
    helper.set_model_props(proto, {"author": "me"})
    onnx.save(proto, tmp_path / "net.onnx")
    found = gk.reduce_precision(tmp_path / "net.onnx", data=x)
    check(found.message)
    assert found.casts == len(casts(found.message)) == 4  # the input, GlobalAveragePool, and the output
    assert [(k.name, k.operator) for k in found.kept] == [("mean", "GlobalAveragePool")]
    kinds = types(found.message)
    assert [kinds[i.name] for i in (*found.message.graph.input, *found.message.graph.output)] == [TensorProto.FLOAT] * 2
    exact = run(proto, {"x": x})[0]
    np.testing.assert_allclose(run(found.message, {"x": x})[0], exact, rtol=1e-2, atol=1e-2 * np.abs(exact).max())
    assert all(a.dtype == np.float16 for n, a in initializers(found.message).items())
    assert found.message.metadata_props[0].value == "me"
    again = gk.verify(gk.load(proto), {"x": x}, against=found.message)
    assert again.passed


def test_bfloat16_equals_the_reference_of_onnx():
    proto, x = conv_net(), floats(4, 3, 8, 8)
    found = gk.reduce_precision(gk.load(proto), "bf16")
    check(found.message)
    exact = run(proto, {"x": x})[0]
    mine = found.model.run({"x": x})["y"]
    assert mine.dtype == np.float32
    np.testing.assert_allclose(mine, exact, atol=0.05 * np.abs(exact).max())
    assert {t.data_type for t in found.message.graph.initializer} == {TensorProto.BFLOAT16}
    products = model(
        [node("MatMul", ["x", "w"], ["h"]), node("Relu", ["h"], ["y"])], [("x", ["N", 4])], [("y", ["N", 3])],
        {"w": floats(4, 3)}, opset=22,
    )  # fmt: skip
    low = gk.reduce_precision(gk.load(products), "bf16")
    given = {"x": floats(5, 4)}
    peer = ReferenceEvaluator(low.message).run(None, given)[0]
    np.testing.assert_allclose(low.model.run(given)["y"], peer, rtol=2**-7, atol=2**-7)


def chain(*nodes, shape=("N", 4), arrays=None):
    """A model of nodes; its output is "y"."""
    return model(list(nodes), [("x", list(shape))], [("y", None)], {"w": floats(4, 4), **(arrays or {})})


def kinds_by_name(proto):
    found = types(proto)
    return {n.name: found[n.output[0]] in LOW for n in proto.graph.node if n.op_type != "Cast"}


def test_values_beyond_the_range_stay_float32():
    proto = chain(
        node("Mul", ["x", "c"], ["large"], "times"), node("Sub", ["large", "d"], ["s"], "minus"),
        node("Div", ["s", "c"], ["h"], "over"), node("MatMul", ["h", "w"], ["y"], "product"),
        arrays={"c": np.array(1e4, np.float32), "d": np.array(5e3, np.float32)},
    )  # fmt: skip
    small, large = floats(8, 4), 10 * floats(8, 4)
    assert gk.reduce_precision(gk.load(proto), data=0.1 * small).kept == ()
    found = gk.reduce_precision(gk.load(proto), data=large)
    assert {k.name for k in found.kept} == {"times", "minus", "over"}
    assert "'large' reaches" in found.kept[0].reason
    assert len(casts(found.message)) == 2
    exact = run(proto, {"x": large})[0]
    np.testing.assert_allclose(run(found.message, {"x": large})[0], exact, rtol=1e-2, atol=0.05)


@in_one_item()
@pytest.mark.parametrize(
    ("value", "why"), [(-1e5, "contains 1e"), (-3.4e38, "contains 3.4e"), (1e-12, "is at most 1e-12")]
)
def test_constants_that_float16_cannot_represent_stay_float32(value, why):
    proto = chain(
        node("Max", ["x", "c"], ["h"], "bound"), node("MatMul", ["h", "w"], ["y"], "product"),
        arrays={"c": np.array(value, np.float32)},
    )  # fmt: skip
    found = gk.reduce_precision(gk.load(proto), data=0.5 * floats(3, 4))
    assert [k.name for k in found.kept if why in k.reason] == ["bound"]
    assert initializers(found.message)["c"].dtype == np.float32


def test_nodes_without_finite_values_stay_float32():
    proto = chain(node("Mul", ["x", "x"], ["h"], "square"), node("MatMul", ["h", "w"], ["y"], "product"))
    net = gk.load(proto)
    assert ("product", "MatMul") in gk.reduce_precision(net, data=floats(3, 4)).lowered
    with pytest.raises(UnsupportedError, match=r"product \(MatMul\): 'h' has no finite element on the data"):
        gk.reduce_precision(net, data=np.full((3, 4), 1e30, np.float32))
    some = np.concatenate([floats(3, 4), np.full((1, 4), 1e30, np.float32)])
    assert ("product", "MatMul") in gk.reduce_precision(net, data=some).lowered  # infinity is not counted


@pytest.mark.parametrize("data", [floats(0, 4), {"x": floats(0, 4)}], ids=["array", "dict"])
def test_data_without_samples_are_an_error(data):
    net = gk.load(chain(node("MatMul", ["x", "w"], ["y"])))
    with pytest.raises(InputError, match="no samples"):
        gk.reduce_precision(net, data=data)


def test_sums_and_named_nodes_stay_float32():
    proto = chain(
        node("MatMul", ["x", "w"], ["a"], "one"), node("Softmax", ["a"], ["b"], "soft", axis=-1),
        node("MatMul", ["b", "w"], ["c"], "two"), node("MatMul", ["c", "w"], ["y"], "three"),
    )  # fmt: skip
    found = gk.reduce_precision(gk.load(proto), data=floats(3, 4), keep_float32=["thr*"])
    assert kinds_by_name(found.message) == {"one": True, "soft": False, "two": True, "three": False}
    assert initializers(found.message)["w"].dtype == np.float32  # both forms are stored
    assert initializers(found.message)["w_float16"].dtype == np.float16
    with pytest.raises(UsageError, match=r"keep_float32 .--keep-float32. 'thrid': no node"):
        gk.reduce_precision(gk.load(proto), data=floats(3, 4), keep_float32=["thrid"])


def fewest(count, edges, fixed):
    """The smallest number of Casts over all assignments, by trying them all. edges: producer (-1: input), readers."""
    best = None
    free = [i for i in range(count) if i not in fixed]
    for choice in itertools.product([False, True], repeat=len(free)):
        low = {**fixed, **dict(zip(free, choice, strict=True)), -1: False}
        cost = sum(any(low[r] is not low[p] for r in readers) for p, readers in edges)
        best = cost if best is None else min(best, cost)
    return best


@in_one_item()
@pytest.mark.parametrize("seed", [*range(5), *(pytest.param(seed, marks=pytest.mark.full) for seed in range(5, 40))])
def test_there_are_as_few_casts_as_possible(seed):
    """Random graphs of layers, sums and operators that exist in either precision, against all assignments."""
    rng = np.random.default_rng(seed)
    names, nodes, edges, fixed = ["x"], [], {"x": set()}, {}
    for i in range(9):
        kind = ["Add", "Relu", "MatMul", "Softmax", "Mul", "Neg"][rng.integers(6)]
        a, b = (names[max(0, len(names) - 1 - rng.integers(4))] for _ in range(2))
        operands = [a, b] if kind in ("Add", "Mul") else [a, "w"] if kind == "MatMul" else [a]
        for name in operands:
            if name != "w":
                edges[name].add(i)
        nodes.append(node(kind, operands, [f"v{i}"], f"n{i}"))
        names.append(f"v{i}")
        edges[f"v{i}"] = set()
        fixed |= {i: True} if kind == "MatMul" else {i: False} if kind == "Softmax" else {}
    unread = [name for name in names if not edges[name]]
    proto = model(nodes, [("x", [4, 4])], [info(name, [4, 4]) for name in unread if name != "x"], {"w": floats(4, 4)})
    for name in unread:
        edges[name].add(-1)
    if True not in fixed.values():
        with pytest.raises(UnsupportedError):
            # Without a layer, nothing needs the lower precision.
            gk.reduce_precision(gk.load(proto), data={"x": floats(4, 4)})
        return
    found = gk.reduce_precision(gk.load(proto), data={"x": 0.1 * floats(4, 4)})
    check(found.message)
    given = [(int(name[1:]) if name != "x" else -1, readers) for name, readers in edges.items()]
    measured = {i: False for i in range(9) if any(k.name == f"n{i}" for k in found.kept)}
    assert len(casts(found.message)) == found.casts == fewest(9, given, fixed | measured)
    exact = run(proto, {"x": 0.1 * floats(4, 4)})
    for a, b in zip(exact, run(found.message, {"x": 0.1 * floats(4, 4)}), strict=True):
        np.testing.assert_allclose(a, b, rtol=0.05, atol=0.01 * max(1, np.abs(a).max()))


def test_branches_read_float32():
    then = helper.make_graph([node("Add", ["h", "h"], ["m"], "inside")], "then", [], [info("m", None)])
    other = helper.make_graph([node("Exp", ["h"], ["n"])], "else", [], [info("n", None)])
    nodes = [
        node("MatMul", ["x", "w"], ["h"], "one"), node("If", ["c"], ["i"], "if", then_branch=then, else_branch=other),
        node("MatMul", ["i", "w"], ["y"], "two"),
    ]  # fmt: skip
    proto = model(nodes, [("x", ["N", 4]), info("c", [], TensorProto.BOOL)], [("y", None)], {"w": floats(4, 4)})
    for c in (True, False):
        feeds = {"x": 0.2 * floats(3, 4), "c": np.array(c)}
        found = gk.reduce_precision(gk.load(proto), data=feeds)
        assert kinds_by_name(found.message)["one"]
        exact = run(proto, feeds)[0]
        np.testing.assert_allclose(run(found.message, feeds)[0], exact, rtol=1e-2, atol=1e-2)


def test_outputs_that_other_nodes_read_keep_their_names():
    proto = chain(node("MatMul", ["x", "w"], ["y"], "one"), node("MatMul", ["y", "w"], ["z"], "two"))
    proto.graph.output.append(info("z", None))
    found = gk.reduce_precision(gk.load(proto), data=floats(3, 4))
    assert [o.name for o in found.message.graph.output] == ["y", "z"]
    assert found.casts == 3
    x = {"x": floats(3, 4)}
    for a, b in zip(run(proto, x), run(found.message, x), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-2, atol=2e-2)


def test_casts_of_the_model_are_lowered():
    """A Cast from integers makes float16 at once."""
    nodes = [node("Cast", ["i"], ["f"], "cast", to=TensorProto.FLOAT), node("MatMul", ["f", "w"], ["y"], "one")]
    proto = model(nodes, [info("i", ["N", 4], TensorProto.INT64)], [("y", None)], {"w": floats(4, 4)})
    found = gk.reduce_precision(gk.load(proto), data={"i": np.arange(8).reshape(2, 4)})
    check(found.message)
    assert found.casts == 1
    assert [n.attribute[0].i for n in casts(found.message)] == [TensorProto.FLOAT16, TensorProto.FLOAT]


def test_models_without_such_nodes_and_wrong_arguments():
    with pytest.raises(UnsupportedError, match="no node would compute in fp16"):
        gk.reduce_precision(gk.load(chain(node("Softmax", ["x"], ["y"]))), data=floats(3, 4))
    quantised = gk.quantize(gk.load(conv_net()), floats(2, 3, 8, 8))
    with pytest.raises(UnsupportedError, match="no node would compute in fp16"):
        gk.reduce_precision(quantised.model, data=floats(2, 3, 8, 8))
    net = gk.load(chain(node("MatMul", ["x", "w"], ["y"])))
    with pytest.raises(UsageError, match="precision must be fp16 or bf16"):
        gk.reduce_precision(net, "f16", data=floats(3, 4))
    with pytest.raises(UsageError, match="needs data"):
        gk.reduce_precision(net)
    with pytest.raises(UsageError, match="bf16 needs opset 22"):
        gk.reduce_precision(net, "bf16", opset=17)
