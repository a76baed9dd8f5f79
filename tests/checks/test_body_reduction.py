"""Reduction inside of branches and loops: failures planted in Loop, Scan, If, and nested ones."""

import numpy as np
import onnx
import onnxruntime
import pytest
from combinations import in_one_item
from onnx import TensorProto, helper, numpy_helper

import graphkit as gk
from graphkit.checks.reduction import reduce_message

POINTWISE = ("Relu", "Tanh", "Sigmoid", "Abs", "Neg", "Floor")
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def info(name, shape=(4,), kind=FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def chain(source, prefix, length, at=None, planted=()):
    """Pointwise nodes from `source` to `prefix_out`, with nodes that `planted(name, result)` makes at one place."""
    nodes, name = [], source
    for i in range(length):
        result = f"{prefix}{i}"
        if i == at:
            nodes += planted(name, result)
        else:
            nodes.append(helper.make_node(POINTWISE[i % len(POINTWISE)], [name], [result]))
        name = result
    return [*nodes, helper.make_node("Identity", [name], [f"{prefix}_out"])]


def sine(source, result):
    return [helper.make_node("Sin", [source], [result])]


def loop(planted, prefix="b", length=30, at=17, trips=3):
    """A Loop with two states and a stacked output, whose body contains the planted nodes."""

    def make(source, result):
        body = [
            helper.make_node("Identity", [f"{prefix}_keep"], [f"{prefix}_again"]),
            *chain(f"{prefix}_h", prefix, length, at, planted),
            helper.make_node("Add", [f"{prefix}_g", f"{prefix}_out"], [f"{prefix}_g2"]),
            helper.make_node("Neg", [f"{prefix}_g2"], [f"{prefix}_row"]),
        ]
        counter = [info(f"{prefix}_i", [], INT64), info(f"{prefix}_keep", [], BOOL)]
        states = [info(f"{prefix}_{name}") for name in ("h", "g")]
        after = [info(f"{prefix}_{name}") for name in ("out", "g2", "row")]
        again = info(f"{prefix}_again", [], BOOL)
        graph = helper.make_graph(body, f"{prefix}_body", [*counter, *states], [again, *after])
        operands, results = [f"{prefix}_trips", "", source, source], [f"{prefix}_a", f"{prefix}_c", f"{prefix}_s"]
        return [
            helper.make_node("Constant", [], [f"{prefix}_trips"], value=numpy_helper.from_array(np.array(trips))),
            helper.make_node("Loop", operands, results, body=graph),
            helper.make_node("ReduceSum", [f"{prefix}_s"], [f"{prefix}_total"], keepdims=0),
            helper.make_node("Add", [f"{prefix}_a", f"{prefix}_total"], [result]),
        ]  # fmt: skip

    return make


def scan(planted, prefix="c", length=30, at=9):
    """A Scan over the four elements of its operand."""

    def make(source, result):
        body = [
            *chain(f"{prefix}_x", prefix, length, at, planted),
            helper.make_node("Add", [f"{prefix}_h", f"{prefix}_out"], [f"{prefix}_h2"]),
            helper.make_node("Abs", [f"{prefix}_h2"], [f"{prefix}_y"]),
        ]
        graph = helper.make_graph(
            body, f"{prefix}_body", [info(f"{prefix}_h", [1]), info(f"{prefix}_x", [1])],
            [info(f"{prefix}_h2", [1]), info(f"{prefix}_y", [1])],
        )  # fmt: skip
        constant = numpy_helper.from_array(np.zeros(1, np.float32))
        shapes = {f"{prefix}_column": np.array([4, 1]), f"{prefix}_flat": np.array([4])}
        return [
            *(helper.make_node("Constant", [], [n], value=numpy_helper.from_array(a)) for n, a in shapes.items()),
            helper.make_node("Constant", [], [f"{prefix}_zero"], value=constant),
            helper.make_node("Reshape", [source, f"{prefix}_column"], [f"{prefix}_in"]),
            helper.make_node("Scan", [f"{prefix}_zero", f"{prefix}_in"], [f"{prefix}_last", f"{prefix}_all"],
                             body=graph, num_scan_inputs=1),
            helper.make_node("Reshape", [f"{prefix}_all", f"{prefix}_flat"], [result]),
        ]  # fmt: skip

    return make


def branch(planted, prefix="d", length=30, at=21):
    """An If, with the planted nodes in its second branch."""

    def make(source, result):
        then = helper.make_graph(chain(source, f"{prefix}t", length), "then", [], [info(f"{prefix}t_out")])
        other = helper.make_graph(
            chain(source, f"{prefix}e", length, at, planted), "else", [], [info(f"{prefix}e_out")]
        )
        return [
            helper.make_node("ReduceSum", [source], [f"{prefix}_sum"], keepdims=0),
            helper.make_node("IsNaN", [f"{prefix}_sum"], [f"{prefix}_cond"]),
            helper.make_node("If", [f"{prefix}_cond"], [result], then_branch=then, else_branch=other),
        ]

    return make


CASES = {
    "loop": loop(sine),
    "scan": scan(sine),
    "if": branch(sine),
    "if in loop": loop(branch(sine)),
    "loop in if": branch(loop(sine)),
    "scan in loop": loop(scan(sine)),
    "loop in loop in if": branch(loop(loop(sine, "p"), "q")),
}


def model_of(make, length=60):
    nodes = chain("x", "m", length, length // 2, make)
    graph = helper.make_graph(nodes, "g", [info("x")], [info("m_out")])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(made, full_check=True)
    return made


def all_operators(graph):
    for node in graph.nodes:
        if node.op.name != "Constant":
            yield node.op.name
        for body in node.op.subgraphs().values():
            yield from all_operators(body)


def inside(graph, kinds, planted="Sin"):
    """Whether a planted node is nested in nodes of these operators, from the outside in."""
    if not kinds:
        return planted in all_operators(graph)
    return any(
        inside(body, kinds[1:] if node.op.name == kinds[0] else kinds, planted)
        for node in graph.nodes for body in node.op.subgraphs().values()
    )  # fmt: skip


def runs(message, feeds):
    """Whether ONNX Runtime accepts and runs a model."""
    onnx.checker.check_model(message)
    session = onnxruntime.InferenceSession(message.SerializeToString(), providers=["CPUExecutionProvider"])
    names = {i.name for i in session.get_inputs()}
    assert names == set(feeds)
    return session.run(None, dict(feeds))


@in_one_item()
@pytest.mark.parametrize("name", CASES)
def test_a_node_in_a_body_remains_alone(name):
    found = reduce_message(model_of(CASES[name]), lambda part: "Sin" in all_operators(part.model.graph))
    assert found.is_complete
    assert found.smallest.operators == ["Sin"]
    assert found.recorded == "ONNX Runtime"
    # The input has the value that it has in the first iteration.
    ((source, value),) = found.smallest.feeds.items()
    (result,) = runs(found.smallest.message, {source: value})
    np.testing.assert_allclose(result, np.sin(value), rtol=1e-6)


@in_one_item()
@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("loop", ["Loop"]),
        ("scan", ["Scan"]),
        ("if", ["If"]),
        ("if in loop", ["Loop", "If"]),
        ("loop in if", ["If", "Loop"]),
        pytest.param("scan in loop", ["Loop", "Scan"], marks=pytest.mark.full),
        pytest.param("loop in loop in if", ["Loop", "Loop"], marks=pytest.mark.full),
        pytest.param("loop in loop in if", ["If", "Loop", "Loop"], marks=pytest.mark.full),
    ],
)
def test_a_failure_that_needs_its_loop(name, kinds):
    """The node only fails inside of a loop or branch, which therefore has to stay."""
    found = reduce_message(model_of(CASES[name]), lambda part: inside(part.model.graph, kinds))
    operators = found.smallest.operators
    assert len(operators) < 10
    assert {"Sin", *kinds} <= set(operators)
    assert found.nodes > 90
    assert set(found.smallest.feeds) == set(found.smallest.model.inputs)
    runs(found.smallest.message, found.smallest.feeds)
    assert inside(gk.load(found.smallest.message).graph, kinds)


def test_values_in_a_body_reproduce_a_nan():
    """The logarithm in the body gets negative numbers only from the nodes before it."""

    def logarithm(source, result):
        return [
            helper.make_node("Exp", [source], [f"{result}_e"]),
            helper.make_node("Neg", [f"{result}_e"], [f"{result}_n"]),
            helper.make_node("Log", [f"{result}_n"], [result]),
        ]

    def fails(part):
        if set(part.model.inputs) - set(part.feeds):
            return False
        results = part.model.run(part.feeds)
        return any(np.isnan(a).any() for a in results.values() if a.dtype.kind == "f")

    found = reduce_message(model_of(branch(loop(logarithm))), fails)
    assert found.smallest.operators == ["Log"]
    assert np.isnan(runs(found.smallest.message, found.smallest.feeds)[0]).any()


def test_states_and_outputs_are_dropped():
    def fails(part):
        loops = [n for n in part.model.graph.nodes if n.op.name == "Loop"]
        return any("Sin" in all_operators(n.op.subgraphs()["body"]) for n in loops)

    found = reduce_message(model_of(CASES["loop"]), fails)
    (node,) = (n for n in found.smallest.message.graph.node if n.op_type == "Loop")
    assert len(node.output) == 1
    assert len(node.input) <= 3
    assert found.smallest.operators.count("Sin") == 1
    assert len(found.smallest.operators) <= 3


def _without_first_output(kind):
    """A Loop, Scan or If whose first output is not named."""
    flags = [helper.make_node("Identity", ["k"], ["k2"])] if kind == "Loop" else []
    inner = [*flags, helper.make_node("Relu", ["h"], ["h1"]), helper.make_node("Sin", ["h1"], ["h2"])]
    shape = [] if kind == "Scan" else (4,)
    counters = [info("i", [], INT64), info("k", [], BOOL)] if kind == "Loop" else []
    elements = [info("e", shape)] if kind == "Scan" else []
    states = [] if kind == "If" else [info("h", shape)]
    flag = [info("k2", [], BOOL)] if kind == "Loop" else []
    if kind == "If":
        inner = [helper.make_node("Relu", ["x"], ["h1"]), helper.make_node("Sin", ["h1"], ["h2"])]
    results = [info("h1", shape), info("h2", shape)]
    body = helper.make_graph(inner, "body", [*counters, *states, *elements], [*flag, *results])
    operands = {"Loop": ["trips", "", "x"], "Scan": ["zero", "x"], "If": ["yes"]}[kind]
    bodies = {"then_branch": body, "else_branch": body} if kind == "If" else {"body": body}
    options = {"num_scan_inputs": 1} if kind == "Scan" else {}
    constants = {"trips": np.array(3), "zero": np.float32(0), "yes": np.array(True)}
    rank = 2 if kind == "Loop" else 1
    nodes = [
        helper.make_node(kind, operands, ["", "s"], **bodies, **options),
        helper.make_node("ReduceMax", ["s"], ["y"], axes=list(range(rank))),
    ]
    stored = [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items() if n in operands]
    graph = helper.make_graph(nodes, "g", [info("x")], [info("y", [1] * rank)], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@in_one_item()
@pytest.mark.parametrize("kind", ["Loop", "Scan", "If"])
def test_parts_of_a_node_without_first_output_are_valid(kind):
    original, checked = _without_first_output(kind), []
    onnx.checker.check_model(original)

    def check(part):
        # ONNX Runtime crashes for such models.
        onnx.checker.check_model(part.message, full_check=True)
        checked.append(part)

    found = reduce_message(original, lambda part: inside(part.model.graph, [kind]), on_smaller=check)
    assert len(checked) > 3
    assert {kind, "Sin"} <= set(found.smallest.operators) <= {kind, "Sin", "Identity"}


def test_a_loop_without_trip_count_still_ends():
    """The condition is computed by nodes that are cut out."""
    body = helper.make_graph(
        [
            *chain("h", "b", 20, 7, sine),
            helper.make_node("ReduceSum", ["b_out"], ["sum"], keepdims=0),
            helper.make_node("Less", ["sum", "bound"], ["small"]),
            helper.make_node("Less", ["i", "last"], ["early"]),
            helper.make_node("And", ["small", "early"], ["again"]),
        ],
        "body", [info("i", [], INT64), info("keep", [], BOOL), info("h")], [info("again", [], BOOL), info("b_out")],
    )  # fmt: skip
    constants = {"bound": np.float32(100), "last": np.array(2), "yes": np.array(True)}
    graph = helper.make_graph(
        [helper.make_node("Loop", ["", "yes", "x"], ["y"], body=body)], "g", [info("x")], [info("y")],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    def fails(part):
        if not inside(part.model.graph, ["Loop"]):
            return False
        runs(part.message, part.feeds)
        return True

    found = reduce_message(made, fails)
    assert sorted(found.smallest.operators) == ["Loop", "Sin"]


def test_names_that_two_branches_share():
    """Both branches use the same names for values."""
    graphs = [helper.make_graph(chain("x", "same", 12, 5, p), "b", [], [info("same_out")]) for p in (sine, sine)]
    graphs[0].node[5].op_type = "Cos"
    nodes = [helper.make_node("If", ["c"], ["y"], then_branch=graphs[0], else_branch=graphs[1])]
    graph = helper.make_graph(nodes, "g", [info("x"), info("c", [], BOOL)], [info("y")])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    for kind, function in (("Sin", np.sin), ("Cos", np.cos)):
        found = reduce_message(
            made, lambda part, kind=kind: kind in all_operators(part.model.graph), inputs={"c": np.array(kind == "Cos")}
        )
        assert found.smallest.operators == [kind]
        ((source, value),) = found.smallest.feeds.items()
        np.testing.assert_allclose(runs(found.smallest.message, {source: value})[0], function(value), rtol=1e-6)


@pytest.mark.full
def test_the_search_in_bodies_is_deterministic_and_tries_nothing_twice():
    def tried():
        seen = []

        def fails(part):
            seen.append(part.message.SerializeToString(deterministic=True))
            return inside(part.model.graph, ["Loop", "If"])

        reduce_message(model_of(CASES["if in loop"], 12), fails)
        return seen

    first = tried()
    assert first == tried()
    assert len(first) == len(set(first))


@pytest.mark.parametrize(
    ("name", "kinds"),
    [("if", ["If"]), ("loop", ["Loop"]), pytest.param("loop in if", ["If", "Loop"], marks=pytest.mark.full)],
)
def test_results_of_another_type_become_outputs(name, kinds):
    """The result of the planted node fits no output of its subgraph."""

    def mask(source, result):
        return [
            helper.make_node("IsInf", [source], [f"{result}_mask"]),
            helper.make_node("Cast", [f"{result}_mask"], [f"{result}_f"], to=FLOAT),
            helper.make_node("Add", [source, f"{result}_f"], [result]),
        ]

    make = {"if": branch(mask), "loop": loop(mask), "loop in if": branch(loop(mask))}[name]
    found = reduce_message(model_of(make), lambda part: inside(part.model.graph, kinds, "IsInf"))
    assert {"IsInf", *kinds} <= set(found.smallest.operators)
    assert len(found.smallest.operators) <= 5
    runs(found.smallest.message, found.smallest.feeds)


@in_one_item()
@pytest.mark.parametrize("opset", [11, 13, 17])
def test_stacked_outputs_keep_their_rank(opset):
    """An inlined loop still feeds a node that needs the stacked shape."""
    axes = {} if opset >= 13 else {"axes": [0, 1]}
    body = helper.make_graph(
        [helper.make_node("Sin", ["h"], ["h2"]), helper.make_node("Cos", ["h2"], ["row"]),
         helper.make_node("Identity", ["keep"], ["again"])],
        "body", [info("i", [], INT64), info("keep", [], BOOL), info("h")],
        [info("again", [], BOOL), info("h2"), info("row")],
    )  # fmt: skip
    nodes = [
        helper.make_node("Loop", ["trips", "", "x"], ["last", "rows"], body=body),
        helper.make_node(
            "Squeeze", ["rows", "axis"] if not axes else ["rows"], ["y"], **({"axes": [0]} if axes else {})
        ),
    ]
    constants = {"trips": np.array(1), "axis": np.array([0])}
    graph = helper.make_graph(
        nodes, "g", [info("x")], [info("y")], [numpy_helper.from_array(a, n) for n, a in constants.items()]
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    wanted = {"Squeeze", "Cos"}
    found = reduce_message(made, lambda part: wanted <= set(all_operators(part.model.graph)))
    assert "Loop" not in found.smallest.operators
    x = found.smallest.feeds
    np.testing.assert_array_equal(runs(found.smallest.message, x)[0].shape, (4,))


def test_slices_of_a_scan_are_taken_from_its_axis_and_end():
    body = helper.make_graph(
        [helper.make_node("Sin", ["row"], ["s"]), helper.make_node("Add", ["h", "s"], ["h2"]),
         helper.make_node("Abs", ["h2"], ["out"])],
        "body", [info("h", [3]), info("row", [3])], [info("h2", [3]), info("out", [3])],
    )  # fmt: skip
    node = helper.make_node(
        "Scan", ["start", "x"], ["last", "all"], body=body, num_scan_inputs=1, scan_input_axes=[1],
        scan_input_directions=[1], scan_output_axes=[1],
    )  # fmt: skip
    graph = helper.make_graph(
        [node], "g", [info("start", [3]), info("x", [3, 5])], [info("last", [3]), info("all", [3, 5])]
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = np.arange(15, dtype=np.float32).reshape(3, 5)
    found = reduce_message(made, lambda part: "Sin" in all_operators(part.model.graph), inputs={"x": x})
    assert found.smallest.operators == ["Sin"]
    ((_, value),) = found.smallest.feeds.items()
    np.testing.assert_array_equal(value, x[:, -1])


def test_a_loop_that_never_runs():
    found = reduce_message(
        model_of(loop(sine, trips=0)), lambda part: inside(part.model.graph, ["Loop"]), max_tries=2000
    )
    assert sorted(found.smallest.operators)[:2] == ["Loop", "Sin"]
    runs(found.smallest.message, found.smallest.feeds)


def test_sequences_in_a_body():
    """A body that handles a sequence is reduced to the node that reads it."""
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "x"], ["list"]),
        helper.make_node("Constant", [], ["one"], value=numpy_helper.from_array(np.array(1))),
        helper.make_node("SequenceAt", ["list", "one"], ["t"]),
        helper.make_node("Sin", ["t"], ["t_out"]),
    ]
    graphs = [
        helper.make_graph(nodes, "then", [], [info("t_out")]),
        helper.make_graph(chain("x", "e", 9), "else", [], [info("e_out")]),
    ]  # fmt: skip
    node = helper.make_node("If", ["c"], ["y"], then_branch=graphs[0], else_branch=graphs[1])
    graph = helper.make_graph([node], "g", [info("x"), info("c", [], BOOL)], [info("y")])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    found = reduce_message(made, lambda part: "SequenceAt" in all_operators(part.model.graph))
    assert found.smallest.operators == ["SequenceAt"]
    assert list(found.smallest.feeds) == ["list"]
