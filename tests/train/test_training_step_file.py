"""Training steps as ONNX files: ONNX Runtime trains with them to the losses and parameters of a Trainer."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import RuntimeFailure, UnsupportedError, UsageError
from graphkit.ir.atomic import PendingFile
from graphkit.onnx_io import writing
from graphkit.ops import F
from graphkit.train.exported import rates

GUIDE = Path(__file__).parents[2] / "docs" / "training_step.md"


class RuntimeTrainer:
    """Trains with the files in ONNX Runtime. It uses only the files."""

    def __init__(self, path):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        self.session = onnxruntime.InferenceSession(str(path), options)
        self.about = json.loads(self.session.get_modelmeta().custom_metadata_map["graphkit.training_step"])
        first = onnxruntime.InferenceSession(str(path.parent / self.about["init"]), options)
        self.states = dict(zip([o.name for o in first.get_outputs()], first.run(None, {}), strict=True))
        # A program without JSON knows the states by this order.
        assert [s["input"] for s in self.about["states"]] == list(self.states)
        names = [output.name for output in self.session.get_outputs()]
        assert names[0] == self.about["loss"]
        assert names[len(names) - len(self.states) :] == [s["output"] for s in self.about["states"]]

    def step(self, **feeds):
        new = {s["output"]: s["input"] for s in self.about["states"]}
        loss, *arrays = self.session.run([self.about["loss"], *new], {**feeds, **self.states})
        self.states = dict(zip(new.values(), arrays, strict=True))
        return float(loss)

    def with_role(self, role):
        return {s["input"]: self.states[s["input"]] for s in self.about["states"] if s["role"] == role}


def exported(trainer, tmp_path, **options):
    found = trainer.to_onnx(tmp_path / "step.onnx", **options)
    assert found.report is not None
    assert found.report.passed
    return RuntimeTrainer(tmp_path / "step.onnx")


def agree(trainer, tmp_path, batches, tolerance=1e-4, **options):
    """Train on batches (inputs by name, target) in both. Losses and trained parameters must agree."""
    theirs = exported(trainer, tmp_path, **options)
    ours = []
    for inputs, target in batches:
        ours.append(float(trainer.step(inputs, target)))
        loss = theirs.step(**inputs, target=target)
        assert loss == pytest.approx(ours[-1], rel=tolerance), len(ours)
    assert len(set(ours)) > 1, "a step that changes nothing would pass"
    found = theirs.with_role("parameter")
    assert set(found) == set(trainer.trained)
    for name, array in found.items():
        np.testing.assert_allclose(array, trainer.net.params[name], rtol=0.05, atol=5 * tolerance, err_msg=name)
    return theirs


def vectors(count, sizes=(8, 8, 5, 1), features=6, classes=3):
    rng = np.random.default_rng(0)
    for number in range(count):
        n = sizes[number % len(sizes)]
        yield {"x": rng.standard_normal((n, features), np.float32)}, rng.integers(0, classes, n)


def tokens(count, shape, vocab=20):
    rng = np.random.default_rng(0)
    for number in range(count):
        size = shape((4, 4, 3, 2)[number % 4])
        yield {"x": rng.integers(0, vocab, size)}, rng.integers(0, vocab, size)


def small(dropout=0.0, dtype="float32"):
    h = gk.tanh(gk.nn.linear(gk.input("x", ["N", 6], dtype), 8, name="fc1"))
    h = gk.nn.dropout(h, dropout) if dropout else h
    return gk.Model({"logits": gk.nn.linear(h, 3, name="fc2")}, name="small", seed=0)


# --- networks ---------------------------------------------------------------------------------------


def test_convolutions_train_with_uneven_batches(tmp_path):
    x = gk.input("x", ["N", 1, 8, 8])
    h = gk.nn.batch_norm(gk.nn.conv2d(x, 4, 3, bias=False, name="conv"), name="bn")
    h = gk.nn.dropout(gk.flatten(gk.relu(h)), 0.3)
    net = gk.Model({"logits": gk.nn.linear(h, 10, name="fc")}, seed=0)
    schedule = gk.optim.Warmup(gk.optim.Cosine(0.02, steps=20), 4)
    trainer = gk.Trainer(net, optimizer=gk.optim.AdamW(schedule), clip_norm=1.0, ema=0.9, seed=2**40 + 3)
    rng = np.random.default_rng(0)
    sizes = (8, 8, 5, 2) * 5
    batches = [({"x": rng.standard_normal((n, 1, 8, 8), np.float32)}, rng.integers(0, 10, n)) for n in sizes]
    theirs = agree(trainer, tmp_path, batches)
    assert theirs.with_role("random")["random_state"].tolist() == [2**40 + 3, 20]
    assert theirs.with_role("step")["optimizer_step"] == 20
    for name, array in theirs.with_role("statistic").items():
        np.testing.assert_allclose(array, net.params[name], rtol=1e-4, atol=1e-6, err_msg=name)
    for name, array in theirs.with_role("average").items():
        np.testing.assert_allclose(array, trainer._stepper.slots[name], atol=1e-3, err_msg=name)


def test_loops_and_branches_with_dropout_train(tmp_path):
    small_normal = {"type": "normal", "std": 0.4}
    w, v = (gk.parameter(name, (6, 6), init=small_normal) for name in "wv")
    x = gk.input("x", ["N", 6])
    total = F.reduce_sum(x, keepdims=False)
    h = gk.cond(
        F.greater(total, np.float32(0)), lambda a: gk.nn.dropout(gk.tanh(a @ w), 0.2), lambda a: gk.relu(a @ v),
        gk.nn.linear(x, 6),
    )  # fmt: skip
    limit = F.min(F.cast(F.add(F.abs(total), np.float32(1.5)), to="int64"), F.constant(value=np.asarray(4)))
    _, h = gk.while_loop(
        lambda s: F.less(s[0], limit),
        lambda s: (s[0] + np.int64(1), gk.nn.dropout(gk.tanh(s[1] @ w + s[1]), 0.1)),
        (F.constant(value=np.asarray(0)), h),
        maximum_iterations=5,
    )
    net = gk.Model({"logits": gk.nn.linear(h, 3)}, seed=0)
    agree(gk.Trainer(net, optimizer="adam"), tmp_path, vectors(24, sizes=(4, 4, 3, 2)))
    operators = {node.op_type for node in onnx.load(tmp_path / "step.onnx").graph.node}
    assert {"If", "Loop"} <= operators


@pytest.mark.full
def test_lenet_trains(tmp_path):
    net = gk.models.build("lenet", image=(1, 28, 28), classes=10)
    rng = np.random.default_rng(0)
    sizes = (8, 8, 5, 2) * 6
    batches = [({"x": rng.standard_normal((n, 1, 28, 28), np.float32)}, rng.integers(0, 10, n)) for n in sizes]
    agree(gk.Trainer(net, optimizer=gk.optim.SGD(0.01, momentum=0.9)), tmp_path, batches)


@pytest.mark.full
@pytest.mark.parametrize("opset", [17, 21, 24])
def test_lstm_language_model_trains(tmp_path, opset):
    dropout = 0.2 if opset > 17 else 0.0
    net = gk.models.build("lstm_lm", vocab=20, hidden=12, layers=2, dropout=dropout)
    trainer = gk.Trainer(net, optimizer="adam", clip_norm=1.0)
    agree(trainer, tmp_path, tokens(24, lambda n: (7, n)), opset=opset)


@pytest.mark.full
def test_only_the_adapters_of_a_transformer_are_states(tmp_path):
    net = gk.models.build("transformer_lm", vocab=20, width=16, heads=2, layers=2, length=12)
    trainer = gk.Trainer(net, optimizer="adamw", lora=gk.settings.Lora(rank=2, dropout=0.1))
    theirs = agree(trainer, tmp_path, tokens(24, lambda n: (n, 9)))
    assert not set(theirs.with_role("parameter")) & set(net.params)
    stored = {i.name for i in onnx.load(tmp_path / "step.onnx").graph.initializer}
    assert set(net.params) - {"position_weight", "token_weight"} <= stored


@pytest.mark.full
def test_row_sparse_updates_train(tmp_path):
    net = gk.models.build("lstm_lm", vocab=20, hidden=6, layers=1)
    agree(gk.Trainer(net, optimizer="adam", lazy="token*"), tmp_path, tokens(12, lambda n: (7, n)))


@pytest.mark.full
def test_quantisation_aware_training(tmp_path):
    x = np.random.default_rng(3).standard_normal((16, 6)).astype(np.float32)
    aware = gk.quantization_aware(gk.quantize(small(), x), scales="learned")
    trainer = gk.Trainer(aware.model, optimizer=gk.optim.SGD(0.01))
    batches = [({"x": x[i : i + 4]}, np.arange(4) % 3) for i in range(0, 12, 2)]
    agree(trainer, tmp_path, batches * 3, tolerance=1e-3)


# --- optimizers, schedules, accumulation ------------------------------------------------------------


@pytest.mark.parametrize("name", [
    pytest.param(n, marks=[] if n == "lamb" else pytest.mark.full) for n in gk.optim.names()
])  # fmt: skip
def test_every_optimizer_trains(tmp_path, name):
    agree(gk.Trainer(small(), optimizer=name, wd_mult={"*bias": 0.0}), tmp_path, vectors(20))


SCHEDULES = {
    "step": gk.optim.Step(0.1, 4, 0.5), "exponential": gk.optim.Exponential(0.1, 0.9),
    "cosine": gk.optim.Cosine(0.1, 12, 0.01), "linear": gk.optim.Linear(0.1, 12),
    "polynomial": gk.optim.Polynomial(0.1, 12, 2.0, 0.02), "one-cycle": gk.optim.OneCycle(0.1, 12),
    "first steps of one-cycle": gk.optim.OneCycle(0.1, 10, rise=0.1),
    "warmup": gk.optim.Warmup(gk.optim.Linear(0.1, 8), 5), "constant": gk.optim.Warmup(0.1, 3),
}  # fmt: skip


@in_one_item()
@pytest.mark.parametrize("name", SCHEDULES)
def test_rates_are_those_of_the_schedule(name):
    schedule, step = SCHEDULES[name], gk.input("step", [], "float64")
    model = gk.Model({"rate": rates.rate_value(schedule, step)})
    for n in range(16):
        found = float(model.run({"step": np.asarray(n, np.float64)})["rate"])
        assert found == pytest.approx(schedule(n), rel=1e-12, abs=1e-15), n


def test_a_function_needs_the_rate_as_input(tmp_path):
    trainer = gk.Trainer(small(), optimizer=gk.optim.SGD(lambda n: 0.1 / (n + 1)))
    with pytest.raises(UnsupportedError, match="rate='input'"):
        trainer.to_onnx(tmp_path / "step.onnx")
    theirs = exported(trainer, tmp_path, rate="input")
    for inputs, target in vectors(5):
        rate = np.asarray(trainer.learning_rate, np.float32)
        ours = float(trainer.step(inputs, target))
        assert theirs.step(**inputs, target=target, learning_rate=rate) == pytest.approx(ours, rel=1e-5)


def test_a_step_goes_on_from_a_trained_state(tmp_path):
    """The count of updates, the slots and the random state are those of the trainer, also within an accumulation."""
    optimizer = gk.optim.Adam(gk.optim.Linear(0.05, 20))
    trainer = gk.Trainer(small(dropout=0.2), optimizer=optimizer, accumulate=3, loss_weights=None)
    batches = list(vectors(24))
    for inputs, target in batches[:7]:
        trainer.step(inputs, target)
    theirs = exported(trainer, tmp_path)
    assert theirs.with_role("accumulated_batches")["accumulated_batches"] == 1
    for number, (inputs, target) in enumerate(batches[7:]):
        last = number in (3, 9)
        ours = float(trainer.step(inputs, target))
        assert theirs.step(**inputs, target=target, flush=np.asarray(last)) == pytest.approx(ours, rel=1e-5)
        if last:
            trainer.flush()
    assert theirs.with_role("step")["optimizer_step"] == trainer.updates
    for name, array in theirs.with_role("parameter").items():
        np.testing.assert_allclose(array, trainer.net.params[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("accumulate", [1, pytest.param(2, marks=pytest.mark.full)])
def test_states_stay_if_the_loss_is_not_finite(tmp_path, accumulate):
    """The random state stays, too, so that later steps draw the numbers of the Trainer."""
    trainer = gk.Trainer(small(dropout=0.5), optimizer="adam", on_nonfinite="skip", accumulate=accumulate)
    theirs = exported(trainer, tmp_path, loss_scaling=accumulate == 1)
    flush = {"flush": np.asarray(False)} if accumulate > 1 else {}
    batches = list(vectors(8))
    batches[2][0]["x"][0, 0] = np.nan
    for number, (inputs, target) in enumerate(batches):
        before = theirs.states
        ours = float(trainer.step(inputs, target))
        loss = theirs.step(**inputs, target=target, **flush)
        assert theirs.states["random_state"].tolist() == list(trainer.executor.rng)
        assert np.isnan(loss) if number == 2 else loss == pytest.approx(ours, rel=1e-5)
        if number == 2 and accumulate == 1:
            same = [name for name, array in before.items() if np.array_equal(array, theirs.states[name])]
            assert set(before) - set(same) == {"loss_scale"}
            assert theirs.states["loss_scale"].tolist() == [2.0**15, 0]
    assert theirs.with_role("step")["optimizer_step"] == trainer.updates == (7 if accumulate == 1 else 3)


@pytest.mark.full
def test_masked_parameters_and_frozen_ones(tmp_path):
    net = small()
    mask = np.random.default_rng(1).random((8, 6)) > 0.5
    net.params["fc1_weight"] = np.where(mask, net.params["fc1_weight"], np.float32(0))
    trainer = gk.Trainer(net, optimizer="sgd", masks={"fc1_weight": mask}, freeze="fc2*")
    theirs = agree(trainer, tmp_path, vectors(8))
    assert not theirs.states["fc1_weight"][~mask].any()
    assert set(theirs.with_role("parameter")) == {"fc1_weight", "fc1_bias"}


@pytest.mark.full
@pytest.mark.parametrize("accumulate", [1, 2])
def test_float16_with_loss_scaling(tmp_path, accumulate):
    trainer = gk.Trainer(small(dtype="float16"), optimizer="adam", accumulate=accumulate)
    theirs = exported(trainer, tmp_path, loss_scaling=True)
    assert theirs.states["fc1_weight/master"].dtype == np.float32
    flush = {"flush": np.asarray(False)} if accumulate > 1 else {}
    for inputs, target in vectors(20):
        half = {"x": inputs["x"].astype(np.float16)}
        ours = float(trainer.step(half, target))
        assert theirs.step(**half, target=target, **flush) == pytest.approx(ours, abs=5e-3)


def test_sample_weights_and_metrics(tmp_path):
    trainer = gk.Trainer(small())
    (inputs, target), *_ = vectors(1)
    weights = np.arange(8, dtype=np.float32)
    trainer.step(inputs, target, weights)
    theirs = exported(trainer, tmp_path, metrics="accuracy")
    feeds = {**inputs, "target": target, "sample_weight": weights, **theirs.states}
    logits, accuracy, weight = theirs.session.run(["logits", "accuracy", theirs.about["batch_weight"]], feeds)
    assert accuracy == pytest.approx(np.mean(logits.argmax(1) == target))
    assert weight == weights.sum()
    assert [i["role"] for i in theirs.about["inputs"]] == ["data", "target", "sample_weight"]


@pytest.mark.full
def test_several_outputs_with_losses_of_their_own(tmp_path):
    h = gk.tanh(gk.nn.linear(gk.input("x", ["N", 6]), 8))
    net = gk.Model({"kind": gk.nn.linear(h, 3), "size": gk.nn.linear(h, 1)}, seed=0)
    losses = {"kind": "softmax_cross_entropy", "size": "mse"}
    trainer = gk.Trainer(net, losses, loss_weights={"size": 0.5})
    theirs = exported(trainer, tmp_path)
    names = [i["name"] for i in theirs.about["inputs"] if i["role"] == "target"]
    for inputs, target in vectors(6):
        size = inputs["x"][:, :1]
        ours = float(trainer.step(inputs, {"kind": target, "size": size}))
        assert theirs.step(**inputs, **dict(zip(names, (target, size), strict=True))) == pytest.approx(ours, rel=1e-5)


# --- the files --------------------------------------------------------------------------------------


def test_the_script_of_the_guide_trains_without_graphkit(tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    script = next(block for block in blocks if "onnxruntime" in block)
    assert len([line for line in script.splitlines() if line]) <= 15
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "digits.npz", x=rng.standard_normal((1280, 6), np.float32), y=rng.integers(0, 3, 1280))
    trainer = gk.Trainer(small(dropout=0.1), optimizer="adam")
    trainer.to_onnx(tmp_path / "step.onnx", metrics="accuracy")
    check = "\nimport sys\nassert 'graphkit' not in sys.modules\nnp.savez('end.npz', **states)\n"
    command = [sys.executable, "-P", "-c", script + check]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    data = np.load(tmp_path / "digits.npz")
    lines = done.stdout.splitlines()
    assert len(lines) == 20
    for number, line in enumerate(lines):
        part = slice(64 * number, 64 * number + 64)
        ours = float(trainer.step(data["x"][part], data["y"][part]))
        assert float(line.split()[0]) == pytest.approx(ours, abs=2e-4)
    with np.load(tmp_path / "end.npz") as end:
        np.testing.assert_allclose(end["fc1_weight"], trainer.net.params["fc1_weight"], atol=1e-4)


def test_the_description_is_complete(tmp_path):
    trainer = gk.Trainer(small(dropout=0.2), optimizer="adam", ema=0.9)
    before = {name: np.array(array) for name, array in trainer.net.params.items()}
    found = trainer.to_onnx(tmp_path / "step.onnx", verify=False)
    assert found.report is None
    assert [f.name for f in found.files] == ["step.onnx", "step_init.onnx", "step_roles.json"]
    theirs = RuntimeTrainer(tmp_path / "step.onnx")
    assert json.loads((tmp_path / "step_roles.json").read_text()) == theirs.about == found.description
    assert (theirs.about["format"], theirs.about["version"]) == ("graphkit.training_step", 1)
    proto = onnx.load(tmp_path / "step.onnx")
    onnx.checker.check_model(proto, full_check=True)
    assert {node.domain for node in proto.graph.node} == {""}
    listed = [i["name"] for i in theirs.about["inputs"]] + [s["input"] for s in theirs.about["states"]]
    assert sorted(listed) == sorted(i.name for i in proto.graph.input)
    outputs = ["loss", *theirs.about["outputs"], *(s["output"] for s in theirs.about["states"])]
    assert sorted(outputs) == sorted(o.name for o in proto.graph.output)
    assert set(theirs.states) == {s["input"] for s in theirs.about["states"]}
    slots = {s["slot"] for s in theirs.about["states"] if s["role"] == "optimizer"}
    assert slots == {"mean", "variance"}
    for name, array in before.items():
        np.testing.assert_array_equal(array, trainer.net.params[name])
        np.testing.assert_array_equal(array, theirs.states[name])


def test_writing_and_checking_leave_the_trainer_unchanged(tmp_path):
    one, other = (gk.Trainer(small(dropout=0.2), optimizer="adam") for _ in range(2))
    one.to_onnx(tmp_path / "step.onnx")
    for inputs, target in vectors(3):
        assert float(one.step(inputs, target)) == float(other.step(inputs, target))


@in_one_item()
@pytest.mark.parametrize(("options", "arguments", "error", "text"), [
    ({"mixup": 0.2}, {}, UnsupportedError, "mixup"),
    ({"optimizer": gk.optim.SGD(gk.optim.Cosine(0.1))}, {}, UsageError, "schedule-option steps"),
    ({}, {"metrics": "f1"}, UsageError, "f1"),
    ({}, {"metrics": "mse"}, UnsupportedError, "mse"),
    ({}, {"rate": "once"}, UsageError, "rate must be"),
    ({}, {"opset": 12}, UnsupportedError, "12"),
])  # fmt: skip
def test_steps_that_cannot_be_written(tmp_path, options, arguments, error, text):
    with pytest.raises(error, match=text):
        gk.Trainer(small(), **options).to_onnx(tmp_path / "step.onnx", **arguments)
    assert not list(tmp_path.iterdir())


def test_a_failed_write_leaves_the_old_files(tmp_path, monkeypatch):
    gk.Trainer(small()).to_onnx(tmp_path / "step.onnx", verify=False)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    finish = PendingFile.finish

    def full(self):
        if ".step.onnx." in self.path.name:
            raise OSError("No space left on device")
        finish(self)

    monkeypatch.setattr(PendingFile, "finish", full)
    with pytest.raises(RuntimeFailure, match=r"step\.onnx cannot be written: No space"):
        gk.Trainer(small(), optimizer="adam").to_onnx(tmp_path / "step.onnx", verify=False)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_an_old_step_never_lies_beside_a_new_init_file(tmp_path, monkeypatch):
    gk.Trainer(small()).to_onnx(tmp_path / "step.onnx", verify=False)
    commit = PendingFile.commit

    def broken(self, target):
        if target.name == "step_roles.json":
            raise OSError("broken")
        commit(self, target)

    monkeypatch.setattr(PendingFile, "commit", broken)
    with pytest.raises(RuntimeFailure, match="broken"):
        gk.Trainer(small(), optimizer="adam").to_onnx(tmp_path / "step.onnx", verify=False)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step_init.onnx", "step_roles.json"]


@in_one_item()
@pytest.mark.parametrize("name", ["step.onnx", "step_init.onnx", "step_roles.json"])
def test_a_folder_with_the_name_of_a_file_is_refused(tmp_path, name):
    (tmp_path / name).mkdir()
    with pytest.raises(UsageError, match="is a directory"):
        gk.Trainer(small()).to_onnx(tmp_path / "step.onnx", verify=False)
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_a_large_step_has_a_data_file_that_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "EXTERNAL_ABOVE", 4096)
    h = gk.nn.linear(gk.input("x", ["N", 64]), 64, name="wide")
    net = gk.Model({"logits": gk.nn.linear(h, 3)}, seed=0)
    first = gk.Trainer(net, freeze="wide*").to_onnx(tmp_path / "step.onnx", verify=False)
    net.params["wide_weight"] = np.array(net.params["wide_weight"]) + 1
    second = gk.Trainer(net, freeze="wide*").to_onnx(tmp_path / "step.onnx", verify=False)
    assert len(first.files) == len(second.files) == 4
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(p.name for p in second.files)
    assert np.isfinite(RuntimeTrainer(tmp_path / "step.onnx").step(x=np.ones((2, 64), np.float32), target=[0, 1]))


@in_one_item()
@pytest.mark.parametrize(("parameter", "output", "inputs"), [("loss", "y", "x"), ("w", "w", "x"), ("w", "target", "x"),
                                                             ("w", "x", "x"), ("accuracy", "y", "x")])  # fmt: skip
def test_the_description_has_the_names_of_the_file(tmp_path, parameter, output, inputs):
    net = gk.Model({output: gk.tanh(gk.input(inputs, ["N", 4])) @ gk.parameter(parameter, (4, 3))}, seed=0)
    trainer = gk.Trainer(net, optimizer=gk.optim.SGD(0.1))
    about = trainer.to_onnx(tmp_path / "step.onnx", metrics="accuracy").description
    proto = onnx.load(tmp_path / "step.onnx")
    said = [about["loss"], *about["outputs"], *about["metrics"], *(s["output"] for s in about["states"])]
    assert sorted(o.name for o in proto.graph.output) == sorted(said)
    listed = [i["name"] for i in about["inputs"]] + [s["input"] for s in about["states"]]
    assert sorted(i.name for i in proto.graph.input) == sorted(listed)


def test_the_name_of_the_loss_scale_is_taken_only_with_loss_scaling(tmp_path):
    net = gk.Model(gk.input("x", ["N", 4]) @ gk.parameter("loss_scale", (4, 3)), seed=0)
    trainer = gk.Trainer(net, optimizer=gk.optim.SGD(0.1))
    assert set(exported(trainer, tmp_path).with_role("parameter")) == {"loss_scale"}
    with pytest.raises(UsageError, match="'loss_scale', a name that"):
        trainer.to_onnx(tmp_path / "step.onnx", loss_scaling=True)


def test_other_reasons_against_writing(tmp_path):
    trainer = gk.Trainer(small(dropout=0.5))
    with pytest.raises(UnsupportedError, match="opset 18"):
        trainer.to_onnx(tmp_path / "step.onnx", opset=17)
    with pytest.raises(UsageError, match=r"\.onnx"):
        trainer.to_onnx(tmp_path / "step.json")
    with pytest.raises(UnsupportedError, match="line search"):
        gk.LBFGS(small()).to_onnx(tmp_path / "step.onnx")
    h = gk.nn.linear(gk.input("flush", ["N", 6]), 3)
    with pytest.raises(UsageError, match="'flush'"):
        gk.Trainer(gk.Model(h)).to_onnx(tmp_path / "step.onnx")
    assert not list(tmp_path.iterdir())
