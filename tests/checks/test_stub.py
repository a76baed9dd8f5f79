"""graphkit/__init__.pyi is what `graphkit ops --stub` writes, and says of functions what they are."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

import pytest

import graphkit as gk
from graphkit import cli
from graphkit.checks.samples import dtypes_of, make_case, samples_of
from graphkit.checks.stub import stub
from graphkit.ops import Op, registry

PAGE = Path(__file__).parents[2] / "graphkit" / "__init__.pyi"
TREE = ast.parse(PAGE.read_text())
FUNCTIONS = {node.name: node for node in TREE.body if isinstance(node, ast.FunctionDef)}
OPERATORS = [
    cls for cls in registry
    if cls.__module__.startswith("graphkit.ops.") and registry.function_of(cls).__name__ in FUNCTIONS
]  # fmt: skip


def test_the_file_is_up_to_date() -> None:
    assert PAGE.read_text() == stub(), "run: graphkit ops --stub > graphkit/__init__.pyi"


def test_every_public_name_is_there() -> None:
    imported = [a.asname or a.name for node in TREE.body if isinstance(node, ast.ImportFrom) for a in node.names]
    assigned = [target.id for node in TREE.body if isinstance(node, ast.Assign) for target in node.targets]
    own = {registry.function_of(cls).__name__ for cls in registry if cls.__module__.startswith("graphkit.ops.")}
    assert {*gk._PUBLIC, *gk._MODULES, *own} <= {*imported, *assigned, *FUNCTIONS}
    assert {"conv", "softmax", "concat", "if_"} <= FUNCTIONS.keys()
    assert not {"scan", "constant"} & FUNCTIONS.keys()  # functions of the frontend go before operators


@pytest.mark.parametrize("cls", OPERATORS, ids=lambda cls: cls.name)
def test_arguments_and_results(cls: type[Op]) -> None:
    function = registry.function_of(cls)
    written = FUNCTIONS[function.__name__].args
    listed = [a.arg for a in (*written.args, *([written.vararg] if written.vararg else []), *written.kwonlyargs)]
    either = {"axis", "axes"}  # one is taken for the other
    wanted = [*inspect.signature(function).parameters, "meta"]
    assert [n for n in listed if n in wanted or n not in either] == wanted
    result: Any = FUNCTIONS[function.__name__].returns
    text = ast.unparse(result)
    for number in range(len(samples_of(cls))):
        case = make_case(cls, number, dtypes_of(cls, samples_of(cls)[number])[0])
        count = len(case.graph().outputs)
        assert text == "Any" or text.count("Value") == count, f"sample {number} has {count} results, not {text}"


def test_it_takes_no_model() -> None:
    assert cli.invoke(["ops", "net.onnx", "--stub"]) == 2
    assert cli.invoke(["ops", "--markdown", "--stub"]) == 2
