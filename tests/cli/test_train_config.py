"""`graphkit train config.toml`: options from files, their output, and repeated runs."""

import json
import shutil
import subprocess
import sys
import time
import tomllib

import numpy as np
import pytest

import graphkit as gk

USAGE = 2

# Options whose values are paths. Relative ones count from the folder of the configuration file.
_PATHS = ("data", "valid", "output", "profile", "allow-external-root", "class-weights", "teacher", "tokenizer")


@pytest.fixture(scope="module")
def task(write_task):
    """A folder with a small network, its data and a file of options."""
    folder = write_task()
    (folder / "config.toml").write_text(
        """
        network = "net.json"
        data = "data.npz"
        epochs = 2
        batch-size = 16
        optimizer = "adam"
        lr_schedule = "cosine"
        warmup = 3
        mixup = 0.4
        label-smoothing = 0.1
        ema = 0.9
        keep-best = true
        metric = ["accuracy", "f1"]

        [optimizer-option]
        beta1 = 0.8
        weight_decay = 0

        [lr_mult]
        "fc2*" = 0.5
        """
    )
    return folder


def digests(run):
    return sorted(p.name for p in run.glob("*.safetensors"))


def test_a_file_says_what_a_command_line_says(call, task, tmp_path):
    code, out, err = call("train", task / "config.toml", "-o", tmp_path / "file")
    assert code == 0, err
    assert [line.split(":")[0] for line in out.splitlines()] == ["epoch 1", "epoch 2"]
    assert "f1" in out
    code, _, err = call(
        "train", task / "net.json", "--data", task / "data.npz", "--epochs", 2, "--batch-size", 16, "--optimizer",
        "adam", "--lr-schedule", "cosine", "--warmup", 3, "--mixup", 0.4, "--label-smoothing", 0.1, "--ema", 0.9,
        "--keep-best", "--metric", "accuracy", "--metric", "f1", "--optimizer-option", "beta1=0.8",
        "--optimizer-option", "weight_decay=0", "--lr-mult", "fc2*=0.5", "-o", tmp_path / "line",
    )  # fmt: skip
    assert code == 0, err
    assert digests(tmp_path / "file") == digests(tmp_path / "line")
    # The command line goes before the file, also where it takes a flag back.
    code, out, err = call("train", task / "config.toml", "--epochs", 1, "--no-keep-best", "-o", tmp_path / "less")
    assert code == 0, err
    assert len(out.splitlines()) == 1
    assert not (tmp_path / "less" / "best.json").exists()


def test_a_run_is_made_again_from_its_folder(call, task, tmp_path, monkeypatch):
    assert call("train", task / "config.toml", "--seed", 5, "-o", tmp_path / "run")[0] == 0
    monkeypatch.chdir(tmp_path)  # paths in the folder are whole
    code, _, err = call("train", "run/config.toml", "-o", "again")
    assert code == 0, err
    assert digests(tmp_path / "run") == digests(tmp_path / "again")
    a, b = ((tmp_path / name / "model.json").read_bytes() for name in ("run", "again"))
    assert a == b
    one, two = ((tmp_path / name / "config.toml").read_text() for name in ("run", "again"))
    assert one == two
    assert tomllib.loads(one)["seed"] == 5


def test_a_run_of_python_options_has_the_default_seed_in_its_file(call, task, tmp_path):
    assert call("train", task / "net.json", "--data", task / "data.npz", "-o", tmp_path / "run")[0] == 0
    found = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert found["seed"] == gk.config.SEED.get()
    assert found["network"] == str(task / "net.json")
    assert found["data"] == str(task / "data.npz")
    assert (found["epochs"], found["optimizer"], found["batch-size"]) == (1, "sgd", 64)
    assert "output" not in found
    assert "resume" not in found


def test_the_printed_config_is_read_back_the_same(call, task, tmp_path):
    code, printed, err = call(
        "train", task / "config.toml", "--class-weights", "1,2,0.5", "--freeze", 'odd "name"\t\\x', "--valid",
        task / "data.npz", "-o", tmp_path / "never", "--print-config",
    )  # fmt: skip
    assert code == 0, err
    assert not (tmp_path / "never").exists()
    found = tomllib.loads(printed)
    assert found["freeze"] == ['odd "name"\t\\x']
    assert found["optimizer-option"] == {"beta1": "0.8", "weight_decay": "0"}
    assert found["lr-mult"] == {"fc2*": "0.5"}
    assert found["output"] == str(tmp_path / "never")
    (tmp_path / "printed.toml").write_text(printed)
    assert call("train", tmp_path / "printed.toml", "--print-config")[1] == printed
    shutil.copy(tmp_path / "printed.toml", tmp_path / "moved.toml")
    assert call("train", tmp_path / "moved.toml", "--print-config")[1] == printed


def test_every_option_is_one_of_the_file(call, task, tmp_path):
    """Each, at a value that is not its default, comes through a file and back."""
    import click

    from graphkit.cli.train import command

    special = {
        "threads": 1,
        "recompute": "sqrt",
        "max-memory": 10**10,
        "allow-external-root": ".",
        "profile": "some/trace.json",
        "shape": "data:N,4",
    }
    of_a_call = ("resume", "overwrite", "find-lr", "fast-dev-run", "print-config", "json", "help")
    values = {"bool": True, "integer": 7, "float": 0.5, "number": 0.5, "choice": None}
    lines, expected = [f'network = "{task / "net.json"}"'], {}
    for parameter in command.params:
        name = next((n for n in parameter.opts if n.startswith("--")), parameter.opts[0]).removeprefix("--")
        if not isinstance(parameter, click.Option) or name in of_a_call:
            continue
        kind = parameter.type
        if parameter.is_flag:
            value = True
        elif isinstance(kind, click.Choice):
            value = list(kind.choices)[-1]
        elif name in special:
            value = special[name]
        elif kind.name in values:
            value = values[kind.name]
        else:
            value = "a=b" if parameter.multiple and "=" in str(parameter.metavar) else "some/text"
        value = [value] if parameter.multiple else value
        lines.append(f"{name} = {json.dumps(value)}")
        expected[name] = value
    (tmp_path / "all.toml").write_text("\n".join(lines))
    code, printed, err = call("train", tmp_path / "all.toml", "--print-config")
    assert code == 0, err
    found = tomllib.loads(printed)
    assert len(expected) > 50
    for name, value in expected.items():
        read = found[name]
        if isinstance(read, dict):
            read = [f"{k}={v}" for k, v in read.items()]
        if name in _PATHS:
            value = str(tmp_path / value)
        assert read == value, name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epoch = 3", "there is no option 'epoch'; did you mean 'epochs'"),
        ("zzzz = 3", "there is no option 'zzzz'; write network, or a long option of graphkit train --help"),
        ("epochs = '3'", "epochs must be an integer, not '3'"),
        ("epochs = 3.0", "epochs must be an integer, not 3.0"),
        ("epochs = true", "epochs must be an integer, not True"),
        ("epochs = 0", "epochs: 0 is not in the range x>=1"),
        ("lr = 'fast'", "lr must be a number, not 'fast'"),
        ("lr = -1", "lr: -1"),
        ("keep-best = 1", "keep-best must be true or false, not 1"),
        ("optimizer = ['sgd']", "optimizer must be a string, not ['sgd']"),
        ("on-nonfinite = 'skp'", "on-nonfinite: 'skp' is not one of"),
        ("batch-size = 1\nbatch_size = 2", "batch-size and batch_size are the same option"),
        ("resume = true", "resume cannot be in a file; give --resume on the command line"),
        ("find_lr = true", "find_lr cannot be in a file; give --find-lr on the command line"),
        ("metric = [1]", "metric must be a string, not 1"),
        ("[metric]\naccuracy = true", "metric must be a list"),
        ("[optimizer-option]\nbeta1 = [[{}]]", "optimizer-option.beta1 must be a string, a number"),
        ("epochs = ", "Invalid value"),
        ("recompute = 'some'", "recompute: 'some' is neither"),
        ("[network]\nname = 'mlp'", "Cannot"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(call, task, tmp_path, text, message):
    path = tmp_path / "config.toml"
    path.write_text(f'network = "{task / "net.json"}"\ndata = "digits"\n{text}\n')
    code, out, err = call("train", path, "-o", tmp_path / "run")
    assert (code, out) == (USAGE, "")
    assert str(path) in err
    assert message in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data = 'digits'", "the network is missing"),
        ("network = 3", "network must be a path, or a table"),
        ("[network]\nhidden = 3", "with either path or name"),
        ("[network]\npath = 'a.json'\nseed = 3", "network.seed only works with network.name"),
        ("[network]\nname = 'mlp'\nseed = 'x'", "network.seed must be an integer"),
        ("[network]\nname = 3", "network.name must be a string"),
        ("[network]\nname = 'mlp'\nhidden = {}", "network.hidden must be a string, a number"),
        ("network = net.json", "config.toml is not valid TOML: "),
        ("\x00", "config.toml is not valid TOML: "),
    ],
)
def test_a_network_that_is_none(call, tmp_path, text, message):
    (tmp_path / "config.toml").write_text(text)
    code, _, err = call("train", tmp_path / "config.toml")
    assert code == USAGE
    assert message in err
    assert "config.toml" in err


def test_files_that_are_none(call, tmp_path):
    code, _, err = call("train", tmp_path / "no.toml")
    assert code == USAGE
    assert "there is no file" in err
    (tmp_path / "odd.toml").write_bytes(b"\xff\xfe\x00")
    assert call("train", tmp_path / "odd.toml")[0] == USAGE
    (tmp_path / "deep.toml").write_text("a = " + "[" * 100000)
    assert call("train", tmp_path / "deep.toml")[0] == USAGE
    (tmp_path / "folder.toml").mkdir()
    assert call("train", tmp_path / "folder.toml")[0] == USAGE


def test_a_network_of_the_zoo_takes_its_sizes_from_the_data(call, tmp_path):
    (tmp_path / "config.toml").write_text(
        'data = "digits"\nepochs = 1\nlr = 0.1\n[network]\nname = "mlp"\nhidden = [12, 7]\nseed = 3\n'
    )
    code, _, err = call("train", tmp_path / "config.toml", "-o", tmp_path / "run")
    assert code == 0, err
    net = gk.load(tmp_path / "run")
    assert net.input_types["x"].shape[1:] == (1, 8, 8)
    assert {array.shape for array in net.params.values()} >= {(12, 64), (7, 12), (10, 7)}
    assert net.classes == tuple("0123456789")
    code, _, err = call("train", tmp_path / "run" / "config.toml", "-o", tmp_path / "again")
    assert code == 0, err
    assert digests(tmp_path / "run") == digests(tmp_path / "again")
    code, _, err = call("train", tmp_path / "run" / "config.toml", "-o", tmp_path / "run", "--resume", "--epochs", 2)
    assert code == 0, err


def test_a_network_of_a_python_file(call, tmp_path):
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets" / "mine.py").write_text(
        "import graphkit as gk\n\n\ndef make(width: int = 4, inputs=64, classes: int = 2):\n"
        "    x = gk.input('x', ['N', 1, 8, 8])\n"
        "    h = gk.tanh(gk.nn.linear(gk.flatten(x), width))\n"
        "    return gk.Model(gk.nn.linear(h, classes), seed=0)\n"
    )
    (tmp_path / "config.toml").write_text('data = "digits"\n[network]\nname = "nets/mine.py:make"\nwidth = 5\n')
    code, _, err = call("train", tmp_path / "config.toml", "-o", tmp_path / "run")
    assert code == 0, err
    assert any(array.shape == (5, 64) for array in gk.load(tmp_path / "run").params.values())
    assert call("train", tmp_path / "run" / "config.toml", "-o", tmp_path / "again")[0] == 0
    assert digests(tmp_path / "run") == digests(tmp_path / "again")


def test_text_is_numbered_alike_when_a_run_is_made_again(call, tmp_path):
    (tmp_path / "reviews").mkdir()
    (tmp_path / "reviews" / "film.pos").write_text("a good film\nfine acting , great fun\n" * 20)
    (tmp_path / "reviews" / "film.neg").write_text("a dull film\npoor acting , no fun at all\n" * 20)
    (tmp_path / "config.toml").write_text(
        'data = "sentences:reviews"\noptimizer = "adam"\n[data-option]\nmin_count = 2\n'
        '[network]\nname = "text_classifier"\nwidth = 8\nhidden = 8\n'
    )
    code, _, err = call("train", tmp_path / "config.toml", "-o", tmp_path / "run")
    assert code == 0, err
    assert call("train", tmp_path / "run" / "config.toml", "-o", tmp_path / "again")[0] == 0
    assert digests(tmp_path / "run") == digests(tmp_path / "again")


def test_what_the_folder_says_of_its_calls(call, task, tmp_path):
    run = tmp_path / "run"
    assert call("train", task / "config.toml", "-o", run, "--epochs", 1, "--threads", 3)[0] == 0
    (first,) = json.loads((run / "run.json").read_text())["calls"]
    given = ["-o", str(run), "--epochs", "1", "--threads", "3"]
    assert first["command"] == ["graphkit", "train", str(task / "config.toml"), *given]
    assert set(first["versions"]) == {"python", "graphkit", "numpy", "onnx", "onednn-cpu-gomp"}
    assert first["versions"]["numpy"] == np.__version__
    assert first["versions"]["graphkit"] == gk.__version__
    assert first["seed"] == gk.config.SEED.get()
    assert first["threads"] == 3
    assert len(first["network"]["sha256"]) == 64
    assert first["git"] is None or len(first["git"]["commit"]) == 40
    assert call("train", task / "config.toml", "-o", run, "--resume", "--epochs", 2)[0] == 0
    assert call("train", task / "config.toml", "-o", run, "--resume", "--epochs", 2)[0] == 0  # which trains nothing
    calls = json.loads((run / "run.json").read_text())["calls"]
    assert len(calls) == 2
    assert calls[0] == first
    assert tomllib.loads((run / "config.toml").read_text())["epochs"] == 2
    assert call("train", task / "config.toml", "-o", run, "--overwrite")[0] == 0
    assert len(json.loads((run / "run.json").read_text())["calls"]) == 1


def test_going_on_takes_what_the_file_says(call, task, tmp_path):
    run = tmp_path / "run"
    assert call("train", task / "config.toml", "-o", run, "--epochs", 1)[0] == 0
    (tmp_path / "other.toml").write_text((task / "config.toml").read_text().replace("0.4", "0.2"))
    for name in ("net.json", "data.npz"):
        shutil.copy(task / name, tmp_path / name)
    for path in task.glob("net.*.safetensors"):
        shutil.copy(path, tmp_path / path.name)
    code, _, err = call("train", tmp_path / "other.toml", "-o", run, "--resume", "--epochs", 2)
    assert code == 0, err
    assert "--mixup 0.2 (was --mixup 0.4)" in err


@pytest.mark.parametrize("commit", [True, False])
def test_the_commit_of_git(commit, monkeypatch, tmp_path):
    from graphkit.cli.train import record

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert record.git() is None
    if not commit or shutil.which("git") is None:
        monkeypatch.setenv("PATH", "")
        assert record.git() is None
        return
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "first", "--allow-empty"]):
        subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *arguments], check=True, cwd=tmp_path
        )  # fmt: skip
    found = record.git()
    assert len(found["commit"]) == 40
    assert found["changed"] is False


# Kills: (epochs, seconds after them).
OFTEN = ((1, 0.0), (2, 0.003), (1, 0.011))


@pytest.mark.parametrize(
    ("schedule", "kills"),
    [
        ("plateau", OFTEN[:1]),
        pytest.param("plateau", OFTEN, marks=pytest.mark.full),
        pytest.param("cosine", OFTEN, marks=pytest.mark.full),
    ],
    ids=["plateau-once", "plateau", "cosine"],
)
def test_a_run_that_is_killed_and_goes_on_by_its_file_has_the_same_bits(call, task, tmp_path, schedule, kills):
    """Schedule, mixing, moving average, early stopping and the best model, with SIGKILL at several moments."""
    options = ["--epochs", 12, "--checkpoint-every", 2, "--lr-schedule", schedule, "--early-stop", 4]
    options += ["--min-delta", 0.01]
    options += ["--schedule-option", "patience=2"] if schedule == "plateau" else []
    code, _, err = call("train", task / "config.toml", *options, "-o", tmp_path / "whole")
    assert code == 0, err
    run = tmp_path / "run"
    command = [sys.executable, "-P", "-m", "graphkit", "train", str(task / "config.toml"), *map(str, options)]
    for number, (epochs, more) in enumerate(kills):
        for _ in range(10):
            with subprocess.Popen([*command, "-o", str(run)], stdout=subprocess.PIPE, text=True) as child:
                for _ in range(epochs):
                    child.stdout.readline()
                time.sleep(more)
                child.kill()
            if number or len(_epochs(run)) < len(_epochs(tmp_path / "whole")):
                break
            shutil.rmtree(run)  # on a busy machine, the first one may end before it is killed
        else:
            pytest.fail("no run was killed in the middle")
        assert gk.load(run / "best.json").meta["best_epoch"]
        command = [sys.executable, "-P", "-m", "graphkit", "train", str(run / "config.toml"), "--resume"]
    code, _, err = call("train", run / "config.toml", "-o", run, "--resume")
    assert code == 0, err
    for name in ("model.json", "best.json"):
        a, b = gk.load(tmp_path / "whole" / name), gk.load(run / name)
        assert a.meta == b.meta
        for parameter, array in a.params.items():
            np.testing.assert_array_equal(b.params[parameter], array, err_msg=f"{name}: {parameter}")
    whole, parts = (_epochs(tmp_path / name) for name in ("whole", "run"))
    assert parts == whole


def _epochs(run):
    """Return the entries of the log for each epoch, without times."""
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    times = ("seconds", "samples_per_second", "peak_memory")
    return [{k: v for k, v in line.items() if k not in times} for line in lines if line["event"] != "step"]


def test_a_file_that_no_training_wrote_is_not_replaced(call, task, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(task, run)
    before = (run / "config.toml").read_text()
    for more in ([], ["--overwrite"]):
        code, out, err = call("train", run / "config.toml", "-o", run, *more)
        assert (code, out) == (USAGE, "")
        assert "config.toml was not written by graphkit" in err
        assert (run / "config.toml").read_text() == before
    # That of a run is.
    assert call("train", task / "config.toml", "-o", tmp_path / "other", "--epochs", 1)[0] == 0
    assert (
        call("train", tmp_path / "other" / "config.toml", "-o", tmp_path / "other", "--overwrite", "--seed", 7)[0] == 0
    )
    assert tomllib.loads((tmp_path / "other" / "config.toml").read_text())["seed"] == 7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = 'mpl'", "did you mean 'mlp'"),
        ("name = 'mlp'\nhiden = 3", "no option 'hiden'; did you mean 'hidden'"),
        ("name = 'mlp'\nhidden = 'wide'", "hidden"),
        ("name = 'nets.py:make'", "there is no file"),
    ],
)
def test_networks_that_cannot_be_built(call, tmp_path, text, message):
    (tmp_path / "config.toml").write_text(f'data = "digits"\n[network]\n{text}\n')
    code, _, err = call("train", tmp_path / "config.toml", "-o", tmp_path / "run")
    assert code == USAGE
    assert f"{tmp_path / 'config.toml'}: network: " in err
    assert message in err
    assert not (tmp_path / "run" / "config.toml").exists()
