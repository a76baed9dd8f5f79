"""Output of `graphkit train` and `fit` on a terminal."""

import os
import re
import struct
import subprocess
import sys

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals are of POSIX")


@pytest.fixture
def task(tmp_path):
    rng = np.random.default_rng(0)
    gk.Model(gk.nn.linear(gk.input("x", ["N", 6]), 3, name="fc"), seed=0).save(tmp_path / "net.json")
    np.savez(tmp_path / "data.npz", x=rng.standard_normal((120, 6), np.float32), y=rng.integers(0, 3, 120))
    return tmp_path


def written(folder, width, *arguments):
    """Run Python with `arguments` in a terminal of `width` columns; return its output."""
    import fcntl
    import pty
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    dropped = ("COLUMNS", "LINES", "NO_COLOR", "CI")
    environment = {name: text for name, text in os.environ.items() if name not in dropped} | {"TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, *map(str, arguments)], stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, env=environment
    )  # fmt: skip
    os.close(theirs)
    found = b""
    while True:
        try:
            some = os.read(ours, 1 << 16)
        except OSError:  # the process has closed the terminal
            break
        if not some:
            break
        found += some
    os.close(ours)
    assert process.wait() == 0, found.decode()
    return found.decode()


def shown(folder, width, *arguments):
    """The lines on that terminal when the process is over."""
    return on_screen(written(folder, width, *arguments))


def on_screen(text):
    """Return the lines that a terminal shows after the text. It only moves the cursor up and clears lines."""
    lines, row, column = [[]], 0, 0
    for escape, count, what, letter in re.findall(r"(\x1b\[\??([0-9;]*)([A-Za-z]))|(.)", text, re.DOTALL):
        if escape:
            row -= int(count or 1) if what == "A" else 0
            lines[row] = [] if what == "K" else lines[row]
        elif letter == "\n":
            row += 1
            lines += [[] for _ in range(row + 1 - len(lines))]
        elif letter == "\r":
            column = 0
        else:
            lines[row] += " " * (column + 1 - len(lines[row]))
            lines[row][column] = letter
            column += 1
    return ["".join(line).rstrip() for line in lines if "".join(line).strip()]


@pytest.mark.parametrize(
    ("width", "further"),
    [
        (100, ["samples/s", "left", "memory"]),
        pytest.param(80, ["samples/s", "left"], marks=pytest.mark.full),
        pytest.param(60, [], marks=pytest.mark.full),
    ],
)
def test_a_table_has_a_row_for_each_epoch(task, width, further):
    lines = shown(
        task, width, "-m", "graphkit", "train", "net.json", "--data", "data.npz", "--epochs", 3, "-o", "run",
        "--metric", "accuracy",
    )  # fmt: skip
    samples, counted, head, *rows, end = lines
    assert "96 samples for training, 24 for validation" in samples
    assert "parameters" in counted
    assert head.split() == ["epoch", "loss", "accuracy", "valid_loss", "valid_accuracy", *further]
    assert [row.split()[0] for row in rows] == ["1/3", "2/3", "3/3"]
    assert {len(row) for row in rows} == {len(head)}
    assert end.startswith("wrote run: ")
    if "left" in further:
        assert rows[-1].split()[head.split().index("left")] == "0:00"


@pytest.mark.full
def test_a_wide_table_is_folded_not_cut(task):
    (task / "wide.py").write_text(
        "from graphkit.cli.train.telling import Table\n"
        "table = Table()\n"
        "table._row = {'epoch': '1/1', 'a_metric_of_a_very_long_name': '-1.234e-05', 'another_metric': '0.5'}\n"
        "table.tell(1, {})\n"
    )
    text = " ".join(shown(task, 30, "wide.py"))
    assert "a_metric_of_a_very_long_name" in text
    assert "-1.234e-05" in text


def test_bars_of_past_epochs_are_lines(task):
    (task / "fit.py").write_text(
        "import numpy as np, graphkit as gk\n"
        "data = np.load('data.npz')\n"
        "trainer = gk.Trainer(gk.load('net.json'))\n"
        "trainer.fit((data['x'], data['y']), (data['x'], data['y']), epochs=3)\n"
    )
    text = written(task, 100, "fit.py")
    lines = on_screen(text)
    assert "validation" in text  # shown during the validation
    assert [re.match(r"epoch (\d)/3 .* 2/2 .* loss \d", line)[1] for line in lines] == ["1", "2", "3"]


@in_one_item()
@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (7.4, "0:07"), (59.6, "1:00"), (754, "12:34"), (3723, "1:02:03")]
)
def test_durations(seconds, text):
    from graphkit.cli.train.telling import duration

    assert duration(seconds) == text
