"""The indexes of code: they are complete, and looking up an operator imports its module alone."""

import subprocess
import sys
from pathlib import Path

import pytest
from combinations import in_one_item

from graphkit.checks import indexes as written
from graphkit.checks.indexes import indexes


@in_one_item()
@pytest.mark.parametrize(("path", "text"), indexes().items(), ids=["operators", "upgrade rules", "passes", "kernels"])
def test_index_is_up_to_date(path: Path, text: str) -> None:
    stale = "run python -P -m graphkit.checks.indexes"
    assert path.read_text(encoding="utf-8") == text, stale


def test_string_functions_are_found_by_their_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs without strings import a module that has any other kernel of the operator, whatever its name."""
    registered = {
        ("", "Equal"): {"make": "strings", "string_function": "text"},
        ("", "Identity"): {"prepare": "layout", "string_function": "layout"},
        ("", "Upper"): {"string_function": "pointwise", "make": "_declared"},
    }
    inside = {
        key: {field: f"graphkit.executor.devices.cpu.{module}" for field, module in fields.items()}
        for key, fields in registered.items()
    }
    monkeypatch.setattr(written, "sources", lambda device: inside)
    found: dict[str, object] = {}
    exec(written._kernels(), found)
    assert found["MODULES"] == {("", "Equal"): ("strings",), ("", "Identity"): ("layout",)}
    assert found["STRING_MODULES"] == {("", "Equal"): ("text",), ("", "Upper"): ("pointwise",)}


def imported_by(code: str) -> set[str]:
    """The modules of operators that a new process has imported after `code`."""
    names = "sorted(m for m in sys.modules if m.startswith('graphkit.ops.'))"
    shown = subprocess.run(
        [sys.executable, "-P", "-c", f"import sys\n{code}\nprint(*{names})"], capture_output=True, text=True, check=True
    )
    return set(shown.stdout.split())


def test_lookup_imports_one_operator() -> None:
    before = imported_by("from graphkit.ops import registry")
    assert "graphkit.ops.nn.activation" not in before
    names = "assert 'relu' in registry.function_names() and registry.knows('', 'Relu')"
    assert imported_by(f"from graphkit.ops import registry; {names}") == before
    found = imported_by("from graphkit.ops import registry; assert registry.get('', 'Relu').name == 'Relu'")
    assert "graphkit.ops.nn.activation" in found
    assert "graphkit.ops.nn.conv" not in found


def test_former_name_imports_its_operator() -> None:
    found = imported_by(
        "from graphkit.ops import registry; assert registry.find('ai.graphkit', 'AllSum').name == 'AllReduce'"
    )
    assert "graphkit.ops.internal.moments" in found


def test_custom_operator_cannot_take_an_unimported_name() -> None:
    code = """
import graphkit as gk
from graphkit.errors import UsageError

for name, domain in (("Relu", ""), ("Relu", "mine")):
    try:
        gk.op(type(name, (gk.Op,), {"domain": domain, "inputs": ("x",)}))
    except UsageError as error:
        assert "registered already" in str(error), error
    else:
        raise AssertionError(f"{domain}.{name} replaced an operator")
"""
    assert "graphkit.ops.nn.activation" in imported_by(code)


def test_iteration_imports_all_operators() -> None:
    code = "from graphkit.ops import registry; from graphkit.ops._index import OPERATORS; "
    found = imported_by(f"{code}assert [(c.domain, c.name) for c in registry] == list(OPERATORS)")
    assert {"graphkit.ops.nn.conv", "graphkit.ops.text.tokenizer"} <= found


def test_lookup_waits_for_import_in_another_thread() -> None:
    code = """
import sys
import threading
import time
from graphkit.ops import registry

add, begun = registry.add, threading.Event()

def add_slowly(cls):
    add(cls)
    begun.set()
    time.sleep(0.05)

registry.add = add_slowly
thread = threading.Thread(target=registry.find, args=("", "Conv"))
thread.start()
begun.wait()
found = registry.find("", "Conv")
assert hasattr(sys.modules[found.__module__], "ConvTranspose")  # the last one in the file
thread.join()
"""
    assert "graphkit.ops.nn.conv" in imported_by(code)
