"""graphkit plan: tables, training steps, divided states and pages; and groups of nodes on devices."""

import json

import pytest

import graphkit as gk


def test_plan_and_the_four_way_table(call, folder):
    code, out, _ = call("plan", folder / "net.json", "--batch", "64", "--compare", "--json")
    plan = json.loads(out)
    assert code == 0
    assert plan["lower_bound"] <= plan["arena_bytes"] <= plan["naive_bytes"]
    assert plan["compare"]["both"] <= min(plan["compare"].values())
    text = call("plan", folder / "net.json", "--batch", "64", "--compare", "--no-run")[1]
    rows = [line.rsplit("  ", 1)[0].rstrip() for line in text.splitlines()[-4:]]
    assert rows == ["none", "in-place steps", "buffer reuse", "both"]
    text = call("plan", folder / "net.json", "--batch", "64", "--steps")[1]
    assert "conv1" in text
    assert "peak at node" in text


@pytest.fixture(scope="module")
def grouped(folder):
    """A network of two groups."""
    x = gk.input("x", ["N", 1, 8, 8])
    with gk.attr_scope(ctx_group="first"):
        h = gk.relu(gk.nn.linear(gk.flatten(x), 8, name="one"))
    with gk.attr_scope(ctx_group="second"):
        gk.Model({"y": gk.nn.linear(h, 10, name="two")}, seed=0).save(folder / "grouped.json")
    return folder / "grouped.json"


def test_groups_on_devices(call, grouped):
    for command in ("run", "plan", "bench"):
        options = ["--runs", "2", "--against", "nothing"] if command == "bench" else []
        code, out, err = call(command, grouped, *options, "--device", "first=cpu,second=cpu", "--json")
        assert code == 0, out + err
    code, out, err = call("train", grouped, "--data", "digits", "--epochs", "1", "--device", "first=cpu,cpu", "--json")
    assert code == 0, out + err
    for given, message in (
        ("first=cpu,third=cpu", "the graph has no group 'third'; its groups are 'first', 'second'"),
        ("first=cpu", "no device is given for 'second', and no default"),
        ("first=cpu,cpu,cuda", "cpu and cuda have none"),
        ("first=cpu,first=cuda", "--device first is given twice, as cpu and as cuda"),
        ("first=cpu,second=cuba", "did you mean 'cuda'? (of group 'second')"),
    ):
        code, _, err = call("run", grouped, "--device", given)
        assert code != 0
        assert message in err


def test_plan_of_a_training_step(call, folder):
    def planned(*options):
        code, out, err = call("plan", folder / "net.json", "--batch", "8", "--no-run", "--json", *options)
        assert code == 0, err
        return json.loads(out)

    sgd, adam = (planned("--training", "--optimizer", name) for name in ("sgd", "adam"))
    assert any(step["op"].endswith("SgdUpdate") for step in sgd["steps"])
    assert any(step["op"].endswith("AdamUpdate") for step in adam["steps"])
    assert planned()["arena_bytes"] < sgd["arena_bytes"]
    # Swapping has an effect only on a GPU: the memory of a CPU is host memory.
    assert planned("--training", "--swap-memory")["arena_bytes"] == sgd["arena_bytes"]
    for options in (["--recompute", "sqrt"], ["--swap-memory"], ["--optimizer", "adam"], ["--loss", "mse"]):
        for command in ("plan", "bench"):
            code, _, err = call(command, folder / "net.json", *options)
            assert code == 2
            assert f"{options[0]} only works with --training" in err


def test_plan_of_states_that_processes_divide(call, folder):
    def states(*options):
        code, out, err = call("plan", folder / "net.json", "--batch", "8", "--no-run", "--json", "--training", *options)
        assert code == 0, err
        return json.loads(out)["optimizer_state_bytes"]

    whole, part = states("--optimizer", "adam"), states("--optimizer", "adam", "--processes", "4")
    assert whole / 4 <= part <= whole / 4 + 8 * 64 * 2
    text = call("plan", folder / "net.json", "--batch", "8", "--no-run", "--training", "--processes", "2")[1]
    assert "optimizer states, per process of 2" in text
    code, _, err = call("plan", folder / "net.json", "--processes", "2")
    assert code == 2
    assert "--processes only works with --training" in err
    code, _, err = call(
        "plan", folder / "net.json", "--training", "--optimizer", "lamb", "--processes", "2", "--no-run"
    )
    assert code == 2
    assert "needs norms of whole parameters" in err


def test_plan_measures_a_run_and_writes_a_page(call, folder, tmp_path):
    page = tmp_path / "memory.html"
    code, out, err = call("plan", folder / "net.json", "--batch", "8", "--html", page, "--json")
    plan = json.loads(out)
    assert code == 0
    assert f"wrote {page}" in err
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert plan["run_planned_bytes"] == plan["arena_bytes"] + plan["result_bytes"] + plan["packed_bytes"]
    assert 0 <= plan["run_measured_bytes"] < 1 << 30
    text = call("plan", folder / "net.json", "--batch", "8")[1]
    for row in (
        "activations",
        "working memory of a step",
        "naive sum",
        "one run, measured",
        "lower bound, in the order of the",
    ):
        assert row in text
    assert "measured" not in call("plan", folder / "net.json", "--batch", "8", "--no-run")[1]
