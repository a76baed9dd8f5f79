"""Damaged and hostile loops in .gkp files are rejected."""

import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from combinations import in_one_item
from saved_loops import counted_model, scan_model, while_model

from graphkit.errors import RuntimeFailure
from graphkit.executor.run import saved_steps
from graphkit.executor.run.c_runtime import CSession

# Changes of the first loop that a program has, and the error that they must cause.
DAMAGED_LOOPS = {
    "slice outside": (lambda loop: slice_changed(loop, stride=1 << 20), "a slice is outside of its memory"),
    "too many trips": (lambda loop: loop._replace(trips=1 << 40), "a slice is outside of its memory"),
    "overflow": (lambda loop: loop._replace(trips=1 << 62), "the number of rows of a slice is out of range"),
    "unknown trips": (lambda loop: loop._replace(trips=-1), "the number of rows of a slice is out of range"),
    "negative trips": (lambda loop: loop._replace(trips=-2), "the sizes of the loop are out of range"),
    "slice of nothing": (lambda loop: slice_changed(loop, whole=(-2, 0)), "a slice has no memory"),
    "short state": (lambda loop: state_changed(loop, nbytes=4), "a state is not a row of its slice"),
    "row of nothing": (lambda loop: state_changed(loop, row=9), "a state needs two places, or a row"),
    "no first value": (lambda loop: state_changed(loop, initial=(-2, 0)), "a state has no first value"),
    "first value outside": (
        lambda loop: state_changed(loop, initial=(-1, 1 << 30)),
        "first value of a state is outside",
    ),
    "last value read only": (lambda loop: state_changed(loop, final=loop.states[0].initial), "can only be read"),
    "one turn": (lambda loop: state_changed(loop, row=None, turns=[(-1, 0)]), "a state needs two places, or a row"),
    "turn outside": (lambda loop: state_changed(loop, row=None, turns=[(-1, 0), (-1, 1 << 40)]), "a state is outside"),
    "turn elsewhere": (
        lambda loop: state_changed(loop, row=None, turns=[loop.slices[1].whole] * 2),
        "is not in the arena",
    ),
    "iteration outside": (
        lambda loop: loop._replace(values=[*loop.values[:2], (-1, 1 << 30), *loop.values[3:]]),
        "iteration number",
    ),
    "condition outside": (
        lambda loop: loop._replace(values=[loop.values[0], (-1, -9), *loop.values[2:]]),
        "the condition is outside",
    ),
    "slices overlap": (
        lambda loop: slice_changed(loop, whole=loop.slices[1].whole, place=2),
        "a slice overlaps a slice",
    ),
}


def slice_changed(loop, place=1, **changes):
    return loop._replace(slices=[s._replace(**changes) if i == place else s for i, s in enumerate(loop.slices)])


def state_changed(loop, **changes):
    return loop._replace(states=[loop.states[0]._replace(**changes), *loop.states[1:]])


@in_one_item()
@pytest.mark.parametrize("name", DAMAGED_LOOPS)
def test_loops_that_leave_their_memory_are_rejected(name, tmp_path, monkeypatch):
    change, message = DAMAGED_LOOPS[name]
    encode, changed = saved_steps._loop, []

    def damaged(loop, *arguments):
        changed.append(loop)
        return encode(change(loop), *arguments)

    monkeypatch.setattr(saved_steps, "_loop", damaged)
    scan_model().save(tmp_path / "net.gkp")
    assert changed
    with pytest.raises(RuntimeFailure, match=f"running: .*{re.escape(message)}.*GK_ERROR_FORMAT"):
        CSession(tmp_path / "net.gkp")


def test_states_may_not_overlap(tmp_path, monkeypatch):
    encode = saved_steps._loop
    monkeypatch.setattr(
        saved_steps, "_loop",
        lambda loop, *rest: encode(state_changed(loop, turns=[loop.states[0].turns[0]] * 2), *rest),
    )  # fmt: skip
    while_model().save(tmp_path / "net.gkp")
    with pytest.raises(RuntimeFailure, match=r"grow: a state overlaps a state.*GK_ERROR_FORMAT"):
        CSession(tmp_path / "net.gkp")


@pytest.mark.parametrize("target", ["initial", "whole"])
def test_body_may_not_write_what_its_loop_reads(target, tmp_path, monkeypatch):
    """Steps of the body do not write to the first value of a state, nor past the row to the rows of an output."""
    encode, loops = saved_steps._step, []

    def damaged(step, *arguments):
        if step.loop is not None:
            loops.append(step.loop)
        elif step.kernel is not None:
            step = step._replace(outputs=[getattr(loops[0].states[0], target, loops[0].slices[1].whole)])
        return encode(step, *arguments)

    monkeypatch.setattr(saved_steps, "_step", damaged)
    scan_model().save(tmp_path / "net.gkp")
    with pytest.raises(RuntimeFailure, match=r"running/body.*(overlaps|can only be read).*GK_ERROR_FORMAT"):
        CSession(tmp_path / "net.gkp")


def test_trip_counts_of_a_run_do_not_exceed_the_rows(tmp_path, monkeypatch):
    encode = saved_steps._loop
    counter = (1, 0)  # the input n
    monkeypatch.setattr(
        saved_steps, "_loop", lambda loop, *rest: encode(loop._replace(values=[counter, *loop.values[1:]]), *rest)
    )
    counted_model().save(tmp_path / "net.gkp")
    x = np.array([1, 2], np.float32)
    with CSession(tmp_path / "net.gkp") as session:
        np.testing.assert_array_equal(session.run({"x": x, "n": np.array(3)})["rows"], [[1, 2], [2, 4], [3, 6]])
        np.testing.assert_array_equal(session.run({"x": x, "n": np.array(1)})["last"], [2, 4])
        with pytest.raises(RuntimeFailure, match=r"count: the trip count is 99, but at most 3 .*GK_ERROR_RUN"):
            session.run({"x": x, "n": np.array(99)})


def test_deep_nesting_is_rejected(tmp_path, monkeypatch):
    encode = saved_steps._step

    def nested(step, *arguments):
        if step.loop is not None and step.blocks:
            monkeypatch.setattr(saved_steps, "_step", encode)
            for _ in range(40):
                block = saved_steps.StepList()
                block.steps.append(step)
                step = saved_steps.SavedStep(2, "branch", step.inputs, blocks=(block, saved_steps.StepList()))
        return encode(step, *arguments)

    monkeypatch.setattr(saved_steps, "_step", nested)
    while_model().save(tmp_path / "net.gkp")
    with pytest.raises(RuntimeFailure, match=r"more than 32 levels of branches and loops.*GK_ERROR_FORMAT"):
        CSession(tmp_path / "net.gkp")


def mutated_saves(make, path, count, seed):
    """Save a model `count` times, each time with a few other places, numbers and flags in its steps and loops."""
    rng = np.random.default_rng(seed)
    locate, encode, net = saved_steps._location, saved_steps._loop, make()
    calls = 0  # of `location`: that many places has a file

    def now():
        return rng.random() < 1 / places

    def location(at, external):
        nonlocal calls
        calls += 1
        block, offset = at
        if now():
            offset += int(rng.choice([-64, -8, -1, 1, 4, 8, 64, 256, 1 << 20, -(1 << 40)]))
        if now():
            block = int(rng.choice([-2, -1, *external]))
        return locate((block, offset), external)

    def loop(given, *arguments):
        if rng.random() < 0.3:
            match rng.integers(6):
                case 0:
                    given = given._replace(trips=int(rng.choice([-1, 0, given.trips + 1, 1 << 20, 1 << 62])))
                case 1 if given.slices:
                    place, stride = (
                        int(rng.integers(len(given.slices))),
                        int(rng.choice([0, 1, 4, 12, 1 << 30, 1 << 63])),
                    )
                    given = slice_changed(given, place, stride=stride)
                case 2 if given.slices:
                    place = int(rng.integers(len(given.slices)))
                    given = slice_changed(given, place, backwards=not given.slices[place].backwards)
                case 3 if given.states:
                    given = state_changed(given, nbytes=int(rng.choice([0, 1, 4, 12, 1 << 30])))
                case 4 if given.states:
                    given = state_changed(given, row=[None, 0, 1, 7][int(rng.integers(4))], turns=given.states[0].turns)
                case 5:
                    values = list(given.values)
                    values[int(rng.integers(len(values)))] = (int(rng.integers(-2, 4)), int(rng.integers(0, 64)))
                    given = given._replace(values=values)
        return encode(given, *arguments)

    saved_steps._location, saved_steps._loop, places = location, loop, math.inf
    for _ in range(count):
        calls = 0
        net.save(path)
        yield path
        places = calls


FUZZ = """
import sys
from pathlib import Path
sys.path.insert(0, {folder!r})
import saved_loops
from saved_programs import outcome
from test_damaged_loops import mutated_saves
found = [outcome(path) for path in mutated_saves(getattr(saved_loops, {make!r}), Path({target!r}), {count}, {seed})]
print("survived", found.count(""), found.count("GK_ERROR_FORMAT"))
"""


@pytest.mark.full
@pytest.mark.parametrize("make", ["scan_model", "while_model", "nested_model", "random_model"])
def test_loops_with_other_places_and_numbers_do_not_crash(make, tmp_path):
    folder, target = str(Path(__file__).parent), str(tmp_path / "net.gkp")
    text = FUZZ.format(folder=folder, make=make, target=target, count=25, seed=1)
    done = subprocess.run([sys.executable, "-P", "-c", text], capture_output=True, text=True, timeout=300)
    assert "survived" in done.stdout, (done.returncode, done.stderr[-2000:])
    opened, rejected = map(int, done.stdout.split()[1:])
    assert opened > 0
    assert rejected > 0
