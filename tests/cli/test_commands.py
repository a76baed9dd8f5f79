"""Every command on real models: output, files and exit code."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

import graphkit as gk
from graphkit import cli
from graphkit.dist import kvstore
from graphkit.errors import UsageError
from graphkit.ir.npz import npz_bytes


@pytest.mark.parametrize("command", ["", *cli.COMMANDS, "records pack", "records list", "records check"])
def test_help_of_every_command(call, command):
    code, out, _ = call(*command.split(), "--help")
    assert code == 0
    assert "Usage: graphkit" in out
    assert "--json" in out or command in ("", "records")


def test_version_and_module_entry():
    done = subprocess.run(
        [sys.executable, "-P", "-m", "graphkit", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("graphkit 0.")


def test_the_way_by_hand(call, tmp_path):
    net, run, onnx = tmp_path / "net.json", tmp_path / "run", tmp_path / "net.onnx"
    assert call("build", "lenet", "--dataset", "digits", "-o", net)[0] == 0
    code, out, _ = call("train", net, "--data", "digits", "--epochs", "2", "-o", run, "--json")
    result = json.loads(out)
    assert code == 0
    assert result["schema"] == "graphkit.train"
    assert result["history"][-1]["valid_accuracy"] > 0.7
    code, out, err = call("export", run, "-o", onnx)
    assert code == 0, out + err
    assert "PASSED" in out
    code, out, err = call("run", onnx)
    assert code == 0
    assert "guessed dimensions: N=" in err
    assert "logits" in out
    code, out, _ = call("verify", onnx)
    assert code == 0
    assert "PASSED" in out


def test_networks_for_tables_and_ratings_take_their_sizes_from_the_data(call, tmp_path):
    table, file = tmp_path / "table.csv", tmp_path / "net.json"
    words = [f"{i},{i % 3}.5,{'ab'[i % 2]}x,{'klm'[i % 3]}x,{'no' if i % 4 else 'yes'}" for i in range(40)]
    table.write_text("\n".join(["n,m,c,d,y", *words]))
    codes = ("--data", table, "--data-option", "categories=codes")
    code, _, err = call("build", "wide_and_deep", *codes, "-p", "crosses=0,1", "-p", "hidden=8", "-o", file)
    assert code == 0, err
    net = gk.load(file)
    assert [tuple(net.params[f"embed{i}_weight"].shape) for i in range(2)] == [(3, 32), (4, 32)]
    assert net.params["wide_x_weight"].shape == (2, 2)
    assert net.classes == ("no", "yes")
    # Given options override those of the data. Without codes, the data do not determine sizes.
    assert call("build", "wide_and_deep", *codes, "-p", "crosses=0,1", "-p", "sizes=9,9", "-o", file)[0] == 0
    assert gk.load(file).params["embed1_weight"].shape == (9, 32)
    code, _, err = call("build", "wide_and_deep", "--data", table, "-o", file)
    assert code == 0, err
    assert gk.load(file).params["embed0_weight"].shape == (9, 32)
    (tmp_path / "words.csv").write_text("\n".join(["c,d,y", *(line.split(",", 2)[2] for line in words)]))
    words_alone = ("--data", tmp_path / "words.csv", "--data-option", "categories=codes")
    assert call("build", "wide_and_deep", *words_alone, "-p", "crosses=", "-o", file)[0] == 0
    assert list(gk.load(file).input_types) == ["categories"]
    ratings = tmp_path / "ratings.csv"
    ratings.write_text(
        "userId,movieId,rating\n" + "".join(f"{u},{m * 10},{1 + (u + m) % 5}\n" for u in range(9) for m in range(7))
    )
    for name, table_of in (("matrix_factorization", "user_weight"), ("ncf", "gmf_user_weight")):
        assert call("build", name, "--data", f"ratings:{ratings}", "-o", file)[0] == 0
        assert gk.load(file).params[table_of].shape[0] == 9
    assert gk.load(file).params["gmf_item_weight"].shape[0] == 7


@pytest.mark.full
def test_quickstart(call, tmp_path):
    code, out, _ = call("quickstart", "-o", tmp_path / "q", "--json")
    result = json.loads(out)
    assert code == 0
    assert result["test_accuracy"] >= 0.97
    assert result["same_classes"]
    assert result["max_probability_difference"] < 1e-5
    assert {"net.json", "net.onnx", "model.json", "checkpoint.json", "log.jsonl"} <= set(result["files"])


@pytest.mark.parametrize("model", ["lenet", "mine.py:make"])
def test_the_seed_of_initialisers(call, tmp_path, monkeypatch, model):
    """A seed makes other parameters, the same ones each time, and those of the environment's variable."""
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(
        "import graphkit as gk\n"
        "def make():\n"
        '    return gk.Model({"y": gk.nn.linear(gk.input("x", ["N", 3]), 4, name="fc")})\n'
    )

    def weights(*options):
        assert call("build", model, *options, "-o", "net.json")[0] == 0
        return np.concatenate([array.ravel() for array in gk.load("net.json").params.values()])

    monkeypatch.setenv("GRAPHKIT_SEED", "7")
    seven = weights()
    one, two = weights("--seed", 1), weights("--seed", 2)
    assert (one != two).mean() > 0.5
    assert (one != seven).mean() > 0.5
    np.testing.assert_array_equal(weights("--seed", 1), one)
    np.testing.assert_array_equal(weights("--seed", 7), seven)
    np.testing.assert_array_equal(weights(), seven)
    monkeypatch.delenv("GRAPHKIT_SEED")
    np.testing.assert_array_equal(weights("--seed", 7), seven)
    np.testing.assert_array_equal(weights(), weights("--seed", 0))
    assert "GRAPHKIT_SEED" not in os.environ


def test_train_resumes_where_it_stopped(call, folder, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    options = ("--data", "digits", "--seed", "5", "--optimizer", "adam")
    call("train", folder / "net.json", *options, "--epochs", "3", "-o", whole)
    call("train", folder / "net.json", *options, "--epochs", "1", "-o", parts)
    code, out, _ = call("train", folder / "net.json", *options, "--epochs", "3", "-o", parts, "--resume", "--json")
    assert code == 0
    assert json.loads(out)["epochs"] == 3
    (a,), (b,) = (list(p.glob("model.*.safetensors")) for p in (whole, parts))
    assert a.name == b.name, "the weights are named by their content"


def test_train_deterministic_writes_the_same_bits(call, folder, tmp_path):
    for threads in (1, 3):
        code, _, err = call(
            "train", folder / "net.json", "--data", "digits", "--seed", 4, "--deterministic", "--threads", threads,
            "-o", tmp_path / str(threads),
        )  # fmt: skip
        assert code == 0, err
    one, three = (sorted((tmp_path / n).glob("*.safetensors")) for n in ("1", "3"))
    assert [p.name for p in one] == [p.name for p in three], "names tell the contents"
    assert [p.read_bytes() for p in one] == [p.read_bytes() for p in three]


def test_train_freeze_and_options(call, folder, tmp_path):
    code, _, err = call(
        "train", folder / "net.json", "--data", "digits", "-o", tmp_path, "--freeze", "conv*", "--optimizer", "adamw",
        "--optimizer-option", "weight_decay=0.1", "--clip-norm", "1", "--accumulate", "2",
    )  # fmt: skip
    assert code == 0, err


def test_run_writes_outputs_of_any_name(call, tmp_path):
    x = gk.input("x", [2])
    gk.Model({"file": gk.sqrt(x), "allow_pickle": gk.neg(x), "a/b": gk.exp(x)}).save(tmp_path / "net.json")
    code, _, _ = call("run", tmp_path / "net.json", "x:2", "--fill", "ones", "-o", tmp_path / "out.npz")
    assert code == 0
    with np.load(tmp_path / "out.npz") as written:
        assert {name: written[name].tolist() for name in ("file", "allow_pickle")} == {
            "file": [1, 1],
            "allow_pickle": [-1, -1],
        }
        assert written["a/b"].shape == (2,)


def test_outputs_are_no_paths_out_of_the_folder(call, tmp_path):
    """An untrusted file may have any names. The written file is read again with the same names."""
    x, names = gk.input("x", [2]), ["../../x", "/tmp/x", "C:\\x", "y"]
    gk.Model({name: x + float(i) for i, name in enumerate(names)}).save(tmp_path / "net.json")
    assert call("run", tmp_path / "net.json", "x:2", "--fill", "ones", "-o", tmp_path / "out.npz")[0] == 0
    with zipfile.ZipFile(tmp_path / "out.npz") as archive:
        assert archive.namelist() == ["%2E%2E/%2E%2E/x.npy", "%2Ftmp/x.npy", "C%3A%5Cx.npy", "y.npy"]
    again = gk.Model({"sum": sum(gk.input(name, [2]) for name in names)})
    again.save(tmp_path / "again.json")
    assert call("run", tmp_path / "again.json", tmp_path / "out.npz", "-o", tmp_path / "sum.npz")[0] == 0
    np.testing.assert_array_equal(np.load(tmp_path / "sum.npz")["sum"], [10, 10])


@pytest.mark.parametrize(("name", "message"), [("\ud800", "it is not UTF-8"), ("n" * 70_000, "too long for an .npz")])
def test_names_that_no_archive_can_hold_are_refused(name, message):
    with pytest.raises(UsageError, match=message):
        npz_bytes({name: np.zeros(2)}, instead="--json")


def test_run_writes_npz_that_numpy_reads(call, folder, tmp_path):
    image = np.random.default_rng(0).random((3, 1, 8, 8), np.float32)
    np.save(tmp_path / "image.npy", image)
    code, _, _ = call("run", folder / "net.onnx", f"x={tmp_path / 'image.npy'}", "-o", tmp_path / "out.npz")
    assert code == 0
    first = np.load(tmp_path / "out.npz")["logits"]
    np.savez(tmp_path / "in.npz", x=image)
    call("run", folder / "net.json", tmp_path / "in.npz", "-o", tmp_path / "again.npz")
    np.testing.assert_allclose(np.load(tmp_path / "again.npz")["logits"], first, rtol=1e-5, atol=1e-6)
    assert first.shape == (3, 10)


def test_run_takes_and_writes_sequences(call, tmp_path):
    q = gk.input("q", gk.SequenceType(gk.TensorType("float32", ["N", 3])))
    o = gk.input("o", gk.OptionalType(gk.TensorType("float32", [2])))
    outputs = {"s": gk.sequence_insert(q, np.zeros((2, 3), np.float32)), "none": gk.identity(o), "r": gk.identity(q)}
    path, written = tmp_path / "net.onnx", tmp_path / "out.npz"
    gk.Model(outputs, name="net").save(path)
    for name, rows in (("a", 1), ("b", 4)):
        np.save(tmp_path / f"{name}.npy", np.full((rows, 3), rows, np.float32))
    files = f"q={tmp_path / 'a.npy'},{tmp_path / 'b.npy'}"
    code, out, _ = call("run", path, files, "o=", "-o", written)
    assert code == 0
    assert "empty optional" in out
    names = {"s[0]": 1, "s[1]": 4, "s[2]": 2, "r[0]": 1, "r[1]": 4}
    with np.load(written) as arrays:
        assert {n: len(arrays[n]) for n in arrays} == names
    np.savez(tmp_path / "in.npz", **{"q[0]": np.zeros((1, 3), np.float32), "q[1]": np.zeros((4, 3), np.float32)})
    for given in (tmp_path / "in.npz", f"q={tmp_path / 'in.npz'}"):
        code, out, _ = call("run", path, given, "o=", "--json")
        assert code == 0
        shown = json.loads(out)["outputs"]
        assert {o["name"]: len(o["values"]) for o in shown if o["shape"]} == names
        assert [o["name"] for o in shown if o["dtype"] is None] == ["none"]
    code, out, _ = call("run", path, "q=", "--output-name", "r", "--json")
    assert code == 0
    assert json.loads(out)["outputs"] == [{"name": "r", "dtype": None, "shape": None, "values": None}]
    assert call("verify", path, files)[0] == 0
    code, _, errors = call("run", path, "p=")
    assert code == 2
    assert "no input 'p'" in errors


def test_run_internal_values_and_fills(call, folder):
    code, out, _ = call("run", folder / "net.json", "x:2,1,8,8", "--fill", "ones", "--output-name", "conv1", "--json")
    assert code == 0
    (output,) = json.loads(out)["outputs"]
    assert (output["name"], output["shape"]) == ("conv1", [2, 20, 8, 8])


def test_run_reads_a_model_from_stdin(folder):
    done = subprocess.run(
        [sys.executable, "-P", "-m", "graphkit", "run", "-", "--json"], input=(folder / "net.onnx").read_bytes(),
        capture_output=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout)["outputs"][0]["name"] == "logits"
    # Objects that are alive at the end of the process must not be reported as leaks.
    assert b"leak" not in done.stderr
    assert b"nanobind" not in done.stderr


def test_verify_fails_with_code_1_when_tolerances_are_zero(call, folder):
    code, out, _ = call("verify", folder / "net.onnx", "--rtol", "0", "--atol", "0", "--json")
    report = json.loads(out)
    assert code == (0 if report["passed"] else 1)
    assert report["outputs"][0]["needed_atol"] == report["outputs"][0]["max_abs"]


def test_verify_says_by_which_criterion_an_output_passed(call, folder):
    code, out, _ = call("verify", folder / "net.onnx", "--strict-tolerance", "--json")
    assert code == 0
    assert json.loads(out)["outputs"][0]["criterion"] == "tolerance"
    assert json.loads(out)["outputs"][0]["noise"] is None
    code, out, _ = call("verify", folder / "net.onnx")
    assert code == 0
    assert "tolerance" in out


def test_grad_writes_standard_onnx_and_checks(call, folder, tmp_path):
    import onnx

    path = tmp_path / "grad.onnx"
    code, out, err = call("grad", folder / "net.json", "--loss", "softmax_cross_entropy", "--check", "-o", path)
    assert code == 0, out + err
    assert "FAILED" not in out
    proto = onnx.load(path)
    assert {node.domain for node in proto.graph.node} <= {"", "ai.onnx"}
    assert [o.name for o in proto.graph.output][:1] == ["loss"]


def test_grad_does_not_write_onto_its_model(call, folder):
    before = (folder / "net.json").read_bytes()
    code, _, err = call("grad", folder / "net.json", "--loss", "softmax_cross_entropy", "-o", folder / "net.json")
    assert code == 2
    assert "net.json is MODEL itself: give another name for the output file" in err
    assert (folder / "net.json").read_bytes() == before


def test_export_as_json_says_the_opset(call, folder, tmp_path):
    path = tmp_path / "net.onnx"
    for more, opset in ((), 21), (("--opset", 17), 17):
        code, out, _ = call("export", folder / "net.json", "-o", path, "--no-verify", "--json", *more)
        assert code == 0
        result = json.loads(out)
        assert (result["file"], result["opset"], result["verified"]) == (str(path), opset, False)


def test_grad_as_json(call, folder, tmp_path):
    """With or without a check, stdout is one JSON object that describes the written files."""
    path = tmp_path / "grad.json"
    options = ("grad", folder / "net.json", "--of", "logits", "--wrt", "fc2_bias", "-o", path, "--json")
    for check in ((), ("--check",)):
        code, out, _ = call(*options, *check)
        result = json.loads(out)
        assert code == 0
        assert (result["schema"], result["file"]) == ("graphkit.grad", str(path))
        assert result["outputs"]["fc2_bias_grad"] == "float32[10]"
        assert result.get("passed") is (True if check else None)


def test_inspect_forms(call, folder):
    assert "431" not in call("inspect", folder / "net.json")[1]
    assert "131,080" in call("inspect", folder / "net.json")[1]
    assert call("inspect", folder / "net.json", "--text")[1].startswith("graph lenet {")
    assert call("inspect", folder / "net.json", "--dot")[1].startswith("digraph")
    facts = json.loads(call("inspect", folder / "net.onnx", "--json")[1])
    assert facts["inputs"] == {"x": "float32[N, 1, 8, 8]"}
    assert facts["operators"]["Conv"] == 2


def test_inspect_shows_file_inputs_and_names_to_train(call, folder, tmp_path):
    gk.load(folder / "net.json").save(tmp_path / "net.onnx", opset=17)
    out = call("inspect", tmp_path / "net.onnx")[1]
    assert "file: ONNX, opset 17, written by graphkit" in out
    assert "input x: float32[N, 1, 8, 8]" in out
    assert "output logits: float32[N, 10]" in out
    rows = [
        line.split() for line in out.split("parameters, with their names for --train and --freeze\n")[1].splitlines()
    ]
    assert ["fc2_bias", "float32[10]", "trained"] in rows
    facts = json.loads(call("inspect", tmp_path / "net.onnx", "--json")[1])
    assert (facts["opset"], facts["producer"].split()[0], facts["constants"]) == ("17", "graphkit", [])
    assert facts["trainable"] == [row[0] for row in rows[1:]]


def test_every_view_counts_the_same_parameters(call, folder, tmp_path):
    """The first layer is frozen, so that the two numbers differ."""
    net = gk.load(folder / "net.json")
    count, first = net.num_parameters, net.params["conv1_weight"].size
    frozen = net.num_parameters - first
    file, run = folder / "net.json", tmp_path / "run"
    assert f"parameters: {count:,} ({count:,} trainable)" in call("inspect", file)[1]
    assert json.loads(call("inspect", file, "--json")[1])["num_parameters"] == count
    _, _, err = call("train", file, "--data", "digits", "--freeze", "conv1_weight", "-o", run)
    assert f"lenet: {count:,} parameters, of which {frozen:,} are trained" in err
    call("report", run, "-o", tmp_path / "page.html")
    assert f"{count:,} parameters ({count:,} trainable)" in (tmp_path / "page.html").read_text()
    assert f"{count:,} parameters" in repr(net)
    assert f"parameters: {count:,} ({count:,} trainable)" in net.summary()
    assert f"{count:,} parameters" in repr(gk.Trainer(net))


def test_inspect_passes(call, folder):
    code, out, _ = call("inspect", folder / "net.json", "--passes")
    assert code == 0
    (row,) = (line for line in out.splitlines() if line.startswith("fuse_conv"))
    assert "Conv -2, FusedConv +2" in row
    told = json.loads(call("inspect", folder / "net.onnx", "--passes", "--json")[1])
    assert told["schema"] == "graphkit.passes"
    names = [entry["name"] for entry in told["passes"]]
    assert names.index("fold_batch_norm") < names.index("fuse_conv") < names.index("fuse_pointwise")
    assert told["passes"][-1]["nodes"] < told["passes"][0]["nodes"]


def test_ops_of_everything_and_of_a_model(call, folder):
    rows = json.loads(call("ops", "--json")[1])["operators"]
    by_name = {r["operator"]: r for r in rows}
    assert by_name["Conv"]["gradient"] == "yes"
    assert len(rows) >= 80
    model_rows = json.loads(call("ops", folder / "net.onnx", "--json")[1])["operators"]
    assert {"operator": "Conv", "count": 2} in [{k: r[k] for k in ("operator", "count")} for r in model_rows]


def test_doctor(call):
    code, out, _ = call("doctor", "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["engine"]["native"] is True
    assert facts["packages"]["onnx"] != "not installed"
    assert facts["card"]["card"]
    assert facts["card"]["NVRTC"]
    assert facts["card"]["cuBLASLt"]
    assert facts["card"]["cuDNN"]
    assert "default: none in Python, 10,000,000 in commands" in facts["settings"]["GRAPHKIT_MAX_ITERATIONS"]


def test_build_from_a_python_file(call, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import graphkit as gk\n"
        "def make(width: int = 4) -> gk.Model:\n"
        "    x = gk.input('x', ['N', 3])\n"
        "    return gk.Model({'y': gk.nn.linear(x, width)}, name='mine')\n"
    )
    code, out, _ = call(
        "build", f"{tmp_path / 'mine.py'}:make", "-p", "width=7", "-o", tmp_path / "mine.json", "--json"
    )
    assert code == 0
    assert json.loads(out)["parameters"] == 3 * 7 + 7


def test_options_of_a_python_file_without_annotations_have_the_types_of_their_defaults(call, tmp_path):
    (tmp_path / "bare.py").write_text(
        "import graphkit as gk\n"
        "def make(name, hidden=(4,), width=4, bias=True, scale=1.0):\n"
        "    h = gk.input('x', ['N', 3])\n"
        "    for features in (*hidden, width):\n"
        "        h = gk.nn.linear(h, features, bias=bias) * scale\n"
        "    return gk.Model({'y': h}, name=name)\n"
    )
    options = ("name=mine", "hidden=5,6", "width=7", "bias=false", "scale=0.5")
    code, out, err = call(
        "build", f"{tmp_path / 'bare.py'}:make", *(part for o in options for part in ("-p", o)),
        "-o", tmp_path / "bare.json", "--json",
    )  # fmt: skip
    assert code == 0, err
    built = json.loads(out)
    assert (built["model"], built["parameters"]) == ("mine", 3 * 5 + 5 * 6 + 6 * 7)
    code, _, err = call("build", f"{tmp_path / 'bare.py'}:make", "-p", "name=x", "-p", "width=7.5", "-o", "no.json")
    assert code == 2
    assert "option width: expected an integer, not '7.5'" in err


@pytest.mark.full
@pytest.mark.parametrize("launcher", ["--processes", pytest.param("mpiexec", marks=pytest.mark.full)])
def test_two_processes_train_like_one(call, folder, tmp_path, launcher):
    from graphkit.dist.job.launch import find_mpiexec

    common = ["train", str(folder / "net.json"), "--data", "digits", "--epochs", "3", "--seed", "1", "-o"]
    graphkit = [sys.executable, "-P", "-m", "graphkit"]
    code, _, err = call(*common, tmp_path / "one", "--batch-size", "64")
    assert code == 0, err
    two = [*common, str(tmp_path / "two"), "--batch-size", "32", "--kvstore", "dist_sync"]
    two = (
        [*graphkit, *two, "--processes", "2"]
        if launcher == "--processes"
        else [find_mpiexec(), "-n", "2", *graphkit, *two]
    )
    done = subprocess.run(two, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    a, b = gk.load(tmp_path / "one"), gk.load(tmp_path / "two")
    for name in a.params:
        # In the norm: after 69 updates a pooling window with two nearly equal maxima may have picked the other one.
        difference = np.linalg.norm(b.params[name] - a.params[name])
        assert difference <= 1e-4 * np.linalg.norm(a.params[name]), name


def test_the_store_of_a_run_gets_its_compression(call, folder, monkeypatch):
    class Store:
        num_workers = 2

        def set_gradient_compression(self, value):
            raise UsageError(f"the store was given {value}")  # before a trainer is made

    monkeypatch.setattr("graphkit.dist.kvstore.create", lambda *_, **__: Store())
    code, _, err = call(
        "train", folder / "net.json", "--data", "digits", "--kvstore", "dist_sync", "--compression", "top_k:0.05"
    )  # fmt: skip
    assert code == 2
    assert "the store was given top_k:0.05" in err


def test_a_store_of_one_process_says_that_it_has_no_effect(call, folder, tmp_path, monkeypatch):
    alone = kvstore.create("local")  # this process must not start MPI
    monkeypatch.setattr("graphkit.dist.kvstore.create", lambda *_, **__: alone)
    code, _, err = call(
        "train", folder / "net.json", "--data", "digits", "--kvstore", "dist_sync", "-o", tmp_path / "a"
    )
    assert code == 0, err
    assert "--kvstore dist_sync has no effect with one process; to train with several, add --processes N" in err


@pytest.mark.full
@pytest.mark.parametrize("compression", ["2bit:0.003", "top_k:0.05", "bfloat16"])
def test_two_processes_train_with_gradients_in_fewer_bytes(folder, tmp_path, compression):
    command = [
        sys.executable, "-P", "-m", "graphkit", "train", str(folder / "net.json"), "--data", "digits", "--epochs", "4",
        "--batch-size", "32", "--processes", "2", "--kvstore", "dist_sync", "--compression", compression,
        "-o", str(tmp_path / "run"), "--json",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    losses = [r["loss"] for r in records if "loss" in r]
    assert losses[-1] < 0.5 * losses[0]


def test_data_to_validate_on_leave_all_of_the_others_for_training(call, folder, tmp_path):
    rng = np.random.default_rng(0)
    shape = gk.load(folder / "net.json").input_types["x"].shape[1:]

    def arrays(count, part=""):
        return {f"x{part}": rng.random((count, *shape), np.float32), f"y{part}": rng.integers(0, 10, count)}

    np.savez(tmp_path / "one.npz", **arrays(20))
    np.savez(tmp_path / "two.npz", **arrays(15, "_train"), **arrays(5, "_test"))
    np.savez(tmp_path / "valid.npz", **arrays(3))
    for name, options, updates in (
        ("one", [], 16),
        ("one", ["--valid", tmp_path / "valid.npz"], 20),
        ("two", [], 15),
        ("two", ["--valid", tmp_path / "valid.npz"], 15),
    ):
        command = ["train", folder / "net.json", "--data", tmp_path / f"{name}.npz", "--batch-size", 1, "--json"]
        code, out, err = call(*command, *options)
        assert code == 0, err
        assert json.loads(out)["updates"] == updates
        assert "valid_accuracy" in json.loads(out)["history"][0]


def test_a_trace_of_training(call, folder, tmp_path):
    path = tmp_path / "trace.json"
    train = ["train", folder / "net.json", "--data", "digits", "--profile", path]
    code, out, err = call(*train, "--epochs", 2)
    assert code == 0, err
    assert "epoch 2: loss" in out
    assert "time per operator" in out
    assert f"wrote {path}" in err
    events = json.loads(path.read_text())["traceEvents"]
    assert sum(e.get("cat") == "run" for e in events) == 10
    memory = [e["args"]["live bytes"] for e in events if e["ph"] == "C"]
    assert max(memory) > 0
    assert memory[-1] == 0
    code, out, err = call(*train, "--json")
    assert code == 0, err
    result = json.loads(out)
    assert sum(o["share"] for o in result["operators"]) == pytest.approx(1)
    assert len(result["history"]) == 1


@pytest.mark.parametrize("command", [("run",), ("bench", "--against", "nothing"), ("train", "--data", "digits")])
def test_a_trace_file_must_end_in_json(call, folder, tmp_path, command):
    path, run = tmp_path / "trace.txt", tmp_path / "run"
    written = ("-o", run) if command[0] == "train" else ()
    code, out, err = call(command[0], folder / "net.json", *command[1:], *written, "--profile", path)
    assert code == 2
    assert err == f"graphkit: --profile {path}: the name of the file must end in .json\n"
    assert not out
    assert not path.exists()
    assert not run.exists()


def test_help_of_build_lists_every_network_with_its_options(call):
    out = " ".join(call("build", "--help")[1].split())
    for name in gk.models.names():
        assert f" {name} {gk.models.options(name)[0].name}=" in out
    assert "lenet image=1x28x28, classes=10 " in out
