"""pytest plugin: `pytest -p every_nth --every 20` runs each 20th test, so that a slow build sees some of every file."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--every", type=int, default=1, metavar="N", help="run each N-th of the collected tests")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    every = config.getoption("--every")
    kept = items[::every]
    left_out = [item for number, item in enumerate(items) if number % every]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept
