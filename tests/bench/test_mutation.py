"""Planted faults: the changed text of a file, and the tests that judge a fault."""

import ast
import json

import mutation
import mutation_environment
import mutation_planting as planting
import pytest
from mutation_environment import ReachedBy

SOURCE = '''"""Words."""

from __future__ import annotations

LIMIT = 3


def first(values: list[int], start: int = 1) -> int:
    width: int = start + 2
    if start < 0 or not values:
        raise ValueError(f"{start + 1} is too much")
    for value in values:
        width = width * value
    return width


def __repr__() -> str:
    return "x" * 3
'''


@pytest.fixture
def file(monkeypatch, tmp_path):
    (tmp_path / "source.py").write_text(SOURCE)
    monkeypatch.setattr(planting, "ROOT", tmp_path)
    return "source.py"


def _run(text, active):
    """The function `first` of a planted file, with one active fault."""
    text = text.replace("from graphkit_faults import fault as _fault", "")
    names = {"_fault": {number: number == active for number in range(20)}}
    exec(compile(text, "planted", "exec"), names)
    return names["first"]


def test_each_fault_changes_one_thing(file):
    faults = dict(enumerate(planting.python_faults(file, "rules")))
    changes = {(fault.old, fault.new): number for number, fault in faults.items()}
    # Not in annotations, defaults, messages, texts of objects, and tables of the module.
    assert set(changes) == {("+", "-"), ("2", "3"), ("<", "<="), ("0", "1"), ("or", "and"), ("*", "+")}
    text = planting.planted(file, faults)
    assert _run(text, None)([5], 1) == 15
    assert _run(text, changes["+", "-"])([5], 1) == -5
    assert _run(text, changes["2", "3"])([5], 1) == 20
    assert _run(text, changes["*", "+"])([5], 1) == 8
    assert _run(text, changes["or", "and"])([5], -1) == 5
    with pytest.raises(ValueError, match="too much"):
        _run(text, changes["<", "<="])([5], 0)


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ("    for value in values:\n        width = width * value\n", "", 3),
        ("        width = width * value\n", "        width = value\n        width += 1\n", 6),
    ],
)
def test_named_fault_replaces_statements(file, old, new, wanted):
    drawn = planting.python_faults(file, "rules")
    named = planting.Fault("rules", file, 12, "", -1, old, new, "an omission")
    text = planting.planted(file, dict(enumerate([*drawn, named])))
    assert _run(text, None)([5], 1) == 15
    assert _run(text, len(drawn))([5], 1) == wanted


def test_fault_that_does_not_fit_is_refused(file):
    fault = planting.python_faults(file, "rules")[0]
    changed = planting.Fault("rules", file, fault.line + 1, fault.text, fault.place, fault.old, fault.new)
    with pytest.raises(planting.CannotPlant):
        planting.planted(file, {0: changed})


def test_every_named_fault_is_in_its_file():
    faults = planting.named_faults()
    assert len({(fault.file, fault.old, fault.new) for fault in faults}) == len(faults)
    for fault in faults:
        text = (planting.ROOT / fault.file).read_text()
        changed = planting.apply(fault, text)
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text))
        assert "_fault[5]" in planting.planted(fault.file, {5: fault})


def test_hits_of_a_shared_fixture_count_for_its_tests(tmp_path):
    entries = [
        {"key": "1.1", "file": "tests/a.py"},
        {"key": "1.3", "test": "tests/a.py::x", "seconds": 1, "fixtures": ["1.2"], "failed": False, "skipped": False},
        {"key": "1.4", "test": "tests/a.py::y", "seconds": 2, "fixtures": [], "failed": False, "skipped": False},
        {"key": "1.5", "test": "tests/b.py::z", "seconds": 3, "fixtures": [], "failed": False, "skipped": False},
        {"key": "1.6", "test": "tests/b.py::bad", "seconds": 3, "fixtures": [], "failed": True, "skipped": False},
    ]
    (tmp_path / "index.1").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    (tmp_path / "hits.1").write_text("7\t1.2\n8\t1.1\n9\tstart\n9\t1.3\n6\t1.6\n5\t1.4\n5\t1")
    found = ReachedBy.of(tmp_path)
    assert found.failed == ["tests/b.py::bad"]
    everything = ["tests/a.py::x", "tests/a.py::y", "tests/b.py::z"]
    assert found.reached["7"] == everything[:1]
    assert found.reached["8"] == everything[:2]
    assert found.reached["9"] == everything
    assert found.reached["6"] == []
    assert found.reached["5"] == ["tests/a.py::y"]


def test_near_and_cheap_tests_come_first():
    fault = planting.Fault("passes", "graphkit/passes/fuse/conv.py", 1, "", 0, "+", "-")
    seconds = {
        "tests/train/test_fit.py::a": 0.1,
        "tests/passes/fuse/test_conv.py::b": 0.1,
        "tests/ir/test_x.py::c": 40.0,
    }
    assert mutation.in_order(fault, sorted(seconds), seconds) == [
        "tests/passes/fuse/test_conv.py::b", "tests/train/test_fit.py::a", "tests/ir/test_x.py::c",
    ]  # fmt: skip
    many = {str(number): 1.0 for number in range(100)}
    parts = list(mutation.batches(list(many), many))
    assert [test for part in parts for test in part] == list(many)
    assert len(parts[0]) < len(parts[1]) < len(parts[2])


def test_replaced_line_is_in_the_loader():
    loader = (mutation_environment.ROOT / "graphkit/executor/devices/cpu/_base.py").read_text()
    assert loader.count(mutation_environment._BASE) == 1
