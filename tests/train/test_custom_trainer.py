"""A training step of one's own: two networks, two losses; updates, checkpoints, killed runs, errors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import GraphkitError, InvalidModel, NotFinite, UsageError

STEPS = 12


def linear(name, inputs, outputs, **options):
    with gk.name_scope(name):
        return gk.Model(gk.nn.linear(gk.input("x", ["N", inputs]), outputs, **options), name=name, seed=0)


def mean_square(y):
    return gk.reduce_mean(gk.mul(y, y), keepdims=False)


def networks(width=4):
    """An encoder [N, 6] -> [N, width] with batch normalisation and dropout, and a decoder back."""
    with gk.name_scope("encoder"):
        h = gk.nn.batch_norm(gk.nn.linear(gk.input("x", ["N", 6]), width, name="fc"), name="norm")
        encoder = gk.Model(gk.dropout(gk.tanh(h), 0.25)[0], name="encoder", seed=0)
    return encoder, linear("decoder", width, 6)


def trainer(optimizer=None, seed=0, width=4, **options):
    """Reconstructs its input by both networks; the decoder also learns to make small outputs."""
    step = gk.StepBuilder()
    encoder, decoder = (step.network(net) for net in networks(width))
    x = gk.input("x", ["N", 6])
    reconstructed = decoder(encoder(x))
    loss = gk.losses.mse(reconstructed, x)
    step.minimize(loss, encoder, optimizer or gk.optim.Adam(0.01))
    size = mean_square(decoder(encoder(x)))
    step.minimize(loss + size * np.float32(0.1), decoder, optimizer or gk.optim.SGD(gk.optim.Cosine(0.1, 20), 0.9))
    return gk.CustomTrainer(step.build({"loss": loss, "size": size}), seed=seed, threads=1, **options)


def data(count=8, seed=0):
    return {"x": np.random.default_rng(seed).standard_normal((count, 6)).astype(np.float32)}


def run(made, steps, folder=None):
    """Losses of the next steps, each on other data; with a folder, a checkpoint after each."""
    losses = []
    for _ in range(steps):
        losses.append(float(made.step(data(seed=made.steps))["loss"]))
        made.notes["last"] = losses[-1]
        if folder is not None:
            made.save(folder)
    return losses


def arrays(made):
    return {
        name: array.tobytes()
        for store in (*(m.params for m in made.models), made.states)
        for name, array in store.items()
    }


@pytest.fixture(scope="module")
def whole():
    """Return all arrays after the last step, and the losses."""
    made = trainer()
    losses = run(made, STEPS)
    return arrays(made), losses


# --- what a step computes ---------------------------------------------------------------------------


def test_a_step_is_that_of_the_trainer():
    """One network and one loss: the parameters are those of gk.Trainer, which has another program."""
    x, y = data(16)["x"], data(16, seed=1)["x"]
    nets = [linear("net", 6, 6) for _ in range(2)]
    optimizer = gk.optim.AdamW(gk.optim.Cosine(0.05, 10))
    theirs = gk.Trainer(nets[0], "mse", optimizer, seed=0)
    step = gk.StepBuilder()
    ours, target = step.network(nets[1]), gk.input("target", ["N", 6])
    loss = gk.losses.mse(ours(gk.input("x", ["N", 6])), target)
    step.minimize(loss, ours, optimizer)
    made = gk.CustomTrainer(step.build({"loss": loss}))
    for _ in range(5):
        expected = theirs.step(x, y)
        np.testing.assert_allclose(made.step({"x": x, "target": y})["loss"], float(expected), rtol=1e-5)
    for name, array in nets[0].params.items():
        np.testing.assert_allclose(nets[1].params[name], array, rtol=1e-5, atol=1e-6)


def test_two_updates_in_a_step_are_two_steps():
    def after(updates, steps):
        net = linear("net", 6, 1)
        step = gk.StepBuilder()
        x, network = gk.input("x", ["N", 6]), step.network(net)
        for _ in range(updates):
            loss = mean_square(network(x) - np.float32(1))
            step.minimize(loss, network, gk.optim.Adam(0.1))
        made = gk.CustomTrainer(step.build({"loss": loss}))
        losses = [float(made.step(data())["loss"]) for _ in range(steps)]
        assert made.states["net/optimizer_step"] == updates * steps
        return losses[-1], dict(net.params)

    (loss, once), (same, twice) = after(1, 6), after(2, 3)
    np.testing.assert_allclose(loss, same, rtol=1e-5)
    for name in once:
        np.testing.assert_allclose(once[name], twice[name], rtol=1e-5)


def test_each_call_of_a_network_draws_its_own_numbers():
    x = gk.input("x", ["N", 6])
    noisy = gk.Model({"y": gk.nn.linear(x, 3, name="fc") + gk.random_normal(shape=[3])}, name="noisy", seed=0)
    step = gk.StepBuilder()
    network = step.network(noisy)
    a, b = network(x), network(x)
    step.minimize(mean_square(a), network, gk.optim.SGD(0.1))
    found = gk.CustomTrainer(step.build({"a": a, "b": b}), seed=0).step(data())
    assert not np.allclose(found["a"], found["b"])


def test_a_loss_trains_only_what_its_gradient_reaches():
    """An actor and a critic with a common body; the actor's loss reads the critic's value as a constant."""
    x = gk.input("x", ["N", 6])
    body = gk.tanh(gk.nn.linear(x, 4, name="body"))
    outputs = {"policy": gk.nn.linear(body, 2, name="policy"), "value": gk.nn.linear(body, 1, name="value")}
    net = gk.Model(outputs, name="net", seed=0)
    before = {name: array.copy() for name, array in net.params.items()}
    step = gk.StepBuilder()
    network = step.network(net)
    policy, value = network(x)
    advantage = gk.stop_gradient(np.float32(1) - value)
    loss = gk.reduce_mean(gk.log_softmax(policy) * advantage, keepdims=False)
    step.minimize(loss, network, gk.optim.Adam(0.1, weight_decay=0.1))
    gk.CustomTrainer(step.build({"loss": loss})).step(data())
    moved = {name: not np.array_equal(array, before[name]) for name, array in net.params.items()}
    assert moved == {name: not name.startswith("value") for name in before}


def test_a_teacher_is_read_and_never_changed():
    teacher, student = networks()[0], linear("student", 6, 4)
    before = {name: array.copy() for name, array in teacher.params.items()}
    step = gk.StepBuilder()
    x, learner = gk.input("x", ["N", 6]), step.network(student)
    loss = gk.losses.mse(learner(x), step.network(teacher, training=False)(x))
    step.minimize(loss, learner, gk.optim.SGD(0.3))
    made = gk.CustomTrainer(step.build({"loss": loss}))
    target = teacher(data()["x"])
    first = made.step(data())["loss"]
    for _ in range(200):
        last = made.step(data())["loss"]
    assert last < first / 3
    np.testing.assert_allclose(last, np.mean((student(data()["x"]) - target) ** 2), rtol=0.05)
    for name, array in before.items():
        np.testing.assert_array_equal(teacher.params[name], array)


def test_frozen_parameters_and_factors_on_rates_count():
    moved = {}
    for factor in (1, 0.5):
        with gk.name_scope("own"), gk.attr_scope(lr_mult=factor):
            fixed = gk.parameter("fixed", (6, 4), "normal", trainable=False)
            net = gk.Model(gk.nn.linear(gk.mat_mul(gk.input("x", ["N", 6]), fixed), 2, name="fc"), seed=0)
        before = {n: a.copy() for n, a in net.params.items()}
        step = gk.StepBuilder()
        network = step.network(net)
        loss = mean_square(network(gk.input("x", ["N", 6])) - np.float32(1))
        step.minimize(loss, network, gk.optim.SGD(0.1))
        gk.CustomTrainer(step.build({"loss": loss})).step(data())
        (fixed_name,) = [n for n in before if n.endswith("fixed")]
        (weight,) = [n for n in before if n.endswith("fc_weight")]
        np.testing.assert_array_equal(net.params[fixed_name], before[fixed_name])
        moved[factor] = net.params[weight] - before[weight]
    np.testing.assert_allclose(moved[0.5], moved[1] / 2, rtol=1e-4, atol=1e-7)
    assert np.abs(moved[1]).max() > 0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_parameters_have_float32_states(dtype):
    x = gk.input("x", ["N", 3], dtype)
    weight = gk.parameter("weight", (3, 2), "normal", dtype=dtype)
    net = gk.Model(gk.mat_mul(x, weight), name="half", seed=0)
    step = gk.StepBuilder()
    network = step.network(net)
    given = gk.input("x", ["N", 3], dtype)
    loss = gk.reduce_mean(network(given), keepdims=False)
    step.minimize(loss, network, gk.optim.Adam(1e-4))
    made = gk.CustomTrainer(step.build({"loss": loss}))
    before = net.params["weight"].astype(np.float32)
    for _ in range(20):
        made.step({"x": np.ones((4, 3), net.params["weight"].dtype)})
    assert made.states["weight/master"].dtype == made.states["weight/mean"].dtype == np.float32
    # Each update is far below half a unit in the last place of the parameter; the master weight adds them up.
    np.testing.assert_allclose(np.abs(made.states["weight/master"] - before), 20e-4, rtol=0.05)


def test_a_step_is_written_as_standard_onnx():
    from graphkit.onnx_io.compare import OnnxRuntimeModel

    net = linear("net", 6, 2)
    step = gk.StepBuilder()
    network = step.network(net)
    loss = mean_square(network(gk.input("x", ["N", 6])))
    step.minimize(loss, network, gk.optim.SGD(0.1, momentum=0.9))
    made = gk.CustomTrainer(step.build({"loss": loss}))
    model = made.model()
    feeds = {**data(), "net/learning_rate": np.array(0.1, np.float32)}
    theirs = OnnxRuntimeModel(model.to_onnx(with_updates=True), threads=1).run(feeds)
    ours = made.step(data())
    np.testing.assert_allclose(ours["loss"], theirs["loss"], rtol=1e-5)
    for name in (*net.params, *made.states):
        stored = made.states[name] if name in made.states else net.params[name]
        np.testing.assert_allclose(stored, theirs[f"{name}_updated"], rtol=1e-5, err_msg=name)
    assert model.params["step_count"] == 0, "the model has copies"


# --- checkpoints ------------------------------------------------------------------------------------


def test_a_note_that_is_not_json(tmp_path):
    """The checkpoint before it stays."""
    made = trainer()
    run(made, 1, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    made.step(data())
    made.notes["best"] = np.float32(0.5)
    with pytest.raises(UsageError, match=r"notes\['best'\] cannot be written as JSON: .*float32"):
        made.save(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_resume_equals_an_uninterrupted_run(tmp_path, whole):
    first = trainer()
    losses = run(first, 5, tmp_path)
    run(first, 2)  # after the checkpoint
    second = trainer(seed=5)
    second.resume(tmp_path)
    assert (second.steps, second.seed, second.notes) == (5, 0, {"last": losses[-1]})
    losses += run(second, STEPS - 5, tmp_path)
    assert (arrays(second), losses) == whole


# One process imports graphkit and forks another one for each run. It prints the exit codes as JSON.
WORKER = """
import json, os, shutil, signal, sys, time, traceback
from graphkit.errors import UsageError
sys.path += sys.argv[2].split(os.pathsep)
from test_custom_trainer import STEPS, run, trainer

def train(folder, begins):
    made = trainer()
    try:
        made.resume(folder)
    except UsageError as error:
        assert "contains no checkpoint" in str(error), error
    os.write(begins, b"!")
    with made.folder(folder):
        run(made, STEPS - made.steps, folder)

def attempt(folder, moment):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            train(folder, writing)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        pipe.read(1)
    if moment is not None:
        time.sleep(moment)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

trainer()  # what it imports is there for the children
codes = []
for moment in [*map(float, sys.argv[3:]), None]:
    while (code := attempt(sys.argv[1], moment)) == 0 and not codes:
        shutil.rmtree(sys.argv[1])  # on a busy machine, the first one may end before it is killed
    codes.append(code)
print(json.dumps(codes))
"""


@pytest.mark.full
@pytest.mark.parametrize(
    "moments", [(0.0, 0.05), pytest.param((0.0, 0.02, 0.05, 0.1), marks=pytest.mark.full)], ids=["twice", "often"]
)
def test_killed_run_can_resume(tmp_path, whole, moments):
    """After SIGKILL at several moments, the folder contains a complete checkpoint or none."""
    here = Path(__file__)
    folders = os.pathsep.join([str(here.parent), str(here.parents[1])])  # of the modules that this one imports
    command = [sys.executable, "-P", "-c", WORKER, tmp_path / "run", folders, *map(str, moments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    *killed, last = json.loads(done.stdout)
    assert killed[0] == -signal.SIGKILL, "nothing was killed: the test proves nothing"
    assert set(killed) <= {-signal.SIGKILL, 0}, done.stderr
    assert last == 0, done.stderr
    made = trainer()
    made.resume(tmp_path / "run")
    assert arrays(made) == whole[0]
    assert not list((tmp_path / "run").glob("*.tmp*"))


def test_a_folder_of_another_run_is_refused(tmp_path):
    run(trainer(), 1, tmp_path)
    other = trainer()
    with pytest.raises(UsageError, match="already contains a run"), other.folder(tmp_path):
        pytest.fail("the folder was opened")
    with other.folder(tmp_path, overwrite=True):
        with pytest.raises(UsageError, match="trains into this folder"):
            trainer().save(tmp_path)
        run(other, 2, tmp_path)
    again = trainer()
    again.resume(tmp_path)
    assert arrays(again) == arrays(other)
    with again.folder(tmp_path):
        run(again, 1, tmp_path)


def test_checkpoint_that_does_not_fit_changes_nothing(tmp_path):
    run(trainer(), 1, tmp_path)
    for other, message in [
        (trainer(gk.optim.SGD(0.1)), "does not fit this training step: missing or unexpected arrays .*/mean"),
        (trainer(width=8), "does not fit this training step: parameter .* is "),
    ]:
        before = arrays(other)
        with pytest.raises(InvalidModel, match=message):
            other.resume(tmp_path)
        assert arrays(other) == before
        assert other.steps == 0
    net = gk.models.build("mlp")
    with pytest.raises(InvalidModel, match="does not fit this model and optimizer"):
        gk.Trainer(net).resume(tmp_path)
    gk.Trainer(net).save(tmp_path / "other")
    with pytest.raises(InvalidModel, match="does not fit this training step"):
        trainer().resume(tmp_path / "other")
    with pytest.raises(UsageError, match="contains no checkpoint"):
        trainer().resume(tmp_path / "nothing")


def test_a_damaged_checkpoint_is_named(tmp_path):
    run(trainer(), 1, tmp_path)
    (weights,) = tmp_path.glob("state.*.safetensors")
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(InvalidModel, match=r"state\."):
        trainer().resume(tmp_path)


# --- errors -----------------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_changes_nothing():
    made = trainer()
    run(made, 1)
    before = arrays(made)
    feeds = data()
    feeds["x"][2, 3] = np.nan
    with pytest.raises(NotFinite, match=r"a loss of step 2 is not finite, from .*; nothing has changed"):
        made.step(feeds)
    assert arrays(made) == before
    run(made, 1)
    assert made.steps == 2


def test_the_cause_is_named_although_the_loss_is_no_output():
    net = linear("net", 6, 2)
    step = gk.StepBuilder()
    network = step.network(net)
    y = network(gk.input("x", ["N", 6]))
    step.minimize(gk.reduce_mean(gk.log(y - np.float32(100), name="odd"), keepdims=False), network, gk.optim.SGD(0.1))
    with pytest.raises(NotFinite, match=r"from .*odd.*Log"):
        gk.CustomTrainer(step.build({"y": y})).step(data())


def built(change):
    """A step of one linear network, after `change(step, network, loss)`."""
    step = gk.StepBuilder()
    network = step.network(linear("net", 6, 2))
    loss = mean_square(network(gk.input("x", ["N", 6])))
    change(step, network, loss)
    return gk.CustomTrainer(step.build({"loss": loss}))


SGD = gk.optim.SGD(0.1)


def of_another_step(step, network, loss):
    step.minimize(loss, gk.StepBuilder().network(linear("net", 6, 2)), SGD)


def of_two_optimizers(step, network, loss):
    step.minimize(loss, network, SGD)
    step.minimize(mean_square(network(np.ones((2, 6), np.float32))), network, gk.optim.Adam(0.1))


def on_a_loss_before_the_update(step, network, loss):
    step.minimize(loss, network, SGD)
    step.minimize(loss, network, SGD)


def with_a_parameter_of_no_network(step, network, loss):
    step.minimize(loss + gk.reduce_sum(gk.parameter("alone", (3,), "ones"), keepdims=False), network, SGD)


def with_two_inputs_of_one_name(step, network, loss):
    other = gk.reduce_mean(network(gk.input("x", ["M", 6])), keepdims=False)
    step.minimize(loss + other, network, SGD)


@in_one_item()
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda *_: None, "trains nothing: call StepBuilder.minimize"),
        (lambda step, *_: step.network(linear("net", 6, 2)), "already has a network 'net'"),
        (lambda step, *_: step.network(linear("net", 6, 2), "other"), "'net' and 'other' both have a parameter"),
        (lambda step, network, loss: step.minimize(network(gk.input("y", ["N", 6])), network, SGD), "a float scalar"),
        (
            lambda step, network, loss: step.minimize(loss, step.network(linear("b", 6, 2)), SGD),
            "depends on no current trainable",
        ),
        (of_another_step, "must be a result of `network` of this builder"),
        (on_a_loss_before_the_update, "call the network again after each update"),
        (of_two_optimizers, "already updated by another optimizer, SGD"),
        (with_a_parameter_of_no_network, "belongs to no network of the step"),
        (with_two_inputs_of_one_name, "two inputs named 'x'"),
        (lambda step, network, loss: step.minimize(loss, 3, SGD), "must be a network of gk.StepBuilder"),
    ],
)
def test_steps_that_cannot_be_built(change, message):
    with pytest.raises(UsageError, match=message):
        built(change)


def test_wrong_feeds_are_named():
    made = built(lambda step, network, loss: step.minimize(loss, network, SGD))
    with pytest.raises(GraphkitError, match="input 'x'"):
        made.step({"x": np.zeros((2, 5), np.float32)})
    with pytest.raises(GraphkitError, match="'y'"):
        made.step({"y": np.zeros((2, 6), np.float32)})
    assert made.steps == 0


def test_a_graph_of_ones_own_needs_values_for_its_states():
    x, state = gk.input("x", [2]), gk.Value(gk.TensorType("float32", (2,)), "sum", role="state")
    graph = gk.Graph([x, state], [x + state], [(state, x + state)], output_names=["sum_updated"])
    with pytest.raises(UsageError, match=r"no initial value for .*sum"):
        gk.CustomTrainer(gk.TrainingStep(graph, (), {}, {}))
    made = gk.CustomTrainer(gk.TrainingStep(graph, (), {"sum": np.ones(2, np.float32)}, {}))
    made.step({"x": np.ones(2, np.float32)})
    assert made.states["sum"].tolist() == [2, 2]
