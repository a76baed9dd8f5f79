"""Trainer(lora=...): trained and saved parameters, resuming, and the same losses as PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

import graphkit as gk
from graphkit.errors import UsageError

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((50, 6)).astype(np.float32), RNG.integers(0, 3, 50)
LORA = gk.settings.Lora(rank=2, alpha=4.0, dropout=0.2, dora=True)


def base() -> gk.Model:
    x = gk.input("x", ["N", 6])
    h = gk.nn.batch_norm(gk.tanh(gk.nn.linear(x, 5, name="body")), name="norm")
    return gk.Model({"y": gk.nn.linear(h, 3, name="head")}, name="small", seed=0)


def trainer(net: gk.Model | None = None, **options) -> gk.Trainer:
    settings = {"optimizer": gk.optim.Adam(0.05), "threads": 1, "seed": 3, "lora": LORA} | options
    return gk.Trainer(base() if net is None else net, **settings)


def test_a_trainer_adds_adapters_to_a_new_model() -> None:
    net = base()
    before = {name: np.array(array) for name, array in net.params.items()}
    run = trainer(net)
    run.fit((X, Y), epochs=2, batch_size=16, progress=False)  # 50 samples: the last batch has 2
    assert {n.split(".lora")[0] for n in run.trained} == {"body", "head"}
    assert set(run.trained) == set(run.net.trainable)
    for name, array in before.items():
        assert np.array_equal(net.params[name], array)
        assert np.array_equal(run.net.params[name], array)
    assert run.evaluate((X, Y), ["loss"])["loss"] < trainer(base()).evaluate((X, Y), ["loss"])["loss"]


def test_train_and_freeze_choose_among_all_parameters() -> None:
    assert set(trainer(train="head*").trained) == {
        "head_weight", "head_bias", "body.lora_A.weight", "body.lora_B.weight", "body.lora_magnitude_vector"
    }  # fmt: skip
    assert not any("magnitude" in name for name in trainer(freeze="*magnitude*").trained)
    with pytest.raises(UsageError, match="nothing to train"):
        trainer(freeze="*lora*")


def test_a_resumed_run_is_bit_identical(tmp_path) -> None:
    whole, first, second = trainer(), trainer(), trainer()
    options = {"batch_size": 16, "progress": False}
    whole.fit((X, Y), epochs=4, folder=tmp_path / "whole", **options)
    first.fit((X, Y), epochs=2, folder=tmp_path / "parts", **options)
    second.resume(tmp_path / "parts")
    second.fit((X, Y), epochs=4, folder=tmp_path / "parts", **options)
    for name, array in whole.net.params.items():
        assert np.array_equal(second.net.params[name], array), name
    names = ("adapter_config.json", "adapter_model.safetensors")
    assert all((tmp_path / "whole" / n).read_bytes() == (tmp_path / "parts" / n).read_bytes() for n in names)


def test_a_run_continues_from_the_model_in_its_folder(tmp_path) -> None:
    run = trainer()
    run.fit((X, Y), epochs=1, folder=tmp_path, batch_size=16, progress=False)
    net = gk.load(tmp_path)
    again = trainer(net)
    assert again.net is net
    again.resume(tmp_path)
    assert float(again.step(X[:8], Y[:8])) == float(run.step(X[:8], Y[:8]))
    with pytest.raises(UsageError, match=r"has adapters with Lora\(rank=2.*but lora= \(--lora\) is Lora\(rank=8"):
        trainer(net, lora=gk.settings.Lora())
    with pytest.raises(UsageError, match=r"train pattern 'head_weight' matches only parameters that .* froze"):
        trainer(net, train="head_weight")


def test_saved_adapters_belong_to_the_averages(tmp_path) -> None:
    run = trainer(ema=0.5)
    run.fit((X, Y), epochs=1, folder=tmp_path, batch_size=16, progress=False)
    loaded = gk.load_adapter(base(), tmp_path)
    with run.averaged() as net:
        assert np.array_equal(loaded.run({"x": X})["y"], net.run({"x": X})["y"])


def test_a_new_run_replaces_the_adapters_of_an_old_one(tmp_path) -> None:
    options = {"epochs": 1, "folder": tmp_path, "batch_size": 16, "progress": False}
    trainer().fit((X, Y), **options)
    assert (tmp_path / "adapter_config.json").exists()
    trainer(lora=None).fit((X, Y), overwrite=True, **options)
    assert not list(tmp_path.glob("adapter*"))


def test_custom_steps_keep_frozen_normalisations(tmp_path) -> None:
    adapted = gk.lora(base(), rank=2)
    before = np.array(adapted.params["norm_running_mean"])
    step = gk.StepBuilder()
    net = step.network(adapted)
    y = gk.input("t", ["N"], "int64")
    loss = gk.losses.softmax_cross_entropy(net(gk.input("x", ["N", 6])), y)
    step.minimize(loss, net, gk.optim.SGD(0.1))
    gk.CustomTrainer(step.build({"loss": loss}), threads=1).step({"x": X, "t": Y})
    assert np.array_equal(adapted.params["norm_running_mean"], before)


@pytest.mark.pytorch
@pytest.mark.parametrize("dora", [False, True])
def test_losses_of_20_steps_are_those_of_pytorch(dora: bool) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    adapted = gk.lora(base(), rank=2, alpha=4.0, dora=dora)
    parameters = {n: torch.tensor(np.array(a), requires_grad=n in adapted.trainable) for n, a in adapted.params.items()}

    def layer(x, name: str):
        w, bias, a, b = (
            parameters[n] for n in (f"{name}_weight", f"{name}_bias", *(f"{name}.lora_{p}.weight" for p in "AB"))
        )
        y, change = x @ w.T + bias, 2.0 * (x @ a.T @ b.T)
        if not dora:
            return y + change
        gain = parameters[f"{name}.lora_magnitude_vector"] / (w + 2.0 * b @ a).norm(dim=1).detach()
        return y + (gain - 1) * (y - bias) + gain * change

    def network(x):
        h = torch.tanh(layer(x, "body"))
        mean, var = parameters["norm_running_mean"], parameters["norm_running_var"]
        scaled = (h - mean) / torch.sqrt(var + 1e-5)
        return layer(scaled * parameters["norm_weight"] + parameters["norm_bias"], "head")

    optimizer = torch.optim.AdamW([parameters[n] for n in adapted.trainable], lr=0.02, weight_decay=0.01)
    run = gk.Trainer(adapted, optimizer=gk.optim.AdamW(0.02, weight_decay=0.01), threads=1)
    for i in range(20):
        x, y = X[i : i + 16], Y[i : i + 16]
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(network(torch.tensor(x)), torch.tensor(y))
        loss.backward()
        optimizer.step()
        np.testing.assert_allclose(float(run.step(x, y)), loss.item(), rtol=1e-5)


@pytest.mark.parametrize("settings", [{"rank": 4}, 4])
def test_other_settings_of_adapters_are_usage_errors(settings) -> None:
    with pytest.raises(UsageError, match=r"Trainer: lora must be a gk\.settings\.Lora\(rank=\.\.\., \.\.\.\) or None"):
        gk.Trainer(base(), lora=settings)
