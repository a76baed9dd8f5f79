"""What the tests of commands share."""

import pytest

from graphkit import cli


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Commands that write into the current folder leave the checkout as it is."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def call(capsys):
    """Run a command line in this process: (exit code, stdout, stderr)."""

    def run(*arguments):
        code = cli.invoke([str(a) for a in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
