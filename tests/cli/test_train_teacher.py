"""graphkit train --teacher."""

import pytest

import graphkit as gk


@pytest.fixture
def train(call, task):
    """Train the network of the task, with the given options. The network is its own teacher."""

    def run(*arguments):
        return call("train", task / "net.json", "--data", task / "data.npz", "--seed", 1, *arguments)

    return run


def test_teacher_changes_the_loss_and_a_run_with_it_resumes(train, call, task):
    teacher = ("--teacher", task / "net.json", "--distill", "weight=0.75", "--distill", "temperature=3")
    assert train("--epochs", 2, "-o", "plain")[0] == 0
    for folder, epochs in (("whole", 2), ("parts", 1)):
        code, _, err = train(*teacher, "--epochs", epochs, "-o", folder)
        assert code == 0, err
    code, _, err = call("train", "parts", "--resume", "--epochs", 2)
    assert code == 0, err
    plain, whole, parts = (gk.load(folder).params["fc1_weight"].tobytes() for folder in ("plain", "whole", "parts"))
    assert whole == parts
    assert whole != plain
    code, _, err = call("train", "whole/config.toml", "--epochs", 2, "-o", "again")
    assert code == 0, err
    assert gk.load("again").params["fc1_weight"].tobytes() == whole


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--distill", "weight=0.5"], "--distill is an option of --teacher: also give --teacher FILE"),
        (["--teacher", "NET", "--distill", "wait=1"], "--distill wait: there is no such option"),
        (["--teacher", "NET", "--distill", "weight=2"], "weight must be a finite number in"),
        (["--teacher", "NET", "--loss", "mse"], "the loss 'mse' is not a loss of logits with a Softmax"),
        (["--teacher", "NET", "--ignore-index", "-1"], "has no class_weights and no ignore_index"),
        (["--teacher", "absent.onnx"], "absent.onnx"),
        (["--teacher", "NET", "--loss", "logits=softmax_cross_entropy"], "--teacher works with one loss"),
    ],
)  # fmt: skip
def test_wrong_options_are_errors(train, task, arguments, message):
    code, _, err = train(*[str(task / "net.json") if a == "NET" else a for a in arguments], "--epochs", 1, "-o", "run")
    assert code in (2, 3), err
    assert message in err


def test_a_teacher_has_one_output(train, task):
    net = gk.load(task / "net.json")
    logits = net.graph.outputs[0]
    gk.Model.from_graph(gk.Model({"a": logits, "b": gk.relu(logits)}).graph, net.params.entries()).save("two.onnx")
    code, _, err = train("--teacher", "two.onnx", "--epochs", 1, "-o", "run")
    assert code == 2
    assert "--teacher two.onnx: a teacher must have one output, and this model has a, b" in err
    assert "graphkit extract two.onnx --output NAME" in err
