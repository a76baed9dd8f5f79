"""Every kernel of the card on the processor, against the operator's reference; and compiled for cards, by NVRTC."""

from __future__ import annotations

import functools
import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import registers
from card_cases import FIRST, OPERATORS, OTHERS, CardCase, cases_of, launched, needs_card, why_not
from emulator import Emulator, waits
from stand_in import Card
from together import together

from graphkit.checks.verify import TOLERANCES, compare_outputs
from graphkit.errors import RuntimeFailure
from graphkit.executor.devices import cuda
from graphkit.executor.devices.cuda import compiler
from graphkit.executor.devices.cuda.launches import Source, source_of
from graphkit.executor.devices.device import interprets
from graphkit.ir.types import DType, dtype_of
from graphkit.ops import Op
from graphkit.ops._op import value_check
from graphkit.ops.evaluate import run_node
from graphkit.ops.rnn.backward import OfLayer
from graphkit.ops.rnn.recurrence import Recurrence

GUARD = 64


def guarded(shape: tuple[int, ...], dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Return an array, and the bytes around it, which must not be written."""
    size = int(np.prod(shape)) * dtype.itemsize
    around = np.full(size + 2 * GUARD, 0x5A, np.uint8)
    return around, around[GUARD : GUARD + size].view(dtype).reshape(shape)


def run(emulator: Emulator, case: CardCase) -> list[Any]:
    results = [guarded(v.tensor.static_shape, v.dtype.numpy) for v in case.node.outputs]
    arrays = [a if a is None else np.ascontiguousarray(a) for a in case.arrays]
    before = [None if a is None else a.copy() for a in arrays]
    faulty = emulator.run(case.kernel, arrays, [y for _, y in results])
    assert not faulty
    if any(map(waits, case.kernel.sources)):
        again = [np.full_like(y, 1) for _, y in results]
        emulator.run(case.kernel, arrays, again, order=1)
        for (_, y), other in zip(results, again, strict=True):
            assert y.tobytes() == other.tobytes(), "what comes out depends on which thread comes first"
    for array, original in zip(arrays, before, strict=True):
        assert array is None or array.tobytes() == original.tobytes(), "an operand was written"
    for around, y in results:
        assert (around[:GUARD] == 0x5A).all(), "a write before the result"
        assert (around[GUARD + y.nbytes :] == 0x5A).all(), "a write behind the result"
    return [y for _, y in results]


@together(full=lambda cls, types: types != FIRST)
@pytest.mark.parametrize("types", [FIRST, OTHERS], ids=["first type", "other types"])
@pytest.mark.parametrize("cls", OPERATORS, ids=lambda c: c.name)
@pytest.mark.long
def test_every_sample(cls: type[Op], types: slice, emulator: Emulator, processor: Emulator) -> None:
    cases = list(cases_of(cls, types))
    emulator.compile(source for case in cases for source in case.kernel.sources)
    for case in cases:
        compare(case, run(emulator, case))
    for case in cases[:1]:
        compare(case, launched(Card(processor), case))


@together(full=lambda cls, types: types != FIRST)
@pytest.mark.parametrize("types", [FIRST, OTHERS], ids=["first type", "other types"])
@pytest.mark.parametrize("cls", OPERATORS, ids=lambda c: c.name)
def test_what_may_set_a_fault_says_so(cls: type[Op], types: slice) -> None:
    """Steps that may fail must run before states are overwritten. Known operands and MaxPool indices cannot fail."""
    for case in cases_of(cls, types):
        known = any(v.tensor.constants is not None for v in case.node.operands[1:])
        is_right = known or cls.name in ("Dropout", "MaxPoolGrad")
        assert is_right or not case.kernel.fault or value_check(case.node) is not None, case.name


def compare(case: CardCase, found: list[Any]) -> None:
    """With what the reference computes. Of recurrent layers states are rounded to bfloat16 where they are multiplied,
    step after step, and those of the reference are not: their results may be a quarter further away.
    """
    names = [str(i) for i in range(len(found))]
    expected = run_node(case.node, case.arrays)
    pairs = dict(zip(names, found, strict=True)), dict(zip(names, expected, strict=True))
    kind = dtype_of(found[0].dtype)
    rounded = isinstance(case.node.op, (Recurrence, OfLayer)) and kind is DType.BFLOAT16
    rtol, atol = (1.25 * bound for bound in TOLERANCES[kind]) if rounded else (None, None)
    for report in compare_outputs(*pairs, rtol, atol):
        assert report.passed, f"{case.name}: {report}"


@together()
@needs_card
@pytest.mark.parametrize("cls", OPERATORS if not why_not() else [None], ids=lambda c: c.name if c else "no card")
def test_every_sample_on_the_card(cls: type[Op]) -> None:
    for case in cases_of(cls):
        if all(v is None or interprets(cuda.device(), v.dtype) for v in case.node.inputs):
            compare(case, launched(cuda.device(), case))


# --- for cards --------------------------------------------------------------------------------------


# All operators on an H100, every eighth one on another card.
COMPILED = [
    *((cls, "sm_90") for cls in OPERATORS),
    *((cls, ("sm_80", "sm_100")[i % 2]) for i, cls in enumerate(OPERATORS[::8])),
]


@functools.cache
def representative() -> dict[type[Op], list[CardCase]]:
    """Samples of each operator whose kernels are compiled for cards. `test_every_sample` runs all of them here.

    The sample with the longest code of each element type, and samples with a line of code that none of those has.
    """
    found, seen, others = {}, set(), []
    for cls in OPERATORS:
        chosen: dict[str, list[CardCase]] = {}
        for name, ways in itertools.groupby(cases_of(cls), lambda case: case.name):
            others.append((cls, list(ways)))
            dtype = name.rsplit("-", 1)[1]
            chosen[dtype] = max(chosen.get(dtype, []), others[-1][1], key=code_length)
        found[cls] = list(itertools.chain.from_iterable(chosen.values()))
        seen |= lines_of(found[cls])
    for cls, cases in others:
        if not lines_of(cases) <= seen:
            found[cls] += cases
            seen |= lines_of(cases)
    return found


def lines_of(cases: list[CardCase]) -> set[str]:
    """The lines of code of kernels, without numbers and without the signatures of the kernels."""
    lines = {line for case in cases for source in case.kernel.sources for line in source.text.splitlines()[2:]}
    return {re.sub(r"\d+", "", line) for line in lines}


def code_length(ways: list[CardCase]) -> int:
    """Length of the kernels of a sample without their names, whose lengths differ."""
    return sum(len(source.text.replace(source.entry, "")) for case in ways for source in case.kernel.sources)


def forms_of(cls: type[Op]) -> dict[Source, Source]:
    """Kernels of an operator, each with the one that tells how many registers it needs.

    That is the kernel itself, for float16 the same kernel of bfloat16, for unsigned integers that of signed ones, and
    for those of fewer than 32 bits that of 32 bits.
    """
    by_case: dict[tuple[str, int], Source] = {}
    for case in representative()[cls]:
        for source in case.kernel.sources:
            number = next(n for n in itertools.count() if (case.name, n) not in by_case)
            by_case[case.name, number] = source
    found: dict[Source, Source] = {}
    for (name, number), source in by_case.items():
        like = re.sub("-int(8|16)$", "-int32", name.replace("-float16", "-bfloat16").replace("-uint", "-int"))
        found.setdefault(source, by_case.get((like, number), source))
    return found


@together()
@pytest.mark.full
@pytest.mark.parametrize(("cls", "architecture"), COMPILED, ids=lambda of: getattr(of, "name", of))
@pytest.mark.long
def test_samples_of_every_type_compile_for_cards(cls: type[Op], architecture: str, nvrtc: None) -> None:
    """The compiled code also shows that the kernel keeps its values in registers."""
    forms = forms_of(cls)
    if not forms:
        pytest.skip("the card's library computes them")
    if architecture == registers.FIRST_CARD:
        registers.check((source for source, other in forms.items() if source is other), architecture)
    registers.check_like(forms.items(), architecture)


def test_what_was_compiled_is_kept(nvrtc: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In GRAPHKIT_CACHE, or else in the user's folder; a damaged file is made again."""
    source = source_of("nothing", ["int* y"], ["*y = 1;"])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "users"))
    for variable, folder in ((str(tmp_path / "given"), tmp_path / "given"), ("", tmp_path / "users" / "graphkit")):
        monkeypatch.setenv("GRAPHKIT_CACHE", variable)
        code = compiler.compiled([source], "sm_90")
        (kept,) = folder.iterdir()
        with monkeypatch.context() as patch:
            patch.setattr(compiler, "compile_text", None)  # calling it would fail
            assert compiler.compiled([source], "sm_90") == code
        kept.write_bytes(kept.read_bytes()[:-1])
        assert compiler.compiled([source], "sm_90") == code
        assert kept.read_bytes().endswith(code)


def test_a_folder_that_the_disk_refuses(nvrtc: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is an error where somebody asked for it, else a warning."""
    source = source_of("nothing", ["int* y"], ["*y = 2;"])
    (tmp_path / "file").touch()
    monkeypatch.setenv("GRAPHKIT_CACHE", str(tmp_path / "file" / "within"))
    with pytest.raises(RuntimeFailure, match="GRAPHKIT_CACHE"):
        compiler.compiled([source], "sm_90")
    monkeypatch.setenv("GRAPHKIT_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "within"))
    with pytest.warns(RuntimeWarning, match="compiled kernels cannot be cached: GRAPHKIT_CACHE"):
        assert compiler.compiled([source], "sm_90")[:4] == b"\x7fELF"
