"""Models that several files of tests save, comparisons of their outputs, and the outcome of opening a file."""

import contextlib
import math
import re

import numpy as np
import onnx
from onnx import TensorProto, helper

import graphkit as gk
from graphkit.errors import InputError, RuntimeFailure
from graphkit.executor.run.c_runtime import CSession


def model_of(nodes, inputs, outputs, initializers=()):
    """A model of ONNX nodes; inputs and outputs are (name, dtype, shape)."""
    kinds = {
        np.float32: TensorProto.FLOAT,
        np.int64: TensorProto.INT64,
        np.float64: TensorProto.DOUBLE,
        bool: TensorProto.BOOL,
    }
    graph = helper.make_graph(
        nodes, "made",
        [helper.make_tensor_value_info(n, kinds[t], s) for n, t, s in inputs],
        [helper.make_tensor_value_info(n, kinds[t], s) for n, t, s in outputs],
        [onnx.numpy_helper.from_array(array, name) for name, array in initializers],
    )  # fmt: skip
    return gk.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]))


def branch_model(then, otherwise):
    """y = then(x) if c else otherwise(x); both are names of operators."""
    branches = [
        helper.make_graph(
            [helper.make_node(op, ["x"], ["r"])], op, [], [helper.make_tensor_value_info("r", TensorProto.FLOAT, None)]
        )
        for op in (then, otherwise)
    ]
    return model_of(
        [
            helper.make_node("If", ["c"], ["h"], name="choice", then_branch=branches[0], else_branch=branches[1]),
            helper.make_node("Exp", ["h"], ["y"]),
        ],
        [("c", bool, []), ("x", np.float32, [2, 2])],
        [("y", np.float32, [2, 2])],
    )


def trees_model():
    """A classifier with two trees, whose probabilities are maps."""
    attributes = dict(
        nodes_treeids=[0, 0, 0, 1, 1, 1], nodes_nodeids=[0, 1, 2, 0, 1, 2], nodes_featureids=[0, 0, 0, 2, 0, 0],
        nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"] * 2, nodes_values=[0.5, 0, 0, -0.25, 0, 0],
        nodes_truenodeids=[1, 0, 0, 1, 0, 0], nodes_falsenodeids=[2, 0, 0, 2, 0, 0],
        class_treeids=[0, 0, 1, 1], class_nodeids=[1, 2, 1, 2], class_ids=[0, 1, 2, 0],
        class_weights=[0.5, 0.25, 1.5, 2], classlabels_int64s=[3, 5, 7], post_transform="SOFTMAX",
    )  # fmt: skip
    nodes = [
        helper.make_node("TreeEnsembleClassifier", ["x"], ["label", "scores"], domain="ai.onnx.ml", **attributes),
        helper.make_node("ZipMap", ["scores"], ["maps"], domain="ai.onnx.ml", classlabels_int64s=[3, 5, 7]),
    ]
    kind = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    graph = helper.make_graph(
        nodes, "trees", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [9, 3])],
        [
            helper.make_tensor_value_info("label", TensorProto.INT64, [9]),
            helper.make_value_info("maps", helper.make_sequence_type_proto(kind)),
        ],
    )  # fmt: skip
    return gk.load(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 3)])
    )


def run_on(session, value, more=()):
    """Run inputs whose elements are all `value` with the shapes of the first program, unless they are very large.

    more: Added to the sizes of the first axes.
    """
    kinds = {}
    for name, (dtype, shape) in session.inputs.items():
        added = [*more, *(0 for _ in shape)][: len(shape)]
        kinds[name] = (dtype, tuple(size + a for size, a in zip(shape, added, strict=True)))
    if (
        sum(math.prod(shape) * dtype.itemsize for dtype, shape in [*kinds.values(), *session.outputs.values()])
        < 1 << 24
    ):
        session.run({name: np.full(shape, value, dtype) for name, (dtype, shape) in kinds.items()})


def outcome(path):
    """The name of the status with which a file is rejected; "" if it is opened, and runs or has very large inputs."""
    try:
        with CSession(path, max_iterations=20, timeout=1) as session:
            run_on(session, 3)  # loops whose trip count is an input iterate
            run_on(session, 0)
            for more in ((3,), (0, 2), (1, 1), (0, 0, 8, 5)):
                with contextlib.suppress(InputError):  # for most files, only the shapes of its programs
                    run_on(session, 0, more)
    except MemoryError:  # outputs of a damaged size
        return ""
    except RuntimeFailure as error:
        return re.search(r"\((GK_\w+)\)$", str(error))[1]
    return ""


def random_feeds(net, shapes, seed=0):
    rng = np.random.default_rng(seed)
    feeds = {}
    for name, kind in net.input_types.items():
        shape = shapes.get(name, kind.shape)
        if kind.dtype.numpy.kind in "iu":
            feeds[name] = rng.integers(0, 2, shape).astype(kind.dtype.numpy)
        else:
            feeds[name] = rng.standard_normal(shape).astype(kind.dtype.numpy)
    return feeds


def assert_same_bits(found, expected):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes(), name


def check(net, path, shapes=None, **options):
    """Save a network, run it in the C library, and compare all bits with Python's. Return its outputs."""
    shapes = shapes or {}
    net.save(path, shapes=shapes, **options)
    feeds = random_feeds(net, shapes)
    expected = net.run(feeds)
    with CSession(path) as session:
        assert_same_bits(session.run(feeds), expected)
        assert_same_bits(session.run(feeds), expected)
    return feeds, expected
