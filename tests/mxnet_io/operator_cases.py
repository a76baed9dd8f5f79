"""Cases of MXNet's operators: attributes, operands and the expected results, and the symbol that contains them."""

import json
from dataclasses import dataclass, field

import numpy as np

# MXNet's numbers of element types.
DTYPES = {"float32": 0, "float64": 1, "float16": 2, "uint8": 3, "int32": 4, "int8": 5, "int64": 6, "bool": 7}


@dataclass
class Case:
    """One operator.

    Attributes:
        op: MXNet's name of the operator.
        operands: Its operands.
        attributes: Its attributes, as texts.
        gives: The expected outputs.
        tolerance: The relative tolerance of floating point outputs; the absolute one is the same.
        labels: Positions of operands that are not read in inference.
        weights: Positions of the operands that are stored in the parameter file. The others are data inputs.
        subgraphs: The bodies of a control flow operator, as `symbol` returns them.
    """

    op: str
    operands: list
    attributes: dict
    gives: list
    tolerance: float
    weights: tuple = ()
    labels: tuple = ()
    subgraphs: list = field(default_factory=list)

    def __str__(self):
        return f"{self.op}({', '.join(str(list(v.shape)) for v in self.operands)}, {self.attributes})"


def case(op, *operands, gives, tolerance=None, weights=(), labels=(), subgraphs=(), typed=False, **attributes):
    """Return a Case. A float64 result of operands that are not float64 is expected as float32 (or float16), unless the
    attribute dtype is float64, or `typed` is set.
    """
    operands = [np.asarray(v) for v in operands]
    floats = {v.dtype for v in operands if v.dtype.kind == "f"}
    kind = max(floats, key=lambda d: d.itemsize) if floats else np.dtype("float32")
    typed = typed or attributes.get("dtype") == "float64"
    results = [np.asarray(v) for v in (gives if isinstance(gives, (list, tuple)) else [gives])]
    results = [v.astype(kind) if v.dtype == np.float64 and not typed else v for v in results]
    if tolerance is None:
        tolerance = {"float16": 4e-3, "float64": 1e-12}.get(str(kind), 2e-5)
    texts = {name.rstrip("_"): str(value) for name, value in attributes.items()}
    return Case(op, operands, texts, results, tolerance, tuple(weights), tuple(labels), list(subgraphs))


def floats(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def positive(*shape, seed=0):
    return np.random.default_rng(seed).uniform(0.5, 2.0, shape).astype(np.float32)


# --- symbols ----------------------------------------------------------------------------------------------


def variable(name, dtype=np.float32):
    return {"op": "null", "name": name, "attrs": {"__dtype__": str(DTYPES[str(np.dtype(dtype))])}, "inputs": []}


def node(op, name, inputs, subgraphs=(), **attributes):
    """Return a node; `inputs` are numbers of nodes, or pairs of a node and the number of its output."""
    made = {
        "op": op, "name": name, "attrs": {key.rstrip("_"): str(value) for key, value in attributes.items()},
        "inputs": [[i, 0, 0] if isinstance(i, int) else [*i, 0] for i in inputs],
    }  # fmt: skip
    if subgraphs:
        made["subgraphs"] = list(subgraphs)
    return made


def symbol(nodes, heads):
    return {
        "nodes": nodes,
        "arg_nodes": [i for i, made in enumerate(nodes) if made["op"] == "null"],
        "node_row_ptr": list(range(len(nodes) + 1)),
        "heads": [[i, 0, 0] if isinstance(i, int) else [*i, 0] for i in heads],
        "attrs": {"mxnet_version": ["int", 10901]},
    }


def operand_name(number, position):
    return f"x{number}_{position}"


def symbol_of(cases):
    """Return the text of a symbol with one node for each case. Its outputs are those of the cases, in order."""
    nodes, heads = [], []
    for number, item in enumerate(cases):
        begin = len(nodes)
        nodes += [variable(operand_name(number, i), v.dtype) for i, v in enumerate(item.operands)]
        inputs = range(begin, len(nodes))
        nodes.append(node(item.op, f"{item.op}_{number}", inputs, item.subgraphs, **item.attributes))
        heads += [(len(nodes) - 1, output) for output in range(len(item.gives))]
    return json.dumps(symbol(nodes, heads))
