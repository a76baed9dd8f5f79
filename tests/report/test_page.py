"""The page of runs: it is self-contained, shows the data of the runs, and escapes all names."""

from __future__ import annotations

import base64
import io
import json
import math
import re
from html import unescape
from html.parser import HTMLParser

import numpy as np
import pytest

import graphkit as gk
from graphkit.report.page import Reported, page, title_of
from graphkit.report.predictions import predict
from graphkit.report.runs import read_run, read_runs

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>'\"&"


def data_of(text: str) -> dict:
    (found,) = re.findall(r'<script type="application/json" id="curves">(.*?)</script>', text, re.DOTALL)
    return json.loads(found)


class Balanced(HTMLParser):
    """Raises where an element is closed that is not open, or left open."""

    VOID = frozenset({"meta", "input", "img", "br", "hr", "link"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def check(text: str) -> None:
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []
    assert "@@" not in text
    outside = re.sub(r"http://www\.w3\.org/2000/svg", "", text)
    assert not re.search(r"https?:|@import|url\(|<link|<iframe|<script src|<img(?![^>]* src=\"data:)", outside)


def test_the_page_stands_alone(trained):
    net = gk.load(trained)
    run = read_run(trained)
    text = page([Reported(run, net, predict(net, gk.data.load("digits").test))], "a < b & c")
    check(text)
    assert "<title>a &lt; b &amp; c</title>" in text
    assert "finished: 3 epochs" in text
    assert [c["key"] for c in data_of(text)["charts"]][:2] == ["loss", "accuracy"]
    assert text.count("<figure") == 48
    assert len(text) < 400_000


def test_numbers_of_the_table_are_those_of_the_last_epoch(run_folder, records):
    folder = run_folder("run", [records.epoch(1, loss=1.5), records.epoch(2, loss=0.25, valid_accuracy=0.875)])
    text = page([Reported(read_run(folder))], "t")
    row = re.search(r"<tbody>(<tr>.*?</tr>)", text, re.DOTALL)[1]
    assert re.findall(r'<td class="n">(.*?)</td>', row) == ["2", "20", "4 s", "0.875", "0.25", "", ""]


def test_the_drawn_samples_are_those_of_the_data(trained):
    from PIL import Image

    test = gk.data.load("digits").test
    found = predict(gk.load(trained), test)
    text = page([Reported(read_run(trained), None, found)], "t")
    pictures = re.findall(r'<figure class="(\w+)" title="(.*?)">.*?base64,(.*?)"', text)
    for (mark, title, encoded), place in zip(pictures, found.worst(24), strict=False):
        assert unescape(title).startswith(f"sample {place}: target {test.targets[place]}; ")
        assert mark == ("right" if found.predicted[place] == test.targets[place] else "wrong")
        with Image.open(io.BytesIO(base64.b64decode(encoded))) as picture:
            np.testing.assert_array_equal(np.asarray(picture), np.rint(test.inputs[place, 0] * 255))


def test_cells_of_the_confusion_matrix_are_its_numbers(trained):
    found = predict(gk.load(trained), gk.data.load("digits").test)
    text = page([Reported(read_run(trained), None, found)], "t")
    cells = re.findall(r"<title>(\d) predicted as (\d): (\d+) of (\d+)", text)
    drawn = np.zeros((10, 10), int)
    for row, column, count, total in cells:
        drawn[int(row), int(column)] = int(count)
        assert int(total) == found.confusion[int(row)].sum()
    np.testing.assert_array_equal(drawn, found.confusion)


def test_differences_of_settings_are_marked(run_folder, records):
    texts = ('seed = 1\nlr = 0.1\nonly = "<b>"\n', "seed = 1\nlr = 0.2\n")
    folders = [run_folder(f"run{i}", [records.epoch(1, loss=1.0)], config_toml=t) for i, t in enumerate(texts)]
    text = page([Reported(run) for run in read_runs(folders)], "t")
    rows = re.findall(r"<tr( class=differs)?><td>(\w+)</td><td>(.*?)</td><td(?: class=\"none\")?>(.*?)</td></tr>", text)
    assert rows == [
        ("", "seed", "1", "1"), (" class=differs", "lr", "0.1", "0.2"),
        (" class=differs", "only", "&lt;b&gt;", "not set"),
    ]  # fmt: skip
    assert "only the 2 differences" in text


def test_names_cannot_break_out(run_folder, records, tmp_path):
    lines = [records.epoch(1, **{HOSTILE: 1.0, "loss": 2.0}), '{"' + HOSTILE.replace('"', "") + "\n"]
    stopped = {"event": "stopped", "seconds": 3, "epoch": 1, "reason": HOSTILE}
    config = f"{json.dumps(HOSTILE)} = {json.dumps(HOSTILE)}\n"
    folder = run_folder("run", [*lines, stopped], config_toml=config)
    run = read_run(folder, name=HOSTILE)
    x = gk.input("x", ["N", 1, 2, 2])
    net = gk.Model({HOSTILE: gk.flatten(x, name=HOSTILE)}, name=HOSTILE)
    names = [f"{HOSTILE}{i}" for i in range(4)]
    data = gk.data.Dataset(np.eye(4, dtype=np.float32).reshape(4, 1, 2, 2), np.arange(4), classes=names, name=HOSTILE)
    for samples in (data, gk.data.Dataset(data.inputs, data.targets, classes=names, name=HOSTILE)):
        text = page([Reported(run, net, predict(net, samples), [HOSTILE])], HOSTILE)
        check(text)
        assert "<script>alert" not in text
        assert "<img src=x" not in text
        assert data_of(text)["runs"] == [HOSTILE]


def test_text_of_samples_is_escaped(tmp_path):
    folder = tmp_path / "reviews"
    folder.mkdir()
    (folder / "f.pos").write_text("<script>alert(1)</script> good\n" * 10)
    (folder / "f.neg").write_text("<img src=x> bad\n" * 10)
    train, test = gk.data.load(f"sentences:{folder}")
    net = gk.data.described(gk.models.build("text_classifier", vocab=len(train.vocabulary), width=4, hidden=4), train)
    (tmp_path / "log.jsonl").write_text("")
    text = page([Reported(read_run(tmp_path), None, predict(net, test))], "t")
    check(text)
    assert "&lt; script &gt; alert" in text
    (tmp_path / "book.txt").write_text("<script>alert(1)</script>\n" * 30)
    train, test = gk.data.load(f"text:{tmp_path / 'book.txt'}")
    net = gk.models.build("lstm_lm", vocab=len(train.vocabulary), hidden=4, layers=1)
    text = page([Reported(read_run(tmp_path), None, predict(net, test, batch_size=2))], "t")
    check(text)
    assert re.search(r">&lt;</span><span [^>]*>s</span>", text)


def test_runs_without_anything_have_a_page(run_folder):
    text = page([Reported(run) for run in read_runs([run_folder("a", []), run_folder("b", [])])], "t", refresh=5)
    check(text)
    assert data_of(text) == {"runs": ["a", "b"], "charts": [], "refresh": 5}
    assert '<meta http-equiv="refresh" content="5">' in text


def test_numbers_that_are_none(run_folder, records):
    lines = [records.epoch(1, loss=math.nan, valid_loss=math.inf, samples_per_second=math.nan, peak_memory=math.inf)]
    text = page([Reported(read_run(run_folder("run", lines)))], "t")
    check(text)
    assert data_of(text)["charts"][0]["series"][0]["y"] == ["nan"]


def test_a_long_log_makes_a_page_of_bounded_size(run_folder, records):
    lines = [records.step(u, loss=1.0 / u, learning_rate=0.1, samples_per_second=9.0) for u in range(1, 40_001)]
    text = page([Reported(read_run(run_folder("run", lines)))], "t")
    assert len(text) < 500_000


def test_titles_name_the_runs(run_folder):
    runs = read_runs([run_folder(n, []) for n in "abcdef"])
    assert title_of(runs[:2]) == "Training of a, b"
    assert title_of(runs) == "Training of a, b, c, d and others"


@pytest.mark.parametrize("refresh", [None, 7])
def test_the_page_loads_itself_again_only_if_asked(run_folder, refresh):
    assert data_of(page([Reported(read_run(run_folder("a", [])))], "t", refresh=refresh))["refresh"] == refresh
