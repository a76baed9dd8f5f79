"""graphkit inspect --html: the page that draws a graph."""

import json
import os

import pytest

from graphkit import cli


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("models")
    for name, model in (("net.json", "lenet"), ("net.onnx", "lenet"), ("other.json", "mlp")):
        assert cli.invoke(["build", model, "-o", str(path / name)]) == 0
    return path


def test_the_page_is_written(call, folder, tmp_path):
    code, output, errors = call("inspect", folder / "net.onnx", "--html", tmp_path / "net.html")
    assert (code, output) == (0, "")
    assert "wrote" in errors
    page = (tmp_path / "net.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert "conv1" in page


def test_json_and_shapes(call, folder, tmp_path):
    html = tmp_path / "net.html"
    code, output, _ = call("inspect", folder / "net.json", "x:2,1,28,28", "--html", html, "--json")
    found = json.loads(output)
    assert code == 0
    assert (found["schema"], found["model"], found["nodes"]) == ("graphkit.graph_page", "lenet", 10)
    assert found["bytes"] == html.stat().st_size
    assert "float32[2, 20, 24, 24]" in html.read_text()
    code, output, _ = call("inspect", folder / "net.json", "x:2,1,28,28", "--costs", "--html", html, "--json")
    assert (code, json.loads(output)["schema"]) == (0, "graphkit.costs")


def test_profiles(call, folder, tmp_path):
    trace, html = tmp_path / "trace.json", tmp_path / "net.html"
    assert call("run", folder / "net.json", "x:2,1,28,28", "--profile", trace)[0] == 0
    assert call("inspect", folder / "net.json", "--html", html, "--profile", trace)[0] == 0
    assert '"timed":true' in html.read_text()
    html.unlink()
    code, _, errors = call("inspect", folder / "other.json", "--html", html, "--profile", trace)
    assert code == 2
    assert "another model" in errors
    assert not html.exists()
    assert call("inspect", folder / "net.json", "--html", html, "--time")[0] == 0
    assert '"timed":true' in html.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--html", "net.txt"], "must end in .html"),
        (["--html", "missing/net.html"], "there is no folder"),
        (["--profile", "trace.json"], "--profile only works with --html"),
        (["--time"], "--time only works with --html"),
        (["--html", "net.html", "--profile", "missing.json"], "missing.json"),
        (["--html", "net.html", "--text"], "--html does not work with --text"),
        (["--html", "net.html", "y:2"], "no input 'y'"),
    ],
)
def test_wrong_options(call, folder, arguments, message):
    code, _, errors = call("inspect", folder / "net.json", *arguments)
    assert code in (1, 2)
    assert message in errors
    assert not os.path.exists("net.html")


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_folder_without_write_permission(call, folder, tmp_path):
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    assert call("inspect", folder / "net.json", "--html", locked / "net.html")[0] != 0


def test_a_path_that_cannot_be_written(call, folder, tmp_path):
    (tmp_path / "net.html").mkdir()
    code, _, errors = call("inspect", folder / "net.json", "--html", tmp_path / "net.html")
    assert code != 0
    assert "net.html" in errors
    assert list(tmp_path.iterdir()) == [tmp_path / "net.html"]
