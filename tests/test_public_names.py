"""Names that two values have: each option takes the value that it is about, and nothing is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.cli import invoke
from graphkit.errors import UsageError

POINT = np.array([0.1, 0.2, 0.3])
TANH = np.tanh(POINT)


def named_like(name: str) -> gk.Model:
    """exp(tanh(x)^2), whose output has the name of an input or inner value."""
    x = gk.input("x", [3], "float64")
    hidden = gk.tanh(x)
    return gk.Model({name: gk.reduce_sum(gk.exp(hidden * hidden), keepdims=False)}, name="net")


@in_one_item()
@pytest.mark.parametrize("name", ["x", "tanh", "mul", "y"])
@pytest.mark.parametrize("of", [None, "by name"])
def test_a_gradient_is_of_the_output(name: str, of: str | None) -> None:
    net = named_like(name)
    found = gk.grad(net, of=None if of is None else name, wrt=["x"]).run({"x": POINT})["x_grad"]
    np.testing.assert_allclose(found, np.exp(TANH**2) * 2 * TANH * (1 - TANH**2))
    gk.check_gradient(net, {"x": POINT}).raise_if_failed()


@pytest.mark.parametrize("name", ["x", "tanh"])
def test_values_and_selections_are_outputs_first(name: str) -> None:
    net = named_like(name)
    assert net.value(name) is net.graph.outputs[0]
    expected = net.run({"x": POINT})[name]
    assert net.select(name).run({"x": POINT})[name] == expected == pytest.approx(np.exp(TANH**2).sum())
    assert net.infer_shapes(x=(3,))["x"].rank == (0 if name == "x" else 1)


def test_a_parameter_comes_before_an_output_in_wrt() -> None:
    x = gk.input("x", [3], "float64")
    w = gk.parameter("w", [3], dtype="float64")
    net = gk.Model({"w": gk.reduce_sum(x * w * w, keepdims=False)}, params={"w": np.ones(3)})
    np.testing.assert_allclose(gk.grad(net, of="w", wrt="w").run({"x": POINT})["w_grad"], 2 * POINT)


def test_no_output_is_replaced_by_a_gradient() -> None:
    x = gk.input("x", [3], "float64")
    net = gk.Model({"y": gk.reduce_sum(x * x * x, keepdims=False)})
    first = gk.grad(net, of="y", wrt=["x"], with_outputs=True)
    with pytest.raises(UsageError, match="'x' would have the name 'x_grad' of another output: give another suffix="):
        gk.grad(first, of="x_grad", wrt=["x"], with_outputs=True)
    second = gk.grad(first, of="x_grad", wrt=["x"], with_outputs=True, suffix="_grad2").run({"x": POINT})
    np.testing.assert_allclose(second["x_grad"], 3 * POINT**2)
    np.testing.assert_allclose(second["x_grad2"], 6 * POINT)
    with pytest.raises(UsageError, match="'x' is given twice"):
        gk.grad(net, wrt=["x", "x"])


def test_the_command_takes_a_suffix(tmp_path: Path, capsys: Any) -> None:
    gk.grad(named_like("y"), wrt=["x"], with_outputs=True).save(tmp_path / "first.json")
    again = ["grad", str(tmp_path / "first.json"), "--of", "x_grad", "--wrt", "x", "-o", str(tmp_path / "second.json")]
    assert invoke(again) == UsageError.exit_code
    assert "--suffix" in capsys.readouterr().err
    assert invoke([*again, "--suffix", "_grad2"]) == 0
    assert gk.load(tmp_path / "second.json").outputs == ("y", "x_grad", "x_grad2")


def trained(names: list[str], **options: Any) -> list[str]:
    """The parameters that a step changes."""
    h = gk.input("x", ["N", 3])
    for name in names:
        h = gk.mat_mul(h, gk.parameter(name, [3, 3]))
    net = gk.Model({"y": h}, seed=0)
    before = {n: np.array(net.params[n]) for n in names}
    gk.Trainer(net, "mse", gk.optim.SGD(0.1), **options).step(np.ones((2, 3), np.float32), np.zeros((2, 3), np.float32))
    return [n for n in names if (net.params[n] != before[n]).any()]


@in_one_item()
@pytest.mark.parametrize("other", ["layers0.w", "layers[1].w"])
@pytest.mark.parametrize(
    ("options", "changes"),
    [
        ({"freeze": ["layers[0].w"]}, "other"),
        ({"train": ["layers[0].w"]}, "named"),
        ({"lr_mult": {"layers[0].w": 0.0}}, "other"),
        ({"lr_mult": {"*": 0.0, "layers[0].w": 1.0}}, "named"),
    ],
    ids=str,
)
def test_a_parameters_name_is_no_pattern(other: str, options: dict[str, Any], changes: str) -> None:
    assert trained(["layers[0].w", other], **options) == ["layers[0].w" if changes == "named" else other]


def test_a_pattern_with_brackets_still_matches() -> None:
    assert trained(["a0", "a1", "b"], freeze=["a[01]"]) == ["b"]


# --- targets and losses -----------------------------------------------------------------------------------


X, Y = np.ones((4, 3), np.float32), np.array([0, 1, 2, 3])
OPTIONS = [{}, {"accumulate": 2}, {"mixup": 0.2}, {"on_nonfinite": "skip"}, {"ema": 0.9}]


def classifier(data: str, weight: str, output: str, *, own: bool = False) -> gk.Model:
    """A network whose names are given; own: an output `loss`, which is the product of the logits with themselves."""
    logits = gk.mat_mul(gk.input(data, ["N", 3]), gk.parameter(weight, [3, 4]))
    outputs = {"loss": gk.reduce_sum(logits * logits, keepdims=False)} if own else {}
    drawn = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    return gk.Model({**outputs, output: logits}, params={weight: drawn})


def losses_of(net: gk.Model, output: str, targets: Any, **options: Any) -> list[float]:
    """Losses of two steps, of an evaluation, and of an epoch."""
    trainer = gk.Trainer(net, "softmax_cross_entropy", gk.optim.SGD(0.1), output=output, seed=1, **options)
    data = next(iter(net.inputs))
    found = [float(trainer.step({data: X}, targets)) for _ in range(2)]
    found.append(trainer.evaluate((X, Y), ["accuracy", "loss"])["loss"])
    (record,) = trainer.fit((X, Y), (X, Y), epochs=1, batch_size=2, metrics=["accuracy"])
    return [*found, record["loss"], record["valid_loss"], record["valid_accuracy"]]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(
    ("data", "weight", "output", "own"),
    [
        ("target", "w", "y", False),
        ("x", "target", "y", False),
        ("x", "w", "target", False),
        ("x", "w", "loss", False),
        ("x", "w", "y", True),
        ("loss", "target_1", "loss", False),
    ],
)
def test_names_that_training_has_too_change_nothing(
    data: str, weight: str, output: str, own: bool, options: dict[str, Any]
) -> None:
    expected = losses_of(classifier("x", "w", "y"), "y", Y, **options)
    for targets in (Y, {"target": Y}, {output: Y}):
        net = classifier(data, weight, output, own=own)
        np.testing.assert_array_equal(losses_of(net, output, targets, **options), expected)


def test_an_output_called_loss_may_be_what_is_trained() -> None:
    net = classifier("x", "w", "y", own=True)
    squares = float(np.square(X @ net.params["w"]).sum())
    trainer = gk.Trainer(net, lambda own, y: own, gk.optim.SGD(0.01), targets={})
    assert float(trainer.step(X, {})) == pytest.approx(squares, rel=1e-5)
    assert float(trainer.step(X, {})) < squares


@in_one_item()
@pytest.mark.parametrize("name", ["learning_rate", "batch_weight", "total_weight", "optimizer_step", "finite"])
def test_names_of_a_step_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"has an (in|out)put '{name}', a name that training uses itself: rename it"):
        gk.Trainer(classifier(name, "w", "y"))
    with pytest.raises(UsageError, match=f"has an output '{name}'"):
        gk.Trainer(classifier("x", "w", name))


def test_the_command_trains_a_model_with_an_output_called_loss(tmp_path: Path) -> None:
    classifier("x", "w", "y", own=True).save(tmp_path / "net.onnx")
    np.savez(tmp_path / "data.npz", x=X, y=Y)
    arguments = ["--data", str(tmp_path / "data.npz"), "--output-name", "y", "-o", str(tmp_path / "run")]
    assert invoke(["train", str(tmp_path / "net.onnx"), *arguments, "--batch-size", "2"]) == 0
    assert invoke(["grad", str(tmp_path / "net.onnx"), "--of", "y", "-o", str(tmp_path / "grad.json")]) == 0
