"""A short search by the fuzzer: changed files are loaded and run, or rejected, without a finding."""

from __future__ import annotations

import random

import fuzz
import fuzz_results
import fuzz_seeds
import fuzz_ways
import mutations
import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import GraphkitError
from graphkit.executor.run.session import Executor

# Files of all operators take seconds to write: the default lane changes those of a few.
FEW = ("Conv", "Gather", "LSTM", "Loop", "MatMul", "ReduceSum", "Resize", "Slice", "TopK")


@pytest.mark.parametrize(
    ("trials", "only"), [(200, FEW), pytest.param(2_500, (), marks=pytest.mark.full)], ids=["few", "all"]
)
@pytest.mark.long
def test_no_findings(trials, only):
    said = []
    found = fuzz.search(1 << 40, trials, 3600, fuzz.Choice(only=only), show=said.append)
    assert not found, found
    assert said[-1].startswith(f"{trials} trials")


def test_a_trial_is_known_by_its_number():
    seeds = fuzz_seeds.seeds("operators", FEW)[:50]
    changed = [[mutations.mutated(seed.data, random.Random(n)) for n, seed in enumerate(seeds)] for _ in range(2)]
    assert changed[0] == changed[1]
    assert sum(a != seed.data for a, seed in zip(changed[0], seeds, strict=True)) > 40


@in_one_item()
@pytest.mark.parametrize("way", fuzz_ways.WAYS)
def test_each_way_reads_what_it_changes(way):
    """Of ten files some are read, or refused by an error of our own; there is no finding."""
    choice = fuzz.Choice(kinds=("corpus",), ways=(way,))
    for number in range(10):
        assert fuzz.trial(number, choice) is None


def test_what_goes_wrong_is_a_finding(monkeypatch):
    def broken(seed, rng):
        raise KeyError("x")

    def refused(seed, rng):
        raise GraphkitError("exit code 5")

    choice = fuzz.Choice(kinds=("networks",), ways=("way",))

    def found(run):
        monkeypatch.setattr(fuzz, "WAYS", {"way": fuzz_ways.Way(run, 1)})
        return fuzz.trial(0, choice)

    assert found(broken).kind == "KeyError"
    assert found(refused) is None
    assert found(lambda seed, rng: "2 numbers differ").kind == "differs"


def test_what_rounding_makes_is_none(monkeypatch):
    """The normalised mean is 0 up to rounding, and a large factor amplifies the rounding. A real fault is found."""
    x = gk.input("x", (3, 64))
    normal, *_ = gk.layer_normalization(x, np.ones(64, np.float32), axis=-1)
    chaos = gk.Model([gk.mul(gk.reduce_mean(normal, axes=[1]), np.float32(1e12))])
    assert all(fuzz_results.difference(chaos, random.Random(n)) is None for n in range(10))

    calm = gk.Model([gk.reduce_mean(gk.abs(normal), axes=[1])])
    run = Executor.run
    assert all(fuzz_results.difference(calm, random.Random(n)) is None for n in range(10))
    monkeypatch.setattr(Executor, "run", lambda *given: {n: 1.2 * y for n, y in run(*given).items()})
    assert any("differ" in (fuzz_results.difference(calm, random.Random(n)) or "") for n in range(10))
