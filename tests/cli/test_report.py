"""graphkit report: pages from folders of runs, once or until the runs are over."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import graphkit as gk
from graphkit import cli


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    assert cli.invoke(["build", "mlp", "--dataset", "digits", "-o", str(folder / "net.json")]) == 0
    assert cli.invoke(["train", str(folder / "net.json"), "--data", "digits", "-o", str(folder / "run")]) == 0
    return folder / "run"


def test_a_page_of_a_run(call, run, tmp_path):
    code, out, err = call("report", run, "-o", tmp_path / "page.html")
    assert (code, out) == (0, "")
    assert err == f"wrote {tmp_path / 'page.html'}\n"
    text = (tmp_path / "page.html").read_text()
    assert "359 samples of digits (test), output logits" in text
    assert 'class="confusion"' in text


def test_json(call, run, tmp_path):
    code, out, _ = call("report", run, "-o", tmp_path / "page.html", "--json", "--no-predictions")
    found = json.loads(out)
    assert (code, found["schema"], found["page"]) == (0, "graphkit.report", str(tmp_path / "page.html"))
    assert found["runs"][0]["last"]["epoch"] == 1
    assert 'class="confusion"' not in (tmp_path / "page.html").read_text()


def test_other_data_and_fewer_of_them(call, run, tmp_path):
    assert call("report", run, "-o", tmp_path / "page.html", "--valid", "digits", "--max-samples", 100)[0] == 0
    assert "the first 128 of 1,797 samples of digits" in (tmp_path / "page.html").read_text()


def test_data_that_are_asked_for_have_to_be_there(call, run, tmp_path):
    code, _, err = call("report", run, "-o", tmp_path / "page.html", "--data", "missing.npz")
    assert code == 2
    assert "missing.npz" in err
    assert not (tmp_path / "page.html").exists()


def test_data_of_the_run_that_are_gone_are_told(call, tmp_path, run):
    shutil.copytree(run, tmp_path / "run")
    config = (run / "config.toml").read_text()
    (tmp_path / "run/config.toml").write_text(config.replace('data = "digits"', 'data = "gone.npz"'))
    code, _, err = call("report", tmp_path / "run", "-o", tmp_path / "page.html", "--trust-run-folder")
    assert code == 0
    assert "run: no predictions: gone.npz: no such file" in err
    assert "no predictions: gone.npz" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("where", ["config", "checkpoint"])
@pytest.mark.parametrize("spec", ["FOLDER/harm.py:data", "FOLDER/pipe", "FOLDER/other.csv"])
def test_a_received_folder_is_data(call, tmp_path, run, where, spec):
    """No function is called, and no file read, that it names and the command does not."""
    folder, spec = tmp_path / "run", spec.replace("FOLDER", str(tmp_path))
    shutil.copytree(run, folder)
    (tmp_path / "harm.py").write_text(
        f"import pathlib; pathlib.Path({str(tmp_path / 'harmed')!r}).touch()\ndef data(): return None\n"
    )
    (tmp_path / "other.csv").write_text("a,label\n1,2\n")
    os.mkfifo(tmp_path / "pipe")
    if where == "config":
        config = (folder / "config.toml").read_text()
        (folder / "config.toml").write_text(config.replace('data = "digits"', f'data = "{spec}"'))
    else:
        (folder / "config.toml").unlink()
        notes = json.loads((folder / "checkpoint.json").read_text())
        notes["notes"]["data_spec"] = spec
        (folder / "checkpoint.json").write_text(json.dumps(notes))
    code, _, err = call("report", folder, "-o", tmp_path / "page.html")
    assert code == 0
    assert f"no predictions: the run folder refers to the data {spec}" in err
    assert "--trust-run-folder" in err
    assert not (tmp_path / "harmed").exists()


def test_a_received_run_goes_on_without_its_code(call, tmp_path, run):
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    (tmp_path / "harm.py").write_text(
        f"import pathlib; pathlib.Path({str(tmp_path / 'harmed')!r}).touch()\nfrom graphkit.data import sources\n"
        "def data(): return sources.read('digits')\n"
    )
    spec = f"{tmp_path / 'harm.py'}:data"
    notes = json.loads((folder / "checkpoint.json").read_text())
    notes["notes"]["data_spec"] = spec
    (folder / "checkpoint.json").write_text(json.dumps(notes))
    arguments = ("train", folder / "model.json", "-o", folder, "--resume", "--epochs", 3)
    code, _, err = call(*arguments)
    assert code == 2
    assert f"the run folder refers to Python code, {spec}" in err
    assert not (tmp_path / "harmed").exists()
    assert call(*arguments, "--trust-run-folder")[0] == 0
    assert (tmp_path / "harmed").exists()


def test_usage(call, run, tmp_path):
    page = tmp_path / "page.html"
    assert call("report", "-o", page)[0] == 2
    assert call("report", run)[0] == 2
    code, _, err = call("report", tmp_path / "nowhere", "-o", page)
    assert code == 2
    assert "no such folder" in err
    assert call("report", run, "-o", page, "--no-predictions", "--data", "digits")[0] == 2
    code, _, err = call("report", run, "-o", tmp_path / "no/such/page.html")
    assert code == 5
    assert "cannot be written" in err


def started(*arguments):
    command = [sys.executable, "-P", "-m", "graphkit", "report", *map(str, arguments)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def wait_for(condition, process):
    for _ in range(1200):
        if condition():
            return
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    raise AssertionError("it does not come")


def epoch(number):
    fields = {"seconds": number, "epoch": number, "updates": number, "loss": 1.0 / number}
    return json.dumps({"event": "epoch", **fields}) + "\n"


@pytest.mark.full
def test_watching_ends_with_the_run(tmp_path):
    from graphkit.train.run_folder import RunFolder

    page, folder = tmp_path / "page.html", tmp_path / "run"
    process = started(folder, "-o", page, "--watch", "--refresh", 1, "--no-predictions")
    try:
        wait_for(page.exists, process)
        assert '"refresh":1' in page.read_text()
        with RunFolder(folder):
            (folder / "log.jsonl").write_text(epoch(1) + epoch(2)[:20])
            wait_for(lambda: "running: 1 epochs" in page.read_text(), process)
            (folder / "log.jsonl").write_text(epoch(1) + epoch(2))
            wait_for(lambda: "running: 2 epochs" in page.read_text(), process)
        assert process.wait(60) == 0
        assert '"refresh":null' in page.read_text()
        assert "2 epochs" in page.read_text()
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("kills", [(2,), pytest.param((2, 3, 5), marks=pytest.mark.full)], ids=["once", "often"])
def test_no_page_is_half_written_whenever_it_is_killed(tmp_path, kills):
    """Pages are written as fast as it goes, and read all the time; in the end the writer is killed."""
    page = tmp_path / "page.html"
    script = (
        "import sys; from pathlib import Path; from graphkit.cli import report\n"
        "report.time.sleep = lambda _: None\n"
        "report.command.main(sys.argv[1:], standalone_mode=False)\n"
    )
    (tmp_path / "run").mkdir()
    (tmp_path / "run/log.jsonl").write_text("".join(map(epoch, range(1, 2000))))
    (tmp_path / "run/.lock").write_text(json.dumps({"pid": 1, "host": "elsewhere", "since": 0}))
    arguments = [str(tmp_path / "run"), "-o", str(page), "--watch", "--no-predictions"]
    for pages in kills:
        process = subprocess.Popen([sys.executable, "-P", "-c", script, *arguments], stderr=subprocess.PIPE, text=True)
        stamps = set()

        def enough(stamps=stamps, pages=pages):
            if page.exists():
                assert page.read_text().endswith("</html>\n")
                stamps.add(page.stat().st_mtime_ns)
            return len(stamps) > pages

        try:
            wait_for(enough, process)
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()
        assert page.read_text().endswith("</html>\n")
    assert call_leaves_nothing_else(tmp_path)


def call_leaves_nothing_else(folder):
    """The next writer removes the temporary files of killed writers."""
    arguments = ["report", str(folder / "run"), "-o", str(folder / "page.html"), "--no-predictions"]
    assert cli.invoke(arguments) == 0
    return not [p for p in folder.iterdir() if re.search(r"graphkit\.tmp$", p.name)]


def test_interrupted_watching_leaves_the_page(tmp_path):
    page = tmp_path / "page.html"
    process = started(tmp_path / "run", "-o", page, "--watch")
    try:
        wait_for(page.exists, process)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.communicate()
    assert page.read_text().endswith("</html>\n")


def test_several_outputs_are_told_apart(call, tmp_path):
    """The first output that has a loss is predicted, by the target of its name."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 3)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x, kind=(x[:, 0] > 0).astype(np.int64), size=x[:, 1:2])
    value = gk.input("x", ["N", 3])
    net = gk.Model({"size": gk.nn.linear(value, 1, name="a"), "kind": gk.nn.linear(value, 2, name="b")})
    net.save(tmp_path / "net.json")
    losses = ["--loss", "kind=softmax_cross_entropy", "--loss", "size=mse", "--output-name", "kind"]
    arguments = ["train", str(tmp_path / "net.json"), "--data", str(tmp_path / "data.npz"), *losses]
    assert cli.invoke([*arguments, "--tensorboard", "-o", str(tmp_path / "run")]) == 0
    code, _, err = call("report", tmp_path / "run", "-o", tmp_path / "page.html", "--trust-run-folder")
    assert code == 0
    assert "warning" not in err
    assert "output kind: " in (tmp_path / "page.html").read_text()


def test_a_run_of_a_table(call, tmp_path, monkeypatch):
    """Trained elsewhere by a relative path, too."""
    rows = "".join(f"{n % 80},{('rome', 'oslo')[n % 2]},{('young', 'old')[n % 80 > 40]}\n" for n in range(200))
    (tmp_path / "people.csv").write_text("age,city,label\n" + rows)
    monkeypatch.chdir(tmp_path)
    data = ["--data", "people.csv", "--data-option", "columns=age,city"]
    assert (
        cli.invoke(["build", "mlp", "--dataset", str(tmp_path / "people.csv"), "-o", str(tmp_path / "net.json")]) == 0
    )
    assert cli.invoke(["train", str(tmp_path / "net.json"), *data, "-o", str(tmp_path / "run")]) == 0
    monkeypatch.chdir("/")
    assert call("report", tmp_path / "run", "-o", tmp_path / "page.html", "--trust-run-folder")[0] == 0
    text = (tmp_path / "page.html").read_text()
    assert "<td>young</td>" in text
    assert re.search(r"\d+ samples of \S*people", text)
