"""Former names of attributes, methods, arguments and classes still work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphkit as gk
from graphkit import data
from graphkit.errors import UsageError
from graphkit.ops._op import declared


def _net() -> gk.Model:
    return gk.Model({"y": gk.nn.linear(gk.input("x", ["N", 3]), 2, name="fc")})


def test_attributes_of_a_trainer_have_former_names() -> None:
    trainer = gk.Trainer(_net(), "softmax_cross_entropy", gk.optim.SGD(0.1, momentum=0.9))
    trainer.torn = True
    assert trainer.step_incomplete
    with pytest.raises(UsageError, match=r"set trainer\.step_incomplete = False"):
        trainer.fit((np.zeros((2, 3), np.float32), np.zeros(2, np.int64)))
    trainer.step_incomplete = False
    assert (trainer.torn, trainer.adds_scores) == (False, trainer.callbacks_may_add_scores)
    assert trainer.slot_bytes() == trainer.optimizer_state_bytes() == 4 * (3 * 2 + 2)
    assert trainer.left(4) == trainer.remaining_epochs(4) == 4


def test_fields_of_a_plan_have_former_names() -> None:
    plan = _net().compile(shapes={"x": (2, 3)}).plan
    named = {"staged_because": "staging_reason", "host_looks": "host_conditions"}
    stored = plan.to_dict()
    for former, present in named.items():
        assert getattr(plan, former) == getattr(plan, present)
        assert stored[former] == stored[present]


def test_run_takes_the_former_name_of_discard() -> None:
    exe = _net().compile()
    feeds = {"x": np.ones((2, 3), np.float32)}
    np.testing.assert_array_equal(exe.run(feeds, unread=["y"])["y"], exe.run(feeds, discard=["y"])["y"])


def test_data_classes_have_former_names() -> None:
    assert data.Pictures is data.ImageDataset
    assert data.Iterated is data.IterableDataset
    assert not {"Pictures", "Iterated"} & set(data.__all__)


def test_a_data_set_that_overrides_former_methods_is_used() -> None:
    class Doubled(data.LazyDataset):
        def sample(self, number: int, draw: Any) -> tuple[Any, Any]:
            return np.float32(number), number

        def made(self, places: Any, key: Any, making: Any) -> Any:
            inputs, targets = super().made(places, key, making)
            return 2 * inputs, targets

    np.testing.assert_array_equal(Doubled(3).take([0, 2])[0], [0, 4])
    assert data.LazyDataset.note is data.LazyDataset.report_damaged


def test_operators_may_define_former_names_of_attributes() -> None:
    class Picky(gk.Op):
        domain = "test"
        inputs = ("x",)
        substitutes, widens, refuses_values = True, False, True

        def refusal(self, inputs: Any) -> Any:
            return ("picky", *super().refusal(inputs))

    assert (Picky.symbolic_inference, Picky.reference_in_float32, Picky.checks_values) == (True, False, True)
    assert Picky.value_check(declared(Picky)(), [None])[0] == "picky"
    present = gk.relu.op
    assert (present.substitutes, present.widens) == (present.symbolic_inference, present.reference_in_float32)


@pytest.mark.parametrize(("former", "present"), [("after", "control_dependency"), ("nested_sum", "add_n")])
def test_operators_have_former_names(former: str, present: str, tmp_path: Path) -> None:
    x = gk.input("x", [3])
    y = getattr(gk, former)(x, gk.exp(x))
    assert y.node.op == getattr(gk, present)(x, x).node.op
    path = tmp_path / "net.json"
    gk.Model({"y": y}).save(path)
    name, old = y.node.op.name, type(y.node.op).former_names[0]
    path.write_text(path.read_text().replace(f'"{name}"', f'"{old}"'))
    assert f'"{old}"' in path.read_text()
    assert name in [node.op.name for node in gk.load(path).graph.nodes]
