"""The page in a browser: no errors, the points of the log in its curves, and working controls."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest

import graphkit as gk
from graphkit.report.page import Reported, page
from graphkit.report.predictions import predict
from graphkit.report.runs import read_run, read_runs

pytestmark = pytest.mark.full


def opened(browse, folder: Path, text: str, script: str = "", **options):
    """Open the page with an additional script, whose `result` is read from the document."""
    written = folder / "page.html"
    further = f"<script>let result = null;\n{script}\n" if script else ""
    tail = "document.body.dataset.result = JSON.stringify(result);</script></body>" if script else "</body>"
    written.write_text(text.replace("</body>", further + tail))
    seen = browse(written, **options)
    assert seen.complaints == []
    found = re.search(r'data-result="(.*?)"', seen.document)
    return seen, json.loads(found[1].replace("&quot;", '"')) if found else None


def chart(document: str, key: str) -> ET.Element:
    (text,) = re.findall(rf'<div class="chart" data-key="{key}">.*?(<svg role="img".*?</svg>)', document, re.DOTALL)
    return ET.fromstring(text)


def points(path: str) -> np.ndarray:
    return np.array([[float(n) for n in p.split()] for p in re.split("[ML]", path)[1:]])


def is_linear(drawn: np.ndarray, given: list[float]) -> bool:
    """Whether pixels are an affine map of numbers."""
    slope, offset = np.polyfit(given, drawn, 1)
    return bool(np.abs(slope * np.array(given) + offset - drawn).max() < 0.02)


LOSSES = [2.5, 1.25, 1.0, 0.7, 0.1]


@pytest.fixture
def runs(run_folder, records):
    first = [records.epoch(n, loss=y, valid_loss=y + 0.5, learning_rate=0.1) for n, y in enumerate(LOSSES, 1)]
    second = [records.epoch(n, loss=2 * y) for n, y in enumerate(LOSSES[:3], 1)]
    return read_runs([run_folder("first", first), run_folder("second", second)])


def test_curves_have_the_points_of_the_log(browse, runs, tmp_path):
    seen, _ = opened(browse, tmp_path, page([Reported(runs[0])], "t"))
    svg = chart(seen.document, "loss")
    paths = {p.get("data-part"): points(p.get("d")) for p in svg.iter("path")}
    assert set(paths) == {"train", "valid"}
    assert is_linear(paths["train"][:, 0], [10.0 * n for n in range(1, 6)])
    both = np.concatenate([paths["train"][:, 1], paths["valid"][:, 1]])
    assert is_linear(both, LOSSES + [y + 0.5 for y in LOSSES])
    assert len(svg.findall("circle")) == 10


def test_ticks_say_where_the_points_are(browse, runs, tmp_path):
    seen, _ = opened(browse, tmp_path, page([Reported(runs[0])], "t"))
    svg = chart(seen.document, "loss")
    ticks = [(float(t.get("y")) - 4, float(t.text)) for t in svg.iter("text") if t.get("class") == "ytick"]
    slope, offset = np.polyfit(*zip(*ticks, strict=True), 1)
    (train,) = [points(p.get("d")) for p in svg.iter("path") if p.get("data-part") == "train"]
    np.testing.assert_allclose(slope * train[:, 1] + offset, LOSSES, atol=0.01)


def test_texts_do_not_overlap(browse, trained, tmp_path):
    script = """
    result = [];
    for (const svg of document.querySelectorAll(".chart > svg")) {
      const frame = svg.getBoundingClientRect();
      const boxes = [...svg.querySelectorAll("text")].map(t => t.getBoundingClientRect());
      boxes.forEach((a, i) => {
        if (a.left < frame.left - 1 || a.right > frame.right + 8) result.push(["outside", svg.textContent]);
        boxes.slice(i + 1).forEach(b => {
          const meet = a.left < b.right && b.left < a.right && a.top < b.bottom - 2 && b.top < a.bottom - 2;
          if (meet) result.push([svg.textContent]);
        });
      });
    }
    if (document.documentElement.scrollWidth > innerWidth) result.push("the page is wider than the window");
    """
    net = gk.load(trained)
    text = page([Reported(read_run(trained), net, predict(net, gk.data.load("digits").test))], "t")
    for width in (500, 900, 1600):
        assert opened(browse, tmp_path, text, script, width=width)[1] == []


def test_what_one_points_at_is_told(browse, runs, tmp_path):
    script = """
    const svg = document.querySelector('.chart[data-key="loss"] > svg'), box = svg.getBoundingClientRect();
    const circle = svg.querySelectorAll('circle[data-part="train"]')[2], at = circle.getBoundingClientRect();
    svg.dispatchEvent(new PointerEvent("pointermove", {clientX: at.left + 3, clientY: box.top + 50}));
    result = [...document.querySelectorAll("#tip tr")].map(row => [...row.cells].map(cell => cell.textContent));
    """
    _, told = opened(browse, tmp_path, page([Reported(runs[0])], "t"), script)
    assert told == [["training", "1", "update 30"], ["validation", "1.5", "update 30"]]


def test_axes_scales_and_runs_are_chosen(browse, runs, tmp_path):
    script = """
    const svg = document.querySelector('.chart[data-key="loss"] > svg');
    const paths = () => [...svg.querySelectorAll("path")].map(p => p.dataset.run + p.dataset.part);
    const train = () => svg.querySelector("path.train").getAttribute("d");
    const ticks = () => [...svg.querySelectorAll(".xtick")].map(t => t.textContent);
    const choose = value => document.querySelector(`#axis input[value=${value}]`).click();
    result = {both: paths(), names: [...document.querySelectorAll("#legend button")].map(b => b.textContent)};
    result.linear = train();
    document.getElementById("log").click();
    result.log = train();
    document.getElementById("log").click();
    choose("epochs");
    result.epochs = ticks();
    choose("seconds");
    result.seconds = ticks();
    document.querySelectorAll("#legend button")[0].click();
    result.second = paths();
    document.querySelectorAll("#legend button")[1].click();
    result.none = svg.textContent;
    """
    _, found = opened(browse, tmp_path, page([Reported(run) for run in runs], "t"), script)
    assert found["both"] == ["0train", "0valid", "1train"]
    assert found["names"] == ["first", "second"]
    assert is_linear(points(found["linear"])[:, 1], LOSSES)
    assert is_linear(points(found["log"])[:, 1], list(np.log(LOSSES)))
    assert found["epochs"] == ["0", "1", "2", "3", "4", "5"]
    assert found["seconds"] == ["0 s", "5 s", "10 s"]
    assert found["second"] == ["1train"]
    assert found["none"] == "all runs are hidden"


def test_equal_curves_are_both_visible(browse, run_folder, records, tmp_path):
    lines = [records.epoch(n, loss=y, valid_loss=y + 0.5) for n, y in enumerate(LOSSES, 1)]
    runs = read_runs([run_folder("first", lines), run_folder("second", lines)])
    script = """
    const svg = document.querySelector('.chart[data-key="loss"] > svg');
    const lines = [...svg.querySelectorAll("path.train")];
    const dots = [...svg.querySelectorAll('circle[data-part="train"]')];
    result = lines.map(line => [line.style.strokeDasharray, line.style.strokeDashoffset]);
    result.push(dots.map(dot => Number(dot.getAttribute("r"))));
    """
    _, (first, second, radii) = opened(browse, tmp_path, page([Reported(run) for run in runs], "t"), script)
    assert first[0] == second[0] != ""
    assert first[1] != second[1]
    assert min(radii[: len(LOSSES)]) > max(radii[len(LOSSES) :])
    _, alone = opened(browse, tmp_path, page([Reported(runs[0])], "t"), script)
    assert alone[0] == ["", ""]


def test_smoothing_is_the_moving_average(browse, run_folder, records, tmp_path):
    rng = np.random.default_rng(1)
    losses = [float(v) for v in rng.normal(size=150).round(4)]
    run = read_run(run_folder("run", [records.step(u, loss=y) for u, y in enumerate(losses, 1)]))
    script = """
    const slider = document.getElementById("smooth");
    slider.value = 0.8;
    slider.dispatchEvent(new Event("input"));
    const svg = document.querySelector('.chart[data-key="loss"] > svg');
    result = ["raw", "step"].map(kind => svg.querySelector(`path.${kind}`).getAttribute("d"));
    """
    _, (raw, smooth) = opened(browse, tmp_path, page([Reported(run)], "t"), script)
    slope, offset = np.polyfit(points(raw)[:, 1], losses, 1)
    weights = 0.8 ** np.arange(150)
    expected = [np.average(losses[: i + 1], weights=weights[: i + 1][::-1]) for i in range(150)]
    np.testing.assert_allclose(slope * points(smooth)[:, 1] + offset, expected, atol=0.01)


def test_a_line_ends_where_a_loss_is_not_finite(browse, run_folder, records, tmp_path):
    losses = [1.0, 2.0, math.nan, 3.0, 4.0, math.inf]
    run = read_run(run_folder("run", [records.step(u, loss=y) for u, y in enumerate(losses, 1)]))
    seen, _ = opened(browse, tmp_path, page([Reported(run)], "t"))
    svg = chart(seen.document, "loss")
    (line,) = [p.get("d") for p in svg.iter("path") if p.get("class") == "step"]
    assert (line.count("M"), line.count("L")) == (2, 2)
    titles = [t.text for t in svg.iter("title")]
    assert titles == ["steps: nan at update 3", "steps: inf at update 6"]


@pytest.mark.parametrize(
    "losses",
    [[0.0], [0.0, 0.0], [-1.0, -5.0], [1e-300, 1e300], [5e-324, 0.0], [1e7, 1e9], [-1.7e308, 1.7e308]],
)
def test_odd_numbers_are_drawn(browse, run_folder, records, tmp_path, losses):
    lines = [records.epoch(n, loss=y, peak_memory=abs(y)) for n, y in enumerate(losses, 1)]
    script = 'for (let i = 0; i < 2; i++) { document.getElementById("log").click(); } result = true;'
    seen, _ = opened(browse, tmp_path, page([Reported(read_run(run_folder("run", lines)))], "t"), script)
    assert "NaN" not in "".join(re.findall(r"<svg role.*?</svg>", seen.document, re.DOTALL))
    assert len(chart(seen.document, "loss").findall("circle")) == len(losses)


def test_hostile_names_do_nothing(browse, run_folder, records, tmp_path):
    name = "</script><script>document.title = 'taken'</script><img src=x onerror=\"document.title = 'taken'\">"
    lines = [records.epoch(1, **{name: 1.0}), records.epoch(2, **{name: 2.0})]
    folders = [run_folder(n, lines, config_toml=f"{json.dumps(name)} = {json.dumps(name)}\n") for n in "ab"]
    runs = [read_run(folder, f"{name}{folder.name}") for folder in folders]
    script = """
    const svg = document.querySelector(".chart > svg"), box = svg.getBoundingClientRect();
    svg.dispatchEvent(new PointerEvent("pointermove", {clientX: box.left + 100, clientY: box.top + 50}));
    result = [document.title, document.querySelectorAll("img").length, document.querySelectorAll("#tip tr").length];
    """
    _, found = opened(browse, tmp_path, page([Reported(run) for run in runs], "fine"), script)
    assert found == ["fine", 0, 2]


def test_a_screenshot_shows_the_page(browse, trained, tmp_path):
    from PIL import Image

    net = gk.load(trained)
    text = page([Reported(read_run(trained), net, predict(net, gk.data.load("digits").test))], "t")
    opened(browse, tmp_path, text, screenshot=tmp_path / "page.png")
    with Image.open(tmp_path / "page.png") as picture:
        assert picture.size == (1300, 1600)
        colours = {colour for _, colour in picture.convert("RGB").getcolors(1 << 24)}
    assert {(0x25, 0x63, 0xB8), (0xD9, 0x66, 0x0A)} <= colours  # curves of training and of validation
