"""Draws docs/curves.png: two runs of LeNet on the digits, as `graphkit report` shows them in Chromium.

python docs/curves.py
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from PIL import Image

import graphkit as gk
from graphkit import cli

PICTURE = Path(__file__).resolve().parent / "curves.png"

# Pixels, and colours of the file.
WIDTH, HEIGHT, COLOURS = 1280, 1420, 128


def train(folder: Path) -> list[Path]:
    """Two runs, of different learning rates."""
    gk.models.build("lenet", image=(1, 8, 8), classes=10).save(folder / "net.json")
    runs = []
    for rate in ("0.05", "0.01"):
        runs.append(folder / f"rate {rate}")
        options = ["--epochs", "8", "--batch-size", "16", "--lr", rate, "--momentum", "0.9", "--log-every", "4"]
        arguments = ["train", str(folder / "net.json"), "--data", "digits", *options, "-o", str(runs[-1])]
        if cli.invoke(arguments) != 0:
            raise SystemExit("training failed")
    return runs


def main() -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("no Chromium is installed")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        page, shot = folder / "report.html", folder / "shot.png"
        title = ["--title", "LeNet on handwritten digits"]
        if cli.invoke(["report", *map(str, train(folder)), "-o", str(page), *title]) != 0:
            raise SystemExit("no report")
        command = [
            browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}",
            "--disable-background-networking", "--hide-scrollbars", f"--window-size={WIDTH},{HEIGHT}",
            "--virtual-time-budget=4000", f"--screenshot={shot}", page.as_uri(),
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True)
        with Image.open(shot) as picture:
            picture.convert("RGB").quantize(COLOURS).save(PICTURE, optimize=True)


if __name__ == "__main__":
    main()
