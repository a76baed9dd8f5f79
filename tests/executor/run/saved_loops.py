"""Models with loops that several files of tests save."""

import numpy as np
from onnx import TensorProto, helper
from saved_programs import model_of

import graphkit as gk


def info(name, kind=TensorProto.FLOAT, shape=()):
    return helper.make_tensor_value_info(name, kind, shape)


def scan_model(backwards=0):
    """Running sums of three rows with a captured weight, from both ends."""
    body = helper.make_graph(
        [
            helper.make_node("Mul", ["row", "w"], ["scaled"]),
            helper.make_node("Add", ["state", "scaled"], ["next"]),
            helper.make_node("Identity", ["next"], ["out"]),
            helper.make_node("Neg", ["state"], ["negative"]),
        ],
        "body",
        [info("state", shape=[2]), info("row", shape=[2])],
        [info("next", shape=[2]), info("out", shape=[2]), info("negative", shape=[2])],
    )
    scan = helper.make_node(
        "Scan", ["s", "x"], ["last", "sums", "negatives"], name="running", body=body, num_scan_inputs=1,
        scan_input_directions=[backwards], scan_output_directions=[backwards, 0],
    )  # fmt: skip
    return model_of(
        [scan],
        [("s", np.float32, [2]), ("x", np.float32, [3, 2]), ("w", np.float32, [2])],
        [("last", np.float32, [2]), ("sums", np.float32, [3, 2]), ("negatives", np.float32, [3, 2])],
    )


def while_model():
    """Doubles a vector while its sum is below a limit, at most m times; counts the iterations."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["v", "v"], ["double"]),
            helper.make_node("Add", ["count", "i"], ["sum"]),
            helper.make_node("ReduceSum", ["double"], ["total"], keepdims=0),
            helper.make_node("Less", ["total", "limit"], ["again"]),
        ],
        "body",
        [
            info("i", TensorProto.INT64),
            info("c", TensorProto.BOOL),
            info("v", shape=[2]),
            info("count", TensorProto.INT64),
        ],
        [info("again", TensorProto.BOOL), info("double", shape=[2]), info("sum", TensorProto.INT64)],
    )
    return model_of(
        [helper.make_node("Loop", ["m", "start", "x", "zero"], ["y", "n"], name="grow", body=body)],
        [("m", np.int64, []), ("start", bool, []), ("x", np.float32, [2]), ("limit", np.float32, [])],
        [("y", np.float32, [2]), ("n", np.int64, [])],
        [("zero", np.array(0))],
    )


def counted_model(starts=True):
    """Stacks three multiples of x, or none if the loop does not start; n is another input."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["again"]), helper.make_node("Add", ["v", "x"], ["sum"]),
         helper.make_node("Identity", ["v"], ["row"])],
        "body",
        [info("i", TensorProto.INT64), info("c", TensorProto.BOOL), info("v", shape=[2])],
        [info("again", TensorProto.BOOL), info("sum", shape=[2]), info("row", shape=[2])],
    )  # fmt: skip
    return model_of(
        [
            helper.make_node("Loop", ["m", "starts", "x"], ["last", "rows"], name="count", body=body),
            helper.make_node("Add", ["n", "n"], ["twice"]),
        ],
        [("x", np.float32, [2]), ("n", np.int64, [])],
        [("last", np.float32, [2]), ("rows", np.float32, [3 * starts, 2]), ("twice", np.int64, [])],
        [("m", np.array(3)), ("starts", np.array(starts))],
    )


def nested_model():
    """A scan, in whose body a while loop runs in one branch, and another scan reads rows and stacks."""
    x = gk.input("x", [3, 4])
    w = gk.input("w", [4])
    start = gk.constant(np.zeros(4, np.float32))

    def body(h, row):
        def grown():
            return gk.while_loop(
                lambda s: gk.reduce_sum(s, keepdims=False) < 10.0, lambda s: gk.exp(s * 0.1) + w + h, row * row, 7
            )

        chosen = gk.cond(gk.reduce_sum(row, keepdims=False) > 0.0, grown, lambda: row - h)
        last, parts = gk.scan(lambda c, e: (c + e * h, c * e), chosen, gk.reshape(row * w, [2, 2]) @ x_parts(chosen))
        return gk.tanh(last), parts

    def x_parts(value):
        return gk.reshape(gk.concat(value, value, axis=0), [2, 4])

    last, stacked = gk.scan(body, start, x)
    return gk.Model({"last": last, "stacked": stacked})


def random_model():
    """Random nodes of all kinds, also in a loop."""
    x = gk.input("x", [4, 6])

    def step(carry, row):
        noise = gk.random_normal_like(row)
        return carry + noise, gk.dropout(carry * noise, 0.25, training_mode=True)[0]

    last, rows = gk.scan(step, x[0], x)
    dropped, mask = gk.dropout(x, 0.5, training_mode=True)
    uniform = gk.random_uniform(shape=(3,), low=1.0, high=2.0)
    return gk.Model(
        {"n": gk.random_normal_like(x), "u": uniform, "b": gk.bernoulli(gk.sigmoid(x)), "dropped": dropped,
         "mask": mask, "last": last, "rows": rows}
    )  # fmt: skip


def while_gradient():
    """The gradient of a loop that runs n times: it stacks what the backward loop reads, and counts the rows."""
    x, w, n = gk.input("x", [2, 3]), gk.input("w", [3]), gk.input("n", [], "int64")
    start = (gk.constant(np.int64(0)), x)
    last = gk.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, gk.tanh(s[1] * w) + x), start, name="grow")
    loss = gk.Model({"loss": gk.reduce_mean(last[1], keepdims=False)})
    return gk.grad(loss, of="loss", wrt=["x", "w"], with_outputs=True)


def stacks_model():
    """A loop stacks m rows. A scan reads them, and stacks in reverse order; then row i and the sizes are read."""
    grow = helper.make_graph(
        [helper.make_node("Add", ["v", "x"], ["next"]), helper.make_node("Identity", ["next"], ["row"])],
        "grow",
        [info("i", TensorProto.INT64), info("c", TensorProto.BOOL), info("v", shape=[2])],
        [info("c", TensorProto.BOOL), info("next", shape=[2]), info("row", shape=[2])],
    )
    add = helper.make_graph(
        [
            helper.make_node("Add", ["state", "row"], ["sum"]),
            helper.make_node("Identity", ["sum"], ["out"]),
            helper.make_node("Neg", ["row"], ["negative"]),
        ],
        "add",
        [info("state", shape=[2]), info("row", shape=[2])],
        [info("sum", shape=[2]), info("out", shape=[2]), info("negative", shape=[2])],
    )
    nodes = [
        helper.make_node("Loop", ["m", "", "x"], ["last", "rows"], name="grow", body=grow),
        helper.make_node(
            "Scan", ["x", "rows"], ["sum", "sums", "negatives"], name="add", body=add, num_scan_inputs=1,
            scan_output_directions=[1, 1],
        ),
        helper.make_node("Gather", ["sums", "i"], ["picked"]),
        helper.make_node("Gather", ["negatives", "i"], ["other"]),
        helper.make_node("Shape", ["sums"], ["sizes"]),
    ]  # fmt: skip
    return model_of(
        nodes,
        [("m", np.int64, []), ("i", np.int64, []), ("x", np.float32, [2])],
        [("last", np.float32, [2]), ("sum", np.float32, [2]), ("picked", np.float32, [2]), ("other", np.float32, [2]),
         ("sizes", np.int64, [2])],
    )  # fmt: skip


def sized_random_model():
    """Random nodes of all kinds, for any number of rows."""
    x = gk.input("x", ["N", 6])
    dropped, mask = gk.dropout(x, gk.constant(np.float32(0.25)), training_mode=gk.constant(np.array(True)))
    drawn = gk.random_normal_like(x) + gk.random_uniform_like(x, low=1.0, high=2.0)
    fixed = gk.random_uniform(shape=(6,)) * gk.random_normal(shape=(6,))
    rows = gk.cast(gk.shape(x), to="float32")
    return gk.Model(
        {"drawn": drawn, "fixed": x + fixed, "b": gk.bernoulli(gk.sigmoid(x)), "dropped": dropped, "mask": mask,
         "rows": x[:, :2] * rows}
    )  # fmt: skip


def counted_loop(step, n, x):
    """x after n steps; `step` gets the iteration number and the value."""
    start = (gk.constant(np.int64(0)), x)
    return gk.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, step(*s)), start, name="grow")[1]


def table_gradient():
    """Each iteration reads a row of a table. One kernel adds up the stacked gradients of the rows."""
    x, table, n = gk.input("x", [2, 3]), gk.input("table", [5, 3]), gk.input("n", [], "int64")
    last = counted_loop(lambda i, h: gk.tanh(h * gk.gather(table, i % 5, axis=0)) + x, n, x)
    loss = gk.Model({"loss": gk.reduce_mean(last, keepdims=False)})
    return gk.grad(loss, of="loss", wrt=["table"], with_outputs=True)


def second_gradient():
    """The gradient of a gradient: kernels write buffers that have as many rows as others."""
    x, w, n = gk.input("x", [2, 3]), gk.input("w", [3]), gk.input("n", [], "int64")
    last = counted_loop(lambda i, h: gk.tanh(h * w) + x, n, x)
    (first,) = gk.gradient([gk.reduce_mean(last, keepdims=False)], [x])
    return gk.Model({"second": gk.gradient([gk.reduce_sum(first * first, keepdims=False)], [w])[0]})
