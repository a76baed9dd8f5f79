"""Folders of runs as training leaves them, and a browser that opens pages."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import graphkit as gk

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
# A page must not send requests. These options stop the browser's own requests.
QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-default-apps", "--disable-extensions",
    "--disable-domain-reliability", "--metrics-recording-only", "--host-resolver-rules=MAP * ~NOTFOUND",
)  # fmt: skip


class Records:
    """Lines of a log: ten updates make an epoch, which takes two seconds."""

    @staticmethod
    def epoch(number: int, **fields: Any) -> dict[str, Any]:
        return {"event": "epoch", "seconds": 2.0 * number, "epoch": number, "updates": 10 * number, **fields}

    @staticmethod
    def step(updates: int, **fields: Any) -> dict[str, Any]:
        at = {"seconds": updates / 5, "epoch": (updates - 1) // 10 + 1, "updates": updates}
        return {"event": "step", **at, **fields}


@pytest.fixture
def records() -> type[Records]:
    return Records


@pytest.fixture
def run_folder(tmp_path: Path) -> Callable[..., Path]:
    """`run_folder(name, records, further)`: a folder with a log of these records, or texts of lines."""

    def write(name: str, records: Sequence[Any], **files: str) -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        lines = [r if isinstance(r, str) else json.dumps(r) + "\n" for r in records]
        (folder / "log.jsonl").write_text("".join(lines))
        for file, text in files.items():
            (folder / file.replace("_", ".")).write_text(text)
        return folder

    return write


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of `graphkit train` on the digits, with steps in its log."""
    from graphkit import cli

    folder = tmp_path_factory.mktemp("trained")
    net = gk.models.build("lenet", image=(1, 8, 8), classes=10)
    net.save(folder / "net.json")
    arguments = ["train", str(folder / "net.json"), "--data", "digits", "--epochs", "3", "-o", str(folder / "run")]
    assert cli.invoke([*arguments, "--batch-size", "16"]) == 0
    return folder / "run"


@dataclass
class Seen:
    """A page in a browser: the document after its scripts have run, and their errors."""

    document: str
    complaints: list[str]


@pytest.fixture(scope="session")
def browse() -> Callable[..., Seen]:
    """`browse(page, screenshot=..., width=..., height=...)`; skips where there is no Chromium."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip("no Chromium is installed")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        with tempfile.TemporaryDirectory() as profile:
            command = [browser, *QUIET, "--enable-logging=stderr", f"--user-data-dir={profile}", *arguments]
            return subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)

    def open_page(page: Path, screenshot: Path | None = None, width: int = 1300, height: int = 1600) -> Seen:
        given = [f"--window-size={width},{height}", "--virtual-time-budget=4000"]
        done = run(*given, "--dump-dom", page.as_uri())
        if screenshot is not None:
            run(*given, f"--screenshot={screenshot}", page.as_uri())
        complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        return Seen(done.stdout, complaints)

    return open_page
