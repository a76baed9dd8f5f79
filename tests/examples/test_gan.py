"""A generator and a discriminator that train each other: one program a step, and images that it learns to make."""

from __future__ import annotations

import numpy as np
import pytest
from adversarial import adversarial_step, fit

import graphkit as gk
from graphkit.errors import GraphkitError, NotFinite
from graphkit.onnx_io.compare import OnnxRuntimeModel

OPTIONS = {"image": (1, 8, 8), "latent": 4, "width": 8}


def pair(**options):
    return tuple(gk.models.build("gan", part=part, **OPTIONS | options) for part in ("generator", "discriminator"))


def spread(nets, scale=0.2):
    """Draw weights that distinguish samples from the start."""
    rng = np.random.default_rng(0)
    for net in nets:
        for name in net.trainable:
            net.params[name] = (net.params[name] + scale * rng.standard_normal(net.params[name].shape)).astype(
                np.float32
            )
    return nets


def images(count, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, (count, 1, 8, 8)).astype(np.float32)


def fed_step(nets, optimizers, **options):
    """A step that takes its noise as an input, as a Model with all its states."""
    return gk.CustomTrainer(adversarial_step(*nets, optimizers, feed_noise=True, **options)).model()


def trainer(nets, optimizer=None, smoothing=0.0, **options):
    """A trainer of a generator and a discriminator by the same optimizer."""
    optimizer = optimizer or gk.optim.Adam(2e-4, beta1=0.5)
    return gk.CustomTrainer(adversarial_step(*nets, (optimizer, optimizer), smoothing=smoothing), **options)


def feeds(count, seed=0, rate=0.1):
    noise = np.random.default_rng(seed + 100).standard_normal((count, 4)).astype(np.float32)
    rates = {f"{name}/learning_rate": np.array(rate, np.float32) for name in ("generator", "discriminator")}
    return {"real": images(count, seed), "noise": noise, **rates}


# --- what a step is ---------------------------------------------------------------------------------


@pytest.mark.pytorch
@pytest.mark.parametrize("size", [8, 16])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_steps_are_those_of_the_pytorch_example(size, smoothing):
    """Discriminator on real, then on generated samples, its update, then the generator: losses and all that changes."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    torch_zoo = pytest.importorskip("torch_zoo", reason="bench/ is not part of a source distribution")
    options = OPTIONS | {"image": (1, size, size)}
    nets = spread(pair(**options))
    modules = [torch_zoo.build("gan", part=part, **options) for part in ("generator", "discriminator")]
    for net, module in zip(nets, modules, strict=True):
        for array, slot in zip(net.params.values(), torch_zoo.slots(module), strict=True):
            slot.write(array)
    ours = fed_step(nets, (gk.optim.SGD(0.1, momentum=0.9),) * 2, smoothing=smoothing)
    theirs = [torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9) for module in modules]
    generator, discriminator = modules
    bce = torch.nn.functional.binary_cross_entropy_with_logits
    exe = ours.compile(threads=1)
    for seed in range(3):
        given = feeds(6, seed)
        given["real"] = np.random.default_rng(seed).uniform(-1, 1, (6, 1, size, size)).astype(np.float32)
        found = exe.run(given)
        fake = generator(torch.tensor(given["noise"]))
        theirs[1].zero_grad()
        said = discriminator(torch.tensor(given["real"]))
        loss = bce(said, torch.full_like(said, 1 - smoothing))
        said = discriminator(fake.detach())
        loss = loss + bce(said, torch.zeros_like(said))
        loss.backward()
        theirs[1].step()
        theirs[0].zero_grad()
        said = discriminator(fake)
        deceit = bce(said, torch.ones_like(said))
        deceit.backward()
        theirs[0].step()
        np.testing.assert_allclose(found["discriminator"], loss.item(), rtol=1e-4)
        np.testing.assert_allclose(found["generator"], deceit.item(), rtol=1e-4)
    for net, module in zip(nets, modules, strict=True):
        for name, slot in zip(net.params, torch_zoo.slots(module), strict=True):
            if not name.endswith("running_var"):  # PyTorch takes the unbiased estimate
                array = slot.read()
                scale = np.abs(array).max()
                np.testing.assert_allclose(ours.params[name], array, rtol=1e-3, atol=1e-3 * scale, err_msg=name)


@pytest.mark.parametrize("opset", [17, 26])
def test_a_step_runs_in_onnx_runtime(opset):
    nets = spread(pair(image=(1, 16, 16)))
    model = fed_step(nets, (gk.optim.Adam(1e-3, beta1=0.5), gk.optim.SGD(0.1, momentum=0.5)))
    given = feeds(6) | {"real": np.random.default_rng(0).uniform(-1, 1, (6, 1, 16, 16)).astype(np.float32)}
    proto = model.to_onnx(opset=opset, with_updates=True)
    assert {node.domain for node in proto.graph.node} == {""}
    theirs = OnnxRuntimeModel(proto, threads=1).run(given)
    ours = model.compile(threads=1).run(given)
    ours |= {f"{n}_updated": a for n, a in model.params.items()}
    assert set(ours) == set(theirs)
    assert ours["generator/optimizer_step_updated"] == ours["step_count_updated"] == 1
    for name, array in ours.items():
        # Adam's first step is the sign of a gradient, however small.
        slack = 3e-3 if name.startswith("generator/") and name.count("/") == 1 else 1e-5
        np.testing.assert_allclose(array, theirs[name], rtol=1e-3, atol=slack, err_msg=name)


def test_a_step_runs_without_python_and_moves_everything(monkeypatch):
    monkeypatch.setenv("GRAPHKIT_STRICT", "1")
    nets = spread(pair(image=(1, 16, 16)))
    before = [{n: a.copy() for n, a in net.params.items()} for net in nets]
    made = trainer(nets, seed=0)
    real = np.random.default_rng(0).uniform(-1, 1, (6, 1, 16, 16)).astype(np.float32)
    losses = made.step({"real": real})
    assert np.isfinite(list(losses.values())).all()
    for net, arrays in zip(nets, before, strict=True):
        for name, array in arrays.items():
            assert not np.array_equal(net.params[name], array), name
    assert made.states["generator/optimizer_step"] == made.steps == 1


# --- what it learns ---------------------------------------------------------------------------------


def bars(count, rng):
    """Images of a bright bar, flat or upright, and a little noise: two kinds, in (-1, 1)."""
    kinds = np.full((2, 16, 16), -0.8)
    kinds[0, 4:8], kinds[1, :, 10:14] = 0.8, 0.8
    chosen = rng.integers(0, 2, count)
    return (kinds[chosen] + 0.05 * rng.standard_normal((count, 16, 16))).astype(np.float32)[:, None], kinds


@pytest.mark.full
def test_it_learns_to_make_both_kinds_of_images(monkeypatch):
    """Three in four of 400 images are near to one of the two kinds, and a quarter at least are nearer to each."""
    monkeypatch.setenv("GRAPHKIT_STRICT", "1")
    real, kinds = bars(1024, np.random.default_rng(0))
    generator, discriminator = nets = pair(image=(1, 16, 16), latent=8, width=8)
    made = trainer(nets, gk.optim.Adam(2e-3, beta1=0.5), smoothing=0.1, seed=0, threads=1)
    history = fit(made, real, epochs=20, batch_size=32)
    assert len(history) == 20
    assert np.isfinite([list(losses.values()) for losses in history]).all()
    noise = np.random.default_rng(1).standard_normal((400, 8)).astype(np.float32)
    made = generator.run({"noise": noise})["image"][:, 0]
    errors = np.abs(made[:, None] - kinds).mean(axis=(2, 3))
    assert (errors.min(axis=1) < 0.2).mean() > 0.75
    assert np.bincount(errors.argmin(axis=1), minlength=2).min() > 100
    assert gk.verify(generator, {"noise": noise[:4]}).passed
    assert gk.verify(discriminator, {"x": real[:4]}).passed


def test_the_seed_decides():
    def play(seed):
        nets = pair()
        made = trainer(nets, seed=seed)
        losses = fit(made, images(20), epochs=2, batch_size=8)
        assert made.steps == 4
        return losses, {n: a.tobytes() for net in nets for n, a in net.params.items()}

    assert play(3) == play(3)
    assert play(3) != play(4)


# --- what goes wrong --------------------------------------------------------------------------------


def test_a_sample_that_is_no_number_changes_nothing():
    nets = pair()
    made = trainer(nets, seed=0)
    made.step({"real": images(4)})
    before = {n: a.copy() for store in (nets[0].params, nets[1].params, made.states) for n, a in store.items()}
    real = images(4)
    real[1, 0, 2, 3] = np.nan
    with pytest.raises(NotFinite, match=r"a loss of step 2 is not finite, from .*; nothing has changed"):
        made.step({"real": real})
    for store in (nets[0].params, nets[1].params, made.states):
        for name, array in store.items():
            np.testing.assert_array_equal(array, before[name], err_msg=name)
    assert np.isfinite(made.step({"real": images(4)})["generator"])
    assert made.steps == 2


def test_samples_of_another_size_are_named():
    with pytest.raises(GraphkitError, match=r"^input 'real' is float32\[N, 1, 8, 8\]; .*: axis 2 is 4, not 8$"):
        trainer(pair(), seed=0).step({"real": np.zeros((2, 1, 4, 4), np.float32)})
