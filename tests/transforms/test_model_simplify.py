"""Simplified models have the results of the originals in ONNX Runtime, with fewer nodes of the same opset."""

import numpy as np
import onnx
import onnxruntime
import pytest
from combinations import in_one_item
from onnx import TensorProto, helper, numpy_helper

import graphkit as gk
from graphkit.errors import InputError, UnsupportedError, UsageError
from graphkit.transforms.simplify import simplify_onnx

RNG = np.random.default_rng(0)


def info(name, shape, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes, inputs, outputs, constants=None, opset=17, ir=8):
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in (constants or {}).items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    made.ir_version = ir
    return made


def write(path, made):
    path.write_bytes(made.SerializeToString())
    return path


def simplified(tmp_path, made, **options):
    return simplify_onnx(write(tmp_path / "model.onnx", made), **options)


def run(message, feeds):
    session = onnxruntime.InferenceSession(message.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def check(found, feeds, *, operators=None, count=None, exact=True):
    """Compare the original with the result in ONNX Runtime, and check the result's nodes."""
    if _is_complete(found.original):
        onnx.checker.check_model(onnx.shape_inference.infer_shapes(found.message))
    assert found.message.opset_import == found.original.opset_import
    for a, b in zip(run(found.original, feeds), run(found.message, feeds), strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        if exact:
            np.testing.assert_array_equal(a, b)
        else:
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    names = [o.name for o in found.original.graph.output]
    assert [o.name for o in found.message.graph.output] == names
    if operators is not None:
        assert [n.op_type for n in found.message.graph.node] == operators
    if count is not None:
        assert found.after.node_count == count


def _is_complete(message):
    """Whether onnx's checker accepts a model: it demands shapes of all outputs, which ONNX itself does not."""
    try:
        onnx.checker.check_model(onnx.shape_inference.infer_shapes(message))
    except onnx.checker.ValidationError:
        return False
    return True


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def node(kind, inputs, outputs, **attributes):
    return helper.make_node(kind, inputs.split(","), outputs.split(","), **attributes)


# --- nodes that do nothing, by operator ------------------------------------------------------------------

IDENTITIES = {
    "identity": ([node("Identity", "x", "a")], {}),
    "dropout": ([node("Dropout", "x", "a")], {}),
    "dropout_false": ([node("Dropout", "x,r,t", "a")], {"r": np.float32(0.5), "t": np.array(False)}),
    "cast": ([node("Cast", "x", "a", to=TensorProto.FLOAT)], {}),
    "cast_back": ([node("Cast", "x", "b", to=TensorProto.DOUBLE), node("Cast", "b", "a", to=TensorProto.FLOAT)], {}),
    "transposes": ([node("Transpose", "x", "b", perm=[0, 2, 1]), node("Transpose", "b", "a", perm=[0, 2, 1])], {}),
    "reshape": ([node("Reshape", "x,s", "a")], {"s": np.array([0, 0, 0])}),
    "reshape_back": (
        [node("Reshape", "x,s", "b"), node("Reshape", "b,t", "a")],
        {"s": np.array([-1, 12]), "t": np.array([-1, 3, 4])},
    ),
    "squeeze": ([node("Unsqueeze", "x,i", "b"), node("Squeeze", "b,i", "a")], {"i": np.array([1])}),
    "slice": ([node("Slice", "x,b,e,i", "a")], {"b": np.array([0]), "e": np.array([99]), "i": np.array([2])}),
    "pad": ([node("Pad", "x,p", "a")], {"p": np.zeros(6, np.int64)}),
    "expand": ([node("Expand", "x,s", "a")], {"s": np.array([1, 3, 1])}),
    "tile": ([node("Tile", "x,s", "a")], {"s": np.array([1, 1, 1])}),
    "concat": ([node("Concat", "x", "a", axis=1)], {}),
    "sum": ([node("Sum", "x", "a")], {}),
    "add_0": ([node("Add", "z,x", "a")], {"z": np.float32(0)}),
    "sub_0": ([node("Sub", "x,z", "a")], {"z": np.zeros((3, 4), np.float32)}),
    "mul_1": ([node("Mul", "x,o", "a")], {"o": np.ones(4, np.float32)}),
    "neg_twice": ([node("Neg", "x", "b"), node("Neg", "b", "a")], {}),
    "mul_minus_1_twice": ([node("Mul", "x,m", "b"), node("Mul", "n,b", "a")], {
        "m": np.float32([-1]), "n": np.full((3, 4), np.float32(-1)),
    }),
    "neg_of_mul_minus_1": ([node("Mul", "m,x", "b"), node("Neg", "b", "a")], {"m": np.float32(-1)}),
    "div_1": ([node("Div", "x,o", "a")], {"o": np.float32(1)}),
    "pow_1": ([node("Pow", "x,o", "a")], {"o": np.float32(1)}),
    "where": ([node("Where", "c,x,z", "a")], {"c": np.ones((3, 1), bool), "z": np.float32(3)}),
    "resize": ([node("Resize", "x,,s", "a", mode="linear")], {"s": np.ones(3, np.float32)}),
}  # fmt: skip


@in_one_item()
@pytest.mark.parametrize("name", IDENTITIES)
def test_nodes_that_do_nothing_are_removed(tmp_path, name):
    nodes, constants = IDENTITIES[name]
    made = model([*nodes, node("Relu", "a", "y")], [info("x", ["N", 3, 4])], [info("y", None)], constants)
    x = floats(2, 3, 4)
    x[0, 0, 0] = np.nan
    x[1, 0, 0] = -np.inf
    check(simplified(tmp_path, made), {"x": x}, operators=["Relu"])


@in_one_item()
@pytest.mark.parametrize("name", IDENTITIES)
def test_outputs_keep_their_names(tmp_path, name):
    """The removed node computes the output, and its operand is the result of another node."""
    nodes, constants = IDENTITIES[name]
    first = [helper.make_node(n.op_type, ["h" if i == "x" else i for i in n.input], n.output) for n in nodes]
    for copy, original in zip(first, nodes, strict=True):
        copy.attribute.extend(original.attribute)
    made = model([node("Relu", "x", "h"), *first], [info("x", ["N", 3, 4])], [info("a", None)], constants)
    check(simplified(tmp_path, made), {"x": floats(2, 3, 4)}, operators=["Relu"])


DIFFERENT = {
    "add_1": ([node("Add", "x,c", "a")], {"c": np.float32(1)}),
    "mul_broadcast": ([node("Mul", "x,c", "a")], {"c": np.ones((2, 1, 3, 4), np.float32)}),
    "sub_from_0": ([node("Sub", "c,x", "a")], {"c": np.float32(0)}),
    "reversed": (
        [node("Slice", "x,b,e,i,s", "a")],
        {"b": np.array([-1]), "e": np.array([-99]), "i": np.array([2]), "s": np.array([-1])},
    ),
    "shifted": ([node("Pad", "x,p", "a")], {"p": np.array([0, 0, 1, 0, 0, -1])}),
    "rounded": ([node("Cast", "x", "b", to=TensorProto.FLOAT16), node("Cast", "b", "a", to=TensorProto.FLOAT)], {}),
    "transpose": ([node("Transpose", "x", "a", perm=[0, 2, 1])], {}),
    "mask": ([node("Dropout", "x", "b,m"), node("Where", "m,b,b", "a")], {}),
}  # fmt: skip


@in_one_item()
@pytest.mark.parametrize("name", DIFFERENT)
def test_similar_nodes_stay(tmp_path, name):
    nodes, constants = DIFFERENT[name]
    made = model([*nodes, node("Relu", "a", "y")], [info("x", ["N", 3, 4])], [info("y", None)], constants)
    check(simplified(tmp_path, made), {"x": floats(2, 3, 4)}, count=len(nodes) + 1)


# --- constants and shapes ---------------------------------------------------------------------------------


def flatten_by_shape():
    """Reshape x to [N, -1], with the sizes computed from the shape of x as exporters do."""
    return [
        node("Shape", "x", "s"), node("Constant", "", "zero", value_int=0), node("Gather", "s,zero", "n"),
        node("Constant", "", "axes", value_ints=[0]), node("Unsqueeze", "n,axes", "n1"),
        node("Constant", "", "rest", value_ints=[-1]), node("Concat", "n1,rest", "t", axis=0),
        node("Reshape", "x,t", "y"),
    ]  # fmt: skip


def without_absent(nodes):
    for item in nodes:
        if list(item.input) == [""]:
            del item.input[:]
    return nodes


def test_shape_arithmetic_with_symbolic_sizes_becomes_one_reshape(tmp_path):
    made = model(without_absent(flatten_by_shape()), [info("x", ["N", 3, 4])], [info("y", None)])
    found = simplified(tmp_path, made)
    for n in (1, 5):
        check(found, {"x": floats(n, 3, 4)}, operators=["Reshape"])


def test_fixed_shapes_fold_further(tmp_path):
    nodes = [node("Shape", "x", "s"), node("Cast", "s", "f", to=TensorProto.FLOAT), node("ReduceSum", "f", "t"),
             node("Mul", "x,t", "y")]  # fmt: skip
    made = model(nodes, [info("x", ["N", "M"])], [info("y", ["N", "M"])])
    assert simplified(tmp_path, made).after.node_count == 4
    found = simplified(tmp_path, made, shapes={"x": [2, 5]})
    check(found, {"x": floats(2, 5)}, operators=["Mul"])
    assert [d.dim_value for d in found.message.graph.input[0].type.tensor_type.shape.dim] == [2, 5]
    assert [d.dim_value for d in found.message.graph.output[0].type.tensor_type.shape.dim] == [2, 5]


@in_one_item()
@pytest.mark.parametrize(
    ("shapes", "words"),
    [({"z": [1]}, "no input 'z'"), ({"x": [1]}, "does not fit"), ({"x": [2, 4]}, "does not fit"),
     ({"x": [2, 3], "w": [4]}, "'N' gets the sizes 2 and 4")],
)  # fmt: skip
def test_shapes_that_do_not_fit(tmp_path, shapes, words):
    made = model([node("Add", "x,w", "y")], [info("x", ["N", 3]), info("w", ["N"])], [info("y", None)])
    with pytest.raises(InputError, match=words):
        simplify_onnx(write(tmp_path / "m.onnx", made), shapes=shapes)


def test_constant_nodes_are_computed(tmp_path):
    c = floats(4, 4)
    nodes = [node("MatMul", "c,c", "d"), node("Sqrt", "d", "e"), node("Add", "x,e", "y")]
    made = model(nodes, [info("x", [4, 4])], [info("y", None)], {"c": np.abs(c)})
    check(simplified(tmp_path, made), {"x": c}, operators=["Add"], exact=False)


def test_constants_that_make_the_file_large_stay_computed(tmp_path):
    nodes = [node("ConstantOfShape", "s", "z"), node("Add", "z,o", "p"), node("Sub", "x,p", "y")]
    made = model(nodes, [info("x", [1000, 600])], [info("y", None)], {"s": np.array([1000, 600]), "o": np.float32(1)})
    found = simplified(tmp_path, made)
    assert found.after.node_count == 3
    assert found.after.nbytes < 10_000
    folded = simplified(tmp_path, made, fold_limit="3MB")
    check(folded, {"x": floats(1000, 600)}, operators=["Sub"])
    assert simplified(tmp_path, made, fold_limit=0).after.node_count == 3


@pytest.mark.parametrize("limit", [-1, "much"])
def test_bad_fold_limits(tmp_path, limit):
    with pytest.raises(UsageError, match="fold_limit"):
        gk.simplify(write(tmp_path / "m.onnx", model([node("Relu", "x", "y")], [info("x", [1])], [info("y", None)])),
                    fold_limit=limit)  # fmt: skip


def test_constant_outputs_are_constant_nodes(tmp_path):
    nodes = [node("Shape", "x", "s"), node("Add", "s,s", "y"), node("Relu", "x", "z")]
    made = model(nodes, [info("x", [2, 3])], [info("y", None, TensorProto.INT64), info("z", None)])
    check(simplified(tmp_path, made), {"x": floats(2, 3)}, operators=["Constant", "Relu"])


def test_random_nodes_are_neither_folded_nor_merged(tmp_path):
    nodes = [helper.make_node("RandomNormal", [], [n], shape=[2, 3], seed=1.0) for n in ("a", "b")]
    made = model([*nodes, node("Sub", "a,b", "c"), node("Add", "c,x", "y")], [info("x", [2, 3])], [info("y", None)])
    assert simplified(tmp_path, made).after.node_count == 4


def test_quantised_weights_stay_quantised(tmp_path):
    nodes = [node("DequantizeLinear", "w,s,z", "d"), node("MatMul", "x,d", "y")]
    constants = {"w": RNG.integers(0, 255, (3, 4), np.uint8), "s": np.float32(0.1), "z": np.uint8(3)}
    made = model(nodes, [info("x", ["N", 3])], [info("y", None)], constants)
    check(simplified(tmp_path, made), {"x": floats(2, 3)}, operators=["DequantizeLinear", "MatMul"])


# --- merging ----------------------------------------------------------------------------------------------


def test_equal_nodes_and_initialisers_are_merged(tmp_path):
    nodes = [node("Add", "x,w", "a"), node("Add", "x,v", "b"), node("Mul", "a,b", "y")]
    w = floats(4)
    made = model(nodes, [info("x", ["N", 4])], [info("y", None)], {"w": w, "v": w})
    found = simplified(tmp_path, made)
    check(found, {"x": floats(2, 4)}, operators=["Add", "Mul"])
    assert found.after.initializers == 1


def test_two_outputs_of_equal_nodes_keep_both_names(tmp_path):
    nodes = [node("Relu", "x", "y"), node("Relu", "x", "z"), node("Identity", "y", "w")]
    made = model(nodes, [info("x", ["N", 4])], [info("y", None), info("z", None), info("w", None)])
    check(simplified(tmp_path, made), {"x": floats(2, 4)})


def test_unreachable_parts_are_dropped(tmp_path):
    nodes = [node("Relu", "x", "y"), node("Exp", "x", "unused")]
    made = model(nodes, [info("x", ["N"])], [info("y", None)], {"w": floats(100)})
    found = simplified(tmp_path, made)
    check(found, {"x": floats(3)}, operators=["Relu"])
    assert found.after.initializers == 0


# --- products ---------------------------------------------------------------------------------------------


def statistics(channels):
    return {"s": floats(channels), "b": floats(channels), "m": floats(channels), "v": np.abs(floats(channels)) + 0.1}


PRODUCTS = {
    "conv": ([node("Conv", "x,w", "h")], {"w": floats(6, 4, 3, 3)}, 6),
    "conv_bias": ([node("Conv", "x,w,c", "h")], {"w": floats(6, 4, 3, 3), "c": floats(6)}, 6),
    "grouped": ([node("Conv", "x,w", "h", group=2)], {"w": floats(6, 2, 3, 3)}, 6),
    "transposed": ([node("ConvTranspose", "x,w,c", "h")], {"w": floats(4, 5, 3, 3), "c": floats(5)}, 5),
    "transposed_grouped": ([node("ConvTranspose", "x,w", "h", group=2)], {"w": floats(4, 3, 3, 3)}, 6),
}


@in_one_item()
@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("after", ["BatchNormalization", "Mul", "Add", "Sub", "Div"])
def test_what_follows_a_convolution_is_folded(tmp_path, name, after):
    nodes, constants, channels = PRODUCTS[name]
    if after == "BatchNormalization":
        nodes, constants = [*nodes, node(after, "h,s,b,m,v", "y", epsilon=1e-3)], constants | statistics(channels)
    else:
        nodes, constants = [*nodes, node(after, "h,f", "y")], constants | {"f": floats(channels, 1, 1)}
    made = model(nodes, [info("x", ["N", 4, 8, 8])], [info("y", None)], constants)
    check(simplified(tmp_path, made), {"x": floats(2, 4, 8, 8)}, count=1, exact=False)


@in_one_item()
@pytest.mark.parametrize("attributes", [{}, {"transB": 1}, {"alpha": 0.5, "beta": 2.0}])
@pytest.mark.parametrize("bias", [(5,), (1, 5), (), None])
def test_normalisation_is_folded_into_gemm(tmp_path, attributes, bias):
    constants = {"w": floats(5, 4) if attributes.get("transB") else floats(4, 5), **statistics(5)}
    names = "x,w" if bias is None else "x,w,c"
    if bias is not None:
        constants["c"] = floats(*bias) if bias else np.float32(0.7)
    nodes = [node("Gemm", names, "h", **attributes), node("BatchNormalization", "h,s,b,m,v", "y")]
    made = model(nodes, [info("x", ["N", 4])], [info("y", None)], constants)
    check(simplified(tmp_path, made), {"x": floats(3, 4)}, operators=["Gemm"], exact=False)


@pytest.mark.parametrize("shape", [(3, 5), (3, 1)])
def test_a_bias_per_row_stays(tmp_path, shape):
    constants = {"w": floats(4, 5), "c": floats(*shape), **statistics(5)}
    nodes = [node("Gemm", "x,w,c", "h"), node("BatchNormalization", "h,s,b,m,v", "y")]
    made = model(nodes, [info("x", [3, 4])], [info("y", None)], constants)
    check(simplified(tmp_path, made), {"x": floats(3, 4)}, count=2, exact=False)


def test_calls_of_functions_that_draw_are_not_merged(tmp_path):
    made = model([helper.make_node("F", ["x"], [n], domain="local") for n in "ab"] + [node("Sub", "a,b", "y")],
                 [info("x", [2, 3])], [info("y", [2, 3])])  # fmt: skip
    draw = helper.make_node("RandomNormalLike", ["v"], ["w"])
    opsets = [helper.make_opsetid("", 17)]
    made.functions.append(helper.make_function("local", "F", ["v"], ["w"], [draw], opsets))
    made.opset_import.add(domain="local", version=1)
    assert simplified(tmp_path, made).after.node_count == 3


def test_product_and_sum_become_gemm(tmp_path):
    nodes = [node("MatMul", "x,w", "h"), node("Add", "c,h", "y")]
    made = model(nodes, [info("x", ["N", 4])], [info("y", None)], {"w": floats(4, 5), "c": floats(5)})
    check(simplified(tmp_path, made), {"x": floats(3, 4)}, operators=["Gemm"], exact=False)


def test_products_of_three_axes_stay(tmp_path):
    nodes = [node("MatMul", "x,w", "h"), node("Add", "c,h", "y")]
    made = model(nodes, [info("x", ["N", 2, 4])], [info("y", None)], {"w": floats(4, 5), "c": floats(5)})
    check(simplified(tmp_path, made), {"x": floats(3, 2, 4)}, operators=["MatMul", "Add"])


def test_a_convolution_that_two_nodes_read_stays(tmp_path):
    constants = {"w": floats(6, 4, 3, 3), **statistics(6)}
    nodes = [node("Conv", "x,w", "h"), node("BatchNormalization", "h,s,b,m,v", "y"), node("Relu", "h", "z")]
    made = model(nodes, [info("x", ["N", 4, 8, 8])], [info("y", None), info("z", None)], constants)
    check(simplified(tmp_path, made), {"x": floats(2, 4, 8, 8)}, count=3)


def test_float16_weights_are_not_folded(tmp_path):
    half = {k: v.astype(np.float16) for k, v in {"w": floats(6, 4, 3, 3), **statistics(6)}.items()}
    nodes = [node("Conv", "x,w", "h"), node("BatchNormalization", "h,s,b,m,v", "y")]
    made = model(nodes, [info("x", ["N", 4, 8, 8], TensorProto.FLOAT16)],
                 [info("y", None, TensorProto.FLOAT16)], half)  # fmt: skip
    check(simplified(tmp_path, made), {"x": floats(2, 4, 8, 8).astype(np.float16)}, count=2)


def test_padding_is_folded_into_a_convolution(tmp_path):
    nodes = [node("Pad", "x,p", "h"), node("Conv", "h,w", "y", pads=[1, 1, 0, 0])]
    constants = {"w": floats(6, 4, 3, 3), "p": np.array([0, 0, 1, 2, 0, 0, 0, 1])}
    made = model(nodes, [info("x", ["N", 4, 8, 8])], [info("y", None)], constants)
    check(simplified(tmp_path, made), {"x": floats(2, 4, 8, 8)}, operators=["Conv"], exact=False)


def test_slices_of_different_axes_are_merged(tmp_path):
    constants = {"b": np.array([1]), "e": np.array([9]), "i": np.array([2]), "j": np.array([-1]), "s": np.array([2])}
    nodes = [node("Slice", "x,b,e,i,s", "h"), node("Slice", "h,b,e,j,s", "y")]
    made = model(nodes, [info("x", ["N", 4, 8, 8])], [info("y", None)], constants)
    check(simplified(tmp_path, made), {"x": floats(2, 4, 8, 8)}, operators=["Slice"])


def test_zero_states_of_recurrent_operators_are_dropped(tmp_path):
    nodes = [*without_absent(flatten_by_shape())[:5], node("Concat", "one,n1,h", "t", axis=0),
             node("ConstantOfShape", "t", "z"), node("LSTM", "u,w,r,,,z,z", "y", hidden_size=2)]  # fmt: skip
    nodes.insert(-1, node("Transpose", "x", "u", perm=[1, 0, 2]))
    constants = {"w": floats(1, 8, 4), "r": floats(1, 8, 2), "one": np.array([1]), "h": np.array([2])}
    made = model(nodes, [info("x", ["N", 3, 4])], [info("y", None)], constants)
    check(simplified(tmp_path, made), {"x": floats(2, 3, 4)}, operators=["Transpose", "LSTM"])


# --- subgraphs, types, old files -----------------------------------------------------------------------------


def branch(name, nodes, output):
    return helper.make_graph(nodes, name, [], [info(output, None)])


def conditional(condition):
    then = branch("t", [node("Identity", "x", "i"), node("Add", "i,one", "r")], "r")
    other = branch("e", [node("Sub", "x,one", "r")], "r")  # the name is that of the other branch
    return [*condition, helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)]


def test_branches_with_a_known_condition_are_inlined(tmp_path):
    condition = [node("Shape", "x", "s"), node("Size", "s", "n"), node("Equal", "n,two", "c")]
    constants = {"one": np.float32(1), "two": np.array(2)}
    made = model(conditional(condition), [info("x", ["N", 3])], [info("y", None)], constants)
    check(simplified(tmp_path, made), {"x": floats(2, 3)}, operators=["Add"])


def test_branches_are_simplified(tmp_path):
    made = model(conditional([]), [info("x", ["N", 3]), info("c", [], TensorProto.BOOL)], [info("y", None)],
                 {"one": np.float32(1)})  # fmt: skip
    found = simplified(tmp_path, made)
    for value in (True, False):
        check(found, {"x": floats(2, 3), "c": np.array(value)}, count=3)


def test_loop_values_that_change_are_not_folded(tmp_path):
    """The shape of the state is known at first, and grows with each iteration."""
    body = helper.make_graph(
        [node("Identity", "c", "c2"), node("Concat", "v,v", "w", axis=0), node("Shape", "v", "s"),
         node("Add", "k,one", "k2"), node("Mul", "k2,one", "out")],
        "body", [info("i", [], TensorProto.INT64), info("c", [], TensorProto.BOOL), info("v", None),
                 info("k", [1], TensorProto.INT64)],
        [info("c2", [], TensorProto.BOOL), info("w", None), info("k2", [1], TensorProto.INT64),
         info("out", None, TensorProto.INT64), info("s", None, TensorProto.INT64)],
    )  # fmt: skip
    made = model(
        [helper.make_node("Loop", ["n", "", "x", "k0"], ["a", "b", "d", "e"], body=body)],
        [info("x", [1])], [info("a", None), *(info(n, None, TensorProto.INT64) for n in "bde")],
        {"n": np.array(4), "one": np.array([1]), "k0": np.array([0])},
    )  # fmt: skip
    found = simplified(tmp_path, made)
    check(found, {"x": floats(1)})
    assert found.after.node_count == found.before.node_count


def test_old_files_list_initialisers_as_inputs(tmp_path):
    nodes = [node("Add", "x,w", "a"), node("Dropout", "a", "b"), node("Reshape", "b,s", "y")]
    made = model(nodes, [info("x", ["N", 4]), info("w", [4]), info("s", [2], TensorProto.INT64)], [info("y", None)],
                 {"w": floats(4), "s": np.array([-1, 2])}, opset=7, ir=3)  # fmt: skip
    found = simplified(tmp_path, made)
    check(found, {"x": floats(3, 4)}, operators=["Add", "Reshape"])
    assert [i.name for i in found.message.graph.input] == ["x"]


def test_sequences_and_strings_pass(tmp_path):
    nodes = [node("SequenceConstruct", "x,x", "s"), node("Identity", "s", "t"), node("SequenceAt", "t,zero", "y"),
             node("Identity", "u", "v"), node("Concat", "v,v", "z", axis=0)]  # fmt: skip
    made = model(nodes, [info("x", ["N"]), info("u", [2], TensorProto.STRING)],
                 [info("y", None), info("z", None, TensorProto.STRING)], {"zero": np.array(0)})  # fmt: skip
    found = simplified(tmp_path, made)
    check(found, {"x": floats(2), "u": np.array(["a", "b"], object)}, count=3)


def test_metadata_and_unknown_domains_stay(tmp_path):
    made = model([node("Relu", "x", "y")], [info("x", ["N"])], [info("y", None)])
    made.producer_name, made.doc_string = "someone", "text"
    made.metadata_props.add(key="classes", value='["a"]')
    made.opset_import.add(domain="com.example", version=3)
    found = simplified(tmp_path, made)
    made.graph.ClearField("value_info")
    assert found.message == made


def test_external_data_are_read(tmp_path):
    made = model([node("MatMul", "x,w", "h"), node("Identity", "h", "y")], [info("x", ["N", 64])], [info("y", None)],
                 {"w": floats(64, 64)})  # fmt: skip
    whole = onnx.ModelProto.FromString(made.SerializeToString())
    onnx.save(made, tmp_path / "big.onnx", save_as_external_data=True, location="big.data", size_threshold=0)
    found = simplify_onnx(tmp_path / "big.onnx")
    x = floats(2, 64)
    assert np.array_equal(run(found.message, {"x": x})[0], run(whole, {"x": x})[0])
    assert found.after.node_count == 1


def test_gradient_nodes_are_refused(tmp_path):
    made = model([node("Relu", "x", "y")], [info("x", ["N"])], [info("y", None)])
    made.training_info.add()
    with pytest.raises(UnsupportedError, match="training_info"):
        simplify_onnx(write(tmp_path / "m.onnx", made))


def test_models_of_the_library_are_simplified():
    x = gk.input("x", ["N", 3, 8, 8])
    y = gk.identity(gk.relu(gk.nn.batch_norm(gk.nn.conv2d(x, 4, 3, name="c"), name="b")))
    net = gk.Model({"y": y})
    small = gk.simplify(net)
    assert [n.op.name for n in small.graph.nodes if n.op.name != "Constant"] == ["Conv", "Relu"]
    feeds = {"x": floats(2, 3, 8, 8)}
    np.testing.assert_allclose(small.run(feeds)["y"], net.run(feeds)["y"], rtol=1e-4, atol=1e-5)


def test_simplified_models_stay_as_they_are(tmp_path):
    """A second time changes nothing."""
    made = model(without_absent(flatten_by_shape()), [info("x", ["N", 3, 4])], [info("y", None)])
    first = simplified(tmp_path, made)
    assert simplified(tmp_path, first.message).message == first.message
