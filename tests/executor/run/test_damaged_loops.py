"""Damaged and hostile loops in .gkp files are rejected."""

import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from combinations import in_one_item
from saved_loops import counted_model, scan_model, second_gradient, stacks_model, table_gradient, while_model

from graphkit.errors import RuntimeFailure
from graphkit.executor.run import saved_program, saved_steps
from graphkit.executor.run.c_runtime import CSession
from graphkit.executor.run.saved_encoding import number, sequence

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


# The same for the loop that stacks rows of unknown number, and for the scan that reads them.
DAMAGED_STACKS = {
    "stack elsewhere": ("grow", lambda loop: stack_changed(loop, whole=(-1, 0)), "it needs a buffer"),
    "stack in an input": ("grow", lambda loop: stack_changed(loop, whole=(0, 0)), "it needs a buffer"),
    "offset": ("grow", lambda loop: stack_changed(loop, whole=(loop.stacks[0].whole[0], 8)), "it needs a buffer"),
    "unknown end": (
        "grow",
        lambda loop: stack_changed(loop, backwards=True)._replace(values=[(-2, 0)] * 2 + loop.values[2:]),
        "a stack from the end needs the number of iterations",
    ),
    "short state": ("grow", lambda loop: state_changed(loop, nbytes=4), "a state is not a row of its slice"),
    "row of nothing": ("grow", lambda loop: state_changed(loop, row=1), "a state needs two places, or a row"),
    "two stacks": ("add", lambda loop: loop._replace(stacks=[loop.stacks[0]] * 2), "while a loop writes it"),
    "read and written": (
        "add", lambda loop: stack_changed(loop, whole=loop.slices[0].whole), "it writes a buffer while a loop reads it"
    ),
    "stride": ("add", lambda loop: slice_changed(loop, 0, stride=8), "a slice of a buffer is written, or has a stride"),
}  # fmt: skip

# Changes of steps that use the buffers, by the operator.
DAMAGED_STEPS = {
    "operand in a buffer": ("neg", lambda step, buffer: step._replace(inputs=[buffer]), "that does not exist"),
    "result in a buffer": ("neg", lambda step, buffer: step._replace(outputs=[buffer]), "that does not exist"),
    "row while it is written": (
        "neg",
        lambda step, buffer: saved_steps.SavedStep(5, step.name, [buffer, (1, 0)], step.outputs, nbytes=8),
        "it uses a buffer while a loop writes it",
    ),
    "row of an input": ("gather", lambda step, _: step._replace(inputs=[(2, 0), (1, 0)]), "it needs a buffer"),
    "row without an index": ("gather", lambda step, _: step._replace(inputs=step.inputs[:1]), "a row needs a buffer"),
    "index outside": (
        "gather", lambda step, _: step._replace(inputs=[step.inputs[0], (1, 8)]), "the index is outside"
    ),
    "index of 3 bytes": ("gather", lambda step, _: step._replace(nbytes=3), "a row needs a buffer, an index"),
    "index not aligned": (
        "gather", lambda step, _: step._replace(inputs=[step.inputs[0], (-1, 4)]), "the index is not aligned"
    ),
    "row too long": (
        "gather", lambda step, _: step._replace(outputs=[(step.outputs[0][0], 4)]), "the target is outside"
    ),
    "row to an input": ("gather", lambda step, _: step._replace(outputs=[(2, 0)]), "can only be read"),
    "sizes of an input": ("shape", lambda step, _: step._replace(inputs=[(2, 0)]), "it needs a buffer"),
    "more axes": ("shape", lambda step, _: step._replace(axes=(0, 3)), "the buffer has no such axes"),
    "reversed axes": ("shape", lambda step, _: step._replace(axes=(2, 1)), "the buffer has no such axes"),
    "negative axes": ("shape", lambda step, _: step._replace(axes=(-1, 1)), "the buffer has no such axes"),
    "sizes outside": ("shape", lambda step, _: step._replace(outputs=[(-1, 1 << 30)]), "the target is outside"),
}  # fmt: skip

# The same for kernels that are made in a run, and the status: of opening the file, or of the run.
DAMAGED_KERNELS = {
    "recipe": (lambda made: made._replace(recipe=b"no"), "recipe ends early", "FORMAT"),
    "larger operand": (lambda made: operand_changed(made, ((1 << 20,), 4)), "an operand is outside", "FORMAT"),
    "negative size": (lambda made: operand_changed(made, ((-1,), 4)), "an operand has the wrong shape", "FORMAT"),
    "no size": (lambda made: operand_changed(made, ((2,), 0)), "the size of an operand is out of range", "FORMAT"),
    "smaller operand": (lambda made: operand_changed(made, ((2, 3), 4)), "grad: ", "RUN"),
    "other elements": (
        lambda made: made._replace(operands=[(shape, 1) for shape, _ in made.operands]),
        "has elements of another size than its buffer",
        "FORMAT",
    ),
    "fewer operands": (
        lambda made: made._replace(operands=made.operands[1:]), "it got another number of operands", "FORMAT"
    ),
    "all are buffers": (
        lambda made: made._replace(operands=[(None, item) for _, item in made.operands]),
        "only the shapes of buffers are computed in a run",
        "FORMAT",
    ),
    "other axis": (lambda made: made._replace(results=[([(0, 9)] * 2, 4)]), "an axis that does not exist", "FORMAT"),
    "other operand": (lambda made: made._replace(results=[([(9, 0)] * 2, 4)]), "an axis that does not exist", "FORMAT"),
    "larger result": (lambda made: made._replace(results=[([(-1, 99)] * 2, 4)]), "a result is outside", "FORMAT"),
    "smaller result": (lambda made: made._replace(results=[([(-1, 1), (-1, 3)], 4)]), "grad: ", "RUN"),
    "result of unknown size": (
        lambda made: made._replace(results=[([(0, 0), (-1, 3)], 4)]), "is not in a buffer", "FORMAT"
    ),
}  # fmt: skip

DAMAGED_BUFFERS = {
    "negative size": ((-2,), 4, "the rows of a buffer have the wrong shape"),
    "overflow": ((1 << 40, 1 << 40), 4, "the rows of a buffer have the wrong shape"),
    "large": ((1 << 47,), 4, "the size or the number of a buffer is out of range"),
    "longer rows": ((3,), 4, "a state is not a row of its slice"),
}


def operand_changed(made, changed):
    """Replace the first operand that is not a buffer."""
    place = next(i for i, (shape, _) in enumerate(made.operands) if shape is not None)
    return made._replace(operands=[changed if i == place else each for i, each in enumerate(made.operands)])


def stack_changed(loop, **changes):
    return loop._replace(stacks=[loop.stacks[0]._replace(**changes), *loop.stacks[1:]])


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


def change_steps(monkeypatch, change):
    """Save the result of `change` instead of each step of a program."""
    encode = saved_steps._step
    monkeypatch.setattr(saved_steps, "_step", lambda step, *arguments: encode(change(step), *arguments))


@pytest.mark.parametrize("name", DAMAGED_STACKS)
def test_stacks_that_leave_their_buffers_are_rejected(name, tmp_path, monkeypatch):
    loop_name, change, message = DAMAGED_STACKS[name]

    def damaged(step):
        is_changed = step.loop is not None and step.name == loop_name
        return step._replace(loop=change(step.loop)) if is_changed else step

    change_steps(monkeypatch, damaged)
    stacks_model().save(tmp_path / "net.gkp")
    with pytest.raises(RuntimeFailure, match=f"{loop_name}: .*{re.escape(message)}.*GK_ERROR_FORMAT"):
        CSession(tmp_path / "net.gkp")


@pytest.mark.parametrize("name", DAMAGED_STEPS)
def test_steps_that_misuse_buffers_are_rejected(name, tmp_path, monkeypatch):
    operator, change, message = DAMAGED_STEPS[name]
    buffers, changed = [], []

    def damaged(step):
        if step.loop is not None:
            buffers.extend(each.whole for each in step.loop.stacks)
        if step.name.rpartition("/")[2] == operator:
            step = change(step, buffers[-1])
            changed.append(step)
        return step

    change_steps(monkeypatch, damaged)
    stacks_model().save(tmp_path / "net.gkp")
    assert changed
    with pytest.raises(RuntimeFailure, match=f"{operator}: .*{re.escape(message)}.*GK_ERROR_FORMAT"):
        CSession(tmp_path / "net.gkp")


@pytest.mark.parametrize("name", DAMAGED_KERNELS)
def test_kernels_of_a_run_stay_in_their_memory(name, tmp_path, monkeypatch):
    change, message, status = DAMAGED_KERNELS[name]
    encode = saved_steps._sized
    monkeypatch.setattr(saved_steps, "_sized", lambda made: encode(change(made)))
    table_gradient().save(tmp_path / "net.gkp")
    feeds = {"x": np.ones((2, 3), np.float32), "table": np.ones((5, 3), np.float32), "n": np.array(3)}
    expected = pytest.raises(RuntimeFailure, match=f"{re.escape(message)}.*GK_ERROR_{status}")
    with expected, CSession(tmp_path / "net.gkp") as session:
        session.run(feeds)


def test_kernels_of_a_run_do_not_write_their_operands(tmp_path, monkeypatch):
    def damaged(step):
        if step.sized is None:
            return step
        buffers = [at for at, (shape, _) in zip(step.inputs, step.sized.operands, strict=False) if shape is None]
        return step._replace(outputs=[buffers[0]])

    change_steps(monkeypatch, damaged)
    second_gradient().save(tmp_path / "net.gkp")
    with pytest.raises(RuntimeFailure, match=r"a result cannot be written to its buffer.*GK_ERROR_FORMAT"):
        CSession(tmp_path / "net.gkp")


@pytest.mark.parametrize("name", DAMAGED_BUFFERS)
def test_buffers_of_other_sizes_are_rejected(name, tmp_path, monkeypatch):
    row, item, message = DAMAGED_BUFFERS[name]
    monkeypatch.setattr(
        saved_program, "encoded_buffers",
        lambda steps: sequence([sequence(map(number, row)) + number(item)] * len(steps.buffers)),
    )  # fmt: skip
    stacks_model().save(tmp_path / "net.gkp")
    with pytest.raises(RuntimeFailure, match=f"{re.escape(message)}.*GK_ERROR_FORMAT"):
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
    loops = []

    def damaged(step):
        if step.loop is not None:
            loops.append(step.loop)
        elif step.kernel is not None:
            step = step._replace(outputs=[getattr(loops[0].states[0], target, loops[0].slices[1].whole)])
        return step

    change_steps(monkeypatch, damaged)
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
                block = saved_steps.StepList({})
                block.steps.append(step)
                step = saved_steps.SavedStep(2, "branch", step.inputs, blocks=(block, saved_steps.StepList({})))
        return encode(step, *arguments)

    monkeypatch.setattr(saved_steps, "_step", nested)
    while_model().save(tmp_path / "net.gkp")
    with pytest.raises(RuntimeFailure, match=r"more than 32 levels of branches and loops.*GK_ERROR_FORMAT"):
        CSession(tmp_path / "net.gkp")


def mutated_saves(make, path, count, seed):
    """Save a model `count` times, each time with a few other places, numbers and flags in its steps and loops.

    Buffers, which are external memory, may thus be where other memory is expected, and the other way round.
    """
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
            match rng.integers(7):
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
                case 5 if given.stacks:
                    given = stack_changed(given, backwards=not given.stacks[0].backwards)
                case 6:
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
sys.path[:0] = {folders!r}
import saved_loops
from saved_programs import outcome
from test_damaged_loops import mutated_saves
found = [outcome(path) for path in mutated_saves(getattr(saved_loops, {make!r}), Path({target!r}), {count}, {seed})]
rejected = found.count("GK_ERROR_FORMAT")
print("survived", len(found) - rejected, rejected)
"""


@pytest.mark.full
@pytest.mark.parametrize(
    "make",
    [
        "scan_model", "while_model", "nested_model", "random_model", "stacks_model", "while_gradient",
        "table_gradient", "second_gradient",
    ],
)  # fmt: skip
def test_loops_with_other_places_and_numbers_do_not_crash(make, tmp_path):
    here, target = Path(__file__), str(tmp_path / "net.gkp")
    folders = [str(here.parent), str(here.parents[2])]  # of the modules that this one imports
    text = FUZZ.format(folders=folders, make=make, target=target, count=25, seed=1)
    done = subprocess.run([sys.executable, "-P", "-c", text], capture_output=True, text=True, timeout=300)
    assert "survived" in done.stdout, (done.returncode, done.stderr[-2000:])
    opened, rejected = map(int, done.stdout.split()[1:])
    assert opened > 0
    assert rejected > 0
