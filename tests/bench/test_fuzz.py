"""A short search by the fuzzer: what it changes is loaded, run and refused without a finding."""

from __future__ import annotations

import random

import fuzz
import mutations
import pytest

from graphkit.errors import GraphkitError


@pytest.mark.parametrize("trials", [400, pytest.param(10_000, marks=pytest.mark.full)])
def test_no_findings(trials):
    said = []
    found = fuzz.search(1 << 40, trials, 3600, (), said.append)
    assert not found, found
    assert said[-1].startswith(f"{trials} trials")


def test_a_trial_is_known_by_its_number():
    changed = [[mutations.mutated(data, random.Random(n)) for n, (_, data) in enumerate(fuzz.corpus()[:50])]] * 2
    assert changed[0] == changed[1]
    assert sum(a != b for a, (_, b) in zip(changed[0], fuzz.corpus(), strict=False)) > 40


def test_what_goes_wrong_is_a_finding(monkeypatch):
    def broken(data, rng):
        raise KeyError("x")

    def refused(data, rng):
        raise GraphkitError("exit code 5")

    monkeypatch.setattr(fuzz, "_ways", ((broken, 1),))
    assert fuzz.trial(0).kind == "KeyError"
    monkeypatch.setattr(fuzz, "_ways", ((refused, 1),))
    assert fuzz.trial(0) is None
    monkeypatch.setattr(fuzz, "_ways", ((lambda data, rng: "2 numbers differ", 1),))
    assert fuzz.trial(0).kind == "differs"
