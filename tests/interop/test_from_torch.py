"""Models from PyTorch modules compute and train like the modules, with the same names."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest

import graphkit as gk

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("onnxscript", reason="onnxscript, which PyTorch's exporter needs, is not installed")
import torch_modules as modules  # noqa: E402

pytestmark = [
    pytest.mark.pytorch,
    # PyTorch's own, at its first export in a process.
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
functional = torch.nn.functional


def assert_equal_outputs(module, net, *arrays, **named):
    module.eval()
    with torch.no_grad():
        theirs = module(*map(torch.as_tensor, arrays), **{n: torch.as_tensor(a) for n, a in named.items()})
    ours = net.run(dict(zip(net.inputs, arrays, strict=False)) | named)
    leaves = torch.utils._pytree.tree_leaves(theirs)
    assert len(leaves) == len(ours)
    for array, tensor in zip(ours.values(), leaves, strict=True):
        np.testing.assert_allclose(array, tensor.numpy(), rtol=1e-4, atol=1e-5)


def square(output):
    return gk.reduce_mean(gk.mul(output, output), keepdims=False)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def tokens(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 20, shape)


def batches(kind):
    """20 batches. The last ones are smaller."""
    sizes = [4] * 18 + [3, 2]
    if kind == "images":
        return [(normal(n, 3, 8, 8, seed=i), tokens(n, seed=i) % 5) for i, n in enumerate(sizes)]
    return [(tokens(n, 7, seed=i), tokens(n, 7, seed=i + 99)) for i, n in enumerate(sizes)]


OPTIMIZERS = {
    "sgd": (lambda: gk.optim.SGD(0.1, momentum=0.9), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
    "adam": (lambda: gk.optim.Adam(1e-2), lambda p: torch.optim.Adam(p, 1e-2)),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("name", "kind"), [("ConvNet", "images"), ("Lstm", "texts"), ("TiedTransformer", "texts")])
def test_training_gives_the_losses_of_pytorch(name, kind, optimizer):
    torch.manual_seed(0)
    module = getattr(modules, name)()
    if name == "ConvNet":
        module.fc.bias.requires_grad_(False)
    data = batches(kind)
    ours, theirs = OPTIMIZERS[optimizer]
    net = gk.from_torch(module, torch.as_tensor(data[0][0]), train=True)
    trainer = gk.Trainer(net, "softmax_cross_entropy", ours(), threads=1)
    stepper = theirs([p for p in module.parameters() if p.requires_grad])
    module.train()
    losses = []
    for inputs, targets in data:
        output = module(torch.as_tensor(inputs))
        loss = functional.cross_entropy(output.flatten(0, -2), torch.as_tensor(targets).flatten())
        stepper.zero_grad()
        loss.backward()
        stepper.step()
        losses.append((float(trainer.step(inputs, targets)), loss.item()))
    found, wanted = np.array(losses).T
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert wanted.std() > 0.01  # the losses change
    trained = module.state_dict()
    assert net.state_dict().keys() == trained.keys()
    for label, array in net.state_dict().items():
        if optimizer == "adam" and label.endswith("in_proj_bias"):
            continue  # the gradient of the keys' bias is 0, so Adam scales rounding errors
        np.testing.assert_allclose(array, trained[label].numpy(), rtol=2e-3, atol=2e-5, err_msg=label)
    assert_equal_outputs(module, net, data[0][0])


def test_running_variance_is_unbiased_with_few_elements():
    module = torch.nn.BatchNorm1d(3)
    net = gk.from_torch(module, torch.ones(2, 3), train=True)
    x = normal(2, 3)
    gk.Trainer(net, square, "sgd", targets={}).step(x, {})
    module.train()(torch.as_tensor(x))
    np.testing.assert_allclose(net.params["running_var"], module.running_var.numpy(), rtol=1e-6)
    assert int(net.params["num_batches_tracked"]) == int(module.num_batches_tracked) == 1
    biased = 0.9 + 0.1 * x.var(0)
    assert not np.allclose(net.params["running_var"], biased, rtol=1e-3)


def test_statistics_follow_pytorchs_rule_after_saving(tmp_path):
    module = torch.nn.BatchNorm1d(3)
    net = gk.from_torch(module, torch.ones(2, 3), train=True)
    x = normal(2, 3)
    module.train()(torch.as_tensor(x))
    for suffix in ("json", "onnx"):
        net.save(tmp_path / f"net.{suffix}")
        loaded = gk.load(tmp_path / f"net.{suffix}")
        gk.Trainer(loaded, square, "sgd", targets={}).step(x, {})
        np.testing.assert_allclose(loaded.params["running_var"], module.running_var.numpy(), rtol=1e-6)
        assert loaded.params["num_batches_tracked"] == 1


def test_dropout_drops_in_training_only():
    module = modules.ConvNet(dropout=0.5)
    x = normal(4, 3, 8, 8)
    net = gk.from_torch(module, torch.as_tensor(x), train=True)
    assert "Dropout" in net.graph.operators
    assert_equal_outputs(module, net, x)
    trainer = gk.Trainer(net, "softmax_cross_entropy", gk.optim.SGD(0.0), seed=1)
    first, second = (float(trainer.step(x, np.arange(4))) for _ in range(2))
    assert first != second
    assert "Dropout" not in gk.from_torch(module, torch.as_tensor(x)).graph.operators


def test_dropout_in_place():
    module = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Dropout(0.5, inplace=True))
    net = gk.from_torch(module, torch.ones(2, 4), train=True)
    assert module[1].inplace
    assert "Dropout" in net.graph.operators
    assert_equal_outputs(module, net, normal(3, 4))


class Reparametrised(torch.nn.Module):
    """Random numbers of both modes, as in a variational autoencoder."""

    def forward(self, x):
        return x + torch.randn_like(x)


@pytest.mark.parametrize("layer", [torch.nn.Dropout2d(0.5), torch.nn.AlphaDropout(0.5)], ids=["2d", "alpha"])
def test_random_numbers_of_training_only_are_refused(layer):
    module = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), layer)
    x = normal(2, 1, 5, 5)
    with pytest.raises(gk.errors.UnsupportedError, match="draws random numbers in training"):
        gk.from_torch(module, torch.as_tensor(x), train=True)
    assert_equal_outputs(module, gk.from_torch(module, torch.as_tensor(x)), x)


def test_random_numbers_of_both_modes_are_kept():
    net = gk.from_torch(Reparametrised(), torch.ones(2, 4), train=True)
    x = np.zeros((500, 4), np.float32)
    assert net.run({"x": x})["output"].std() == pytest.approx(1, abs=0.1)


def test_module_keeps_its_mode_and_values():
    module = modules.ConvNet(dropout=0.5).train()
    module.bn1.eval()
    modes = [part.training for part in module.modules()]
    before = copy.deepcopy(module.state_dict())
    random = torch.get_rng_state()
    for train in (False, True):
        gk.from_torch(module, torch.ones(2, 3, 8, 8), train=train)
    assert [part.training for part in module.modules()] == modes
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)


def test_changes_of_the_model_do_not_reach_the_module():
    module = torch.nn.Linear(2, 2)
    before = module.weight.detach().clone()
    net = gk.from_torch(module, torch.ones(1, 2))
    net.params["weight"] = np.zeros((2, 2), np.float32)
    assert torch.equal(module.weight, before)


def test_names_and_roles_are_those_of_the_module():
    module = modules.Buffers()
    module.fc.bias.requires_grad_(False)
    net = gk.from_torch(module, torch.ones(2, 4))
    assert list(net.params) == ["unused", "order", "scale", "fc.weight", "fc.bias"] == list(module.state_dict())
    roles = {net.graph.name_of(v): v.role for v in net.graph.inputs}
    assert roles == {
        "x": "data", "unused": "parameter", "order": "state", "scale": "state", "fc.weight": "parameter",
        "fc.bias": "parameter",
    }  # fmt: skip
    assert net.trainable == ("unused", "fc.weight")
    assert net.num_parameters == sum(p.numel() for p in module.parameters())
    assert_equal_outputs(module, net, normal(3, 4))
    net.load_state_dict({**module.state_dict(), "order": torch.arange(4)})
    module.order.copy_(torch.arange(4))
    assert_equal_outputs(module, net, normal(3, 4))


def test_constants_of_the_module_are_not_trained():
    module = modules.Buffers()
    net = gk.from_torch(module, torch.ones(2, 4), train=True)
    before = net.state_dict()
    gk.Trainer(net, "mse", gk.optim.SGD(0.1)).step(normal(2, 4), normal(2, 4, seed=1))
    changed = [name for name, array in net.state_dict().items() if not np.array_equal(array, before[name])]
    assert changed == ["fc.weight", "fc.bias"]


def test_tied_weights_stay_one_tensor():
    module = modules.TiedTransformer()
    net = gk.from_torch(module, torch.as_tensor(tokens(2, 7)))
    assert "embedding.weight" in net.params
    assert "out.weight" not in net.params
    state = net.state_dict()
    assert state.keys() == module.state_dict().keys()
    np.testing.assert_array_equal(state["out.weight"], state["embedding.weight"])
    fresh = modules.TiedTransformer()
    net.load_state_dict(fresh.state_dict())
    assert_equal_outputs(fresh, net, tokens(3, 7))
    with pytest.raises(gk.errors.InputError, match=r"'embedding.weight' and 'out.weight' are one tensor"):
        net.load_state_dict({**fresh.state_dict(), "out.weight": torch.zeros(20, 16)})


def test_merged_adapters_untie_weights():
    net = gk.from_torch(modules.TiedTransformer(), torch.as_tensor(tokens(2, 7)))
    adapted = gk.lora(net, rank=2, layers="out", seed=0)
    for name in adapted.trainable:
        adapted.params[name] = adapted.params[name] + normal(*adapted.params[name].shape).astype(np.float32)
    merged = gk.merge_lora(adapted)
    assert "out.weight" in merged.params
    state = merged.state_dict()
    assert not np.array_equal(state["out.weight"], state["embedding.weight"])
    merged.load_state_dict(state)
    for name, array in state.items():
        np.testing.assert_array_equal(merged.params[name], array)


def test_parts_of_a_tied_model_have_a_state_dict():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)
            self.b.weight = self.a.weight

        def forward(self, x):
            return {"u": self.b(torch.relu(self.a(x))), "v": self.c(x)}

    net = gk.from_torch(Tied(), torch.zeros(2, 4))
    assert set(net.select("v").state_dict()) == {"c.weight", "c.bias"}
    assert set(net.select("u").state_dict()) == {"a.weight", "a.bias", "b.weight", "b.bias"}


def test_gradients_stop_at_detach_and_no_grad():
    torch.manual_seed(0)
    module = modules.Detached()
    x, target = normal(5, 4), normal(5, 3, seed=1)
    net = gk.from_torch(module, torch.as_tensor(x), train=True)
    functional.mse_loss(module(torch.as_tensor(x)), torch.as_tensor(target)).backward()
    before = net.state_dict()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gk.Trainer(net, "mse", gk.optim.SGD(1.0), freeze=["b.*"]).step(x, target)
    for name, parameter in module.named_parameters():
        wanted = np.zeros(parameter.shape, np.float32) if parameter.grad is None else parameter.grad.numpy()
        np.testing.assert_allclose(before[name] - net.params[name], wanted, rtol=1e-4, atol=1e-6, err_msg=name)
    assert module.b.weight.grad is None
    with pytest.raises(gk.errors.UsageError, match=r"no gradient reaches b\.weight"):
        gk.Trainer(net, "mse", "sgd")


def test_several_inputs_and_outputs_have_names():
    module = modules.Several()
    net = gk.from_torch(
        module, {"x": torch.ones(2, 3), "y": torch.ones(2, 2), "scale": torch.tensor(2.0)}
    )  # fmt: skip
    assert net.inputs == ("x", "y", "scale")
    assert net.outputs == ("sum", "parts_0", "parts_1")
    assert str(net.input_types["x"]) == "float32[N, 3]"
    for n in (1, 5):
        assert_equal_outputs(module, net, normal(n, 3), normal(n, 2), scale=np.float32(3))


@pytest.mark.parametrize("batch", [1, 2])
def test_batch_is_dynamic_even_for_an_example_of_one_sample(batch):
    module = modules.ConvNet()
    net = gk.from_torch(module, (torch.ones(batch, 3, 8, 8),))
    assert str(net.input_types["x"]) == "float32[N, 3, 8, 8]"
    for n in (1, 3):
        assert_equal_outputs(module, net, normal(n, 3, 8, 8))


def test_named_dimensions():
    module = modules.Lstm()
    example = torch.as_tensor(tokens(2, 7))
    net = gk.from_torch(module, example, {"tokens": {0: "batch", 1: "time"}})
    assert str(net.input_types["tokens"]) == "int64[batch, time]"
    assert str(net.output_types["output"]) == "float32[batch, time, 20]"
    assert_equal_outputs(module, net, tokens(3, 4))
    positional = gk.from_torch(module, example, ({1: torch.export.Dim("T")},))
    assert str(positional.input_types["tokens"]) == "int64[2, T]"
    fixed = gk.from_torch(module, example, {"tokens": None})
    assert str(fixed.input_types["tokens"]) == "int64[2, 7]"


def test_fixed_first_axis_is_an_error_that_names_it():
    class Fixed(torch.nn.Module):
        def forward(self, x):
            return x + torch.arange(3.0).reshape(3, 1)

    with pytest.raises(gk.errors.UsageError, match=r"fixes the first axis of input 'x' at 3.*dynamic_shapes"):
        gk.from_torch(Fixed(), torch.ones(3, 2))
    assert str(gk.from_torch(Fixed(), torch.ones(3, 2), {"x": {1: "N"}}).input_types["x"]) == "float32[3, N]"


def test_parameters_with_the_names_of_results():
    """The exporter calls results after operators: mul, val_0."""

    class Clashing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.mul = torch.nn.Parameter(torch.full((3,), 2.0))
            self.val_0 = torch.nn.Parameter(torch.full((3,), 5.0))

        def forward(self, x):
            return (x * self.mul).sum(1) * self.val_0.mean()

    module = Clashing()
    net = gk.from_torch(module, torch.ones(2, 3))
    assert set(net.params) == {"mul", "val_0"}
    assert_equal_outputs(module, net, normal(4, 3))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_float_types(dtype):
    module = torch.nn.Linear(4, 3).to(getattr(torch, dtype))
    net = gk.from_torch(module, torch.ones(2, 4, dtype=getattr(torch, dtype)))
    assert str(net.params["weight"].dtype) == dtype
    x = normal(2, 4)
    with torch.no_grad():
        theirs = module(torch.as_tensor(x).to(module.weight.dtype)).double().numpy()
    ours = net.run({net.inputs[0]: x.astype(net.params["weight"].dtype)})["output"].astype(float)
    np.testing.assert_allclose(ours, theirs, rtol=1e-2, atol=1e-2)


# --- errors ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (modules.Branching(), r"cannot export Branching: Could not guard on data-dependent.*torch_modules\.py"),
        (modules.Counting(), r"forward of Counting changes 'level'"),
        (torch.nn.BatchNorm1d(4, momentum=None), r"cannot export BatchNorm1d"),
    ],
    ids=["branch", "buffer", "cumulative"],
)  # fmt: skip
def test_module_that_cannot_be_exported_is_an_error_with_the_reason(module, reason):
    with pytest.raises(gk.errors.UnsupportedError, match=reason):
        gk.from_torch(module, torch.ones(2, 4), train=True)


@pytest.mark.parametrize(("value", "kind"), [(3, "an int"), (1.5, "a float"), (True, "a bool"), ("text", "a str")])
def test_results_that_are_no_tensors_are_named(value, kind):
    class Mixed(torch.nn.Linear):
        def forward(self, input):
            return None, super().forward(input), value

    with pytest.raises(gk.errors.UnsupportedError, match=rf"forward returns {kind} \({value!r}\); an output of Mixed"):
        gk.from_torch(Mixed(4, 3), torch.ones(2, 4))


def test_results_that_are_none_or_sizes():
    class Sizes(torch.nn.Linear):
        def forward(self, input):
            return None, super().forward(input), input.shape[0]

    module = Sizes(4, 3)
    found = gk.from_torch(module, torch.ones(2, 4)).run({"input": normal(5, 4)})
    expected = module(torch.from_numpy(normal(5, 4)))[1].detach().numpy()
    output, size = found.values()
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6)
    assert size == 5


def test_operator_without_onnx_form_is_named():
    class Eigenvalues(torch.nn.Module):
        def forward(self, x):
            return torch.linalg.eigvals(x)

    with pytest.raises(gk.errors.UnsupportedError, match=r"cannot export Eigenvalues.*aten\.linalg_eig") as caught:
        gk.from_torch(Eigenvalues(), torch.ones(2, 3, 3))
    assert caught.value.__cause__ is not None


def test_layers_that_train_differently_are_refused():
    tables = torch.nn.Sequential(torch.nn.Embedding(9, 4, padding_idx=0), torch.nn.Linear(4, 2))
    example = torch.zeros(2, 3, dtype=torch.long)
    with pytest.raises(gk.errors.UnsupportedError, match=r"0 \(Embedding\) has padding_idx"):
        gk.from_torch(tables, example, train=True)
    with pytest.warns(gk.GraphkitWarning, match="training differs from PyTorch's"):
        net = gk.from_torch(tables, example)
    assert_equal_outputs(tables, net, np.array([[0, 1, 2]]))
    recurrent = torch.nn.LSTM(4, 4, num_layers=2, dropout=0.5)
    with pytest.raises(gk.errors.UnsupportedError, match=r"the module \(LSTM\) has dropout between its layers"):
        gk.from_torch(recurrent, torch.ones(2, 3, 4), train=True)


def test_parameter_with_the_name_of_an_argument_is_refused():
    with pytest.raises(
        gk.errors.UnsupportedError, match="'x' is the name of an argument of forward and of a parameter"
    ):
        gk.from_torch(modules.OneName(), torch.ones(2, 3))


def test_arguments_of_other_kinds_are_errors():
    with pytest.raises(gk.errors.InputError, match=r"must be a torch.nn.Module, not"):
        gk.from_torch(lambda x: x, torch.ones(2))
    with pytest.raises(gk.errors.InputError, match="example_inputs must be a tensor"):
        gk.from_torch(torch.nn.Linear(2, 2), 3)
    with pytest.raises(gk.errors.UnsupportedError, match="cannot export Linear"):
        gk.from_torch(torch.nn.Linear(2, 2), torch.ones(2, 5))
    x = torch.ones(2, 2)
    for module, given in ((torch.nn.Linear(2, 2), (x, x)), (torch.nn.Linear(2, 2), {"z": x}),
                          (torch.nn.Bilinear(2, 2, 2), x)):  # fmt: skip
        with pytest.raises(gk.errors.InputError, match=r"forward of \w*inear does not accept example_inputs: "):
            gk.from_torch(module, given)


def test_missing_exporter_is_an_error_that_names_it(monkeypatch):
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnxscript" else find(name))
    with pytest.raises(gk.errors.MissingDependency, match=r"gk\.from_torch needs onnxscript; install with: pip"):
        gk.from_torch(torch.nn.Linear(2, 2), torch.ones(2, 2))
