"""Convolutions by cuDNN: the requests, which a fake library computes, and the existence of plans."""

from __future__ import annotations

import gc
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from card_cases import cases_of, node_of
from emulator import Emulator
from host_arrays import card_with, through_the_library
from plans import needs_cudnn, without_a_plan
from stand_in_cudnn import STREAM, Graph, Handle, numerical_note
from together import together

import graphkit as gk
from graphkit.errors import MissingDependency, RuntimeFailure
from graphkit.executor.devices.cuda import card
from graphkit.executor.devices.cuda.launches import CardKernel, Convolution, Launch, Scratch
from graphkit.executor.devices.cuda.libraries import convolutions, cudnn
from graphkit.executor.devices.cuda.libraries.workspace import NotInLibrary
from graphkit.executor.devices.cuda.movement.sorting import aligned
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import make_launched
from graphkit.ops import DOMAIN, registry
from graphkit.ops.evaluate import run_node
from graphkit.ops.internal.channels_last import ChannelsLastConv
from graphkit.ops.internal.fused_conv import FusedConv
from graphkit.ops.nn.conv import Conv, ConvGradWeight, ConvTranspose

OPERATORS = [("", "Conv"), ("", "ConvTranspose")]
OPERATORS += [
    (DOMAIN, f"{layout}{name}") for layout in ("", "ChannelsLast") for name in ("ConvGradInput", "ConvGradWeight")
]
OPERATORS += [(DOMAIN, "ChannelsLastConv"), (DOMAIN, "ChannelsLastConvTranspose")]


def kernel_of(op: Any, *arrays: np.ndarray, **facts: Any) -> CardKernel:
    kernel = make_launched("cuda", node_of(op, *arrays), KernelContext(**facts))
    assert isinstance(kernel, CardKernel)
    return kernel


def ones(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.ones(shape, dtype)


@together()
@pytest.mark.parametrize(("domain", "name"), OPERATORS)
def test_graphs_say_what_the_convolution_is(domain: str, name: str, library: Any) -> None:
    """The library, by its documentation, computes the reference's results from them."""
    seen = 0
    for case in cases_of(registry.get(domain, name)):
        plain = case.kernel.launches and all(isinstance(launch, Convolution) for launch in case.kernel.launches)
        if not plain or case.node.output.dtype is gk.DType.BFLOAT16:
            continue
        (expected,) = run_node(case.node, case.arrays)
        tolerance = 5e-3 if expected.dtype == np.float16 else 1e-5
        found = through_the_library(case, STREAM)
        np.testing.assert_allclose(found, expected, tolerance, tolerance, err_msg=case.name)
        seen += 1
    assert seen >= 3


def test_what_is_left_to_a_launch_behind_it() -> None:
    """The bias goes with a convolution, not with its gradient; all that follows it is one launch."""
    x, w, bias, y = ones(1, 2, 5, 5), ones(4, 2, 3, 3), ones(4), ones(1, 4, 3, 3)
    for op, arrays, with_bias, launches in (
        (Conv(), (x, w), False, 1),
        (Conv(), (x, w, bias), True, 1),
        (FusedConv(activation="Relu"), (x, w, bias), True, 2),
        (FusedConv(), (x, w, bias, y), True, 2),
        (ConvTranspose(), (y, w, ones(2)), False, 2),
    ):
        kernel = kernel_of(op, *arrays)
        (first, *rest) = kernel.launches
        assert isinstance(first, Convolution)
        assert (first.bias is not None) == with_bias
        assert len(kernel.launches) == launches
        assert all(isinstance(launch, Launch) for launch in rest)
        # The residual is read behind the convolution, which writes the result.
        assert kernel.inplace == ()


def last_with_residual(**attrs: Any) -> tuple[Any, list[np.ndarray]]:
    arrays = [ones(1, 5, 5, 2), ones(4, 3, 3, 2), ones(4), np.arange(36, dtype=np.float32).reshape(1, 3, 3, 4) - 20]
    return ChannelsLastConv(**attrs, filters_last=True), arrays


@together()
@pytest.mark.parametrize(
    ("attrs", "taken", "launches"),
    [
        ({}, True, 1),
        ({"activation": "Relu"}, True, 2),
        ({"residual_last": True}, True, 1),
        ({"activation": "Relu", "residual_last": True}, False, 2),
    ],
    ids=str,
)
def test_a_residual_is_taken_in_with_channels_last(
    attrs: dict[str, Any], taken: bool, launches: int, emulator: Emulator
) -> None:
    """Where nothing comes before it; the activation is the launch behind, as ever."""
    op, arrays = last_with_residual(**attrs)
    kernel = kernel_of(op, *arrays, tf32=True)
    exact = kernel_of(op, *arrays).launches[0]
    assert isinstance(exact, Convolution)
    assert exact.residual is None, "for products of all bits there are no such plans"
    work = kernel.launches[0]
    assert isinstance(work, Convolution)
    assert (work.residual is not None) == taken
    assert len(kernel.launches) == launches
    assert kernel.inplace == ()
    (expected,) = run_node(node_of(op, *arrays), arrays)
    ways = list(kernel.alternatives)
    assert len(ways) == 2 + taken
    for way in ways:
        y = np.empty_like(expected)
        emulator.run(way, arrays, [y])
        np.testing.assert_allclose(y, expected, rtol=1e-5)


def test_a_residual_that_the_library_does_not_take_in(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is added by another kernel, without a warning."""
    op, arrays = last_with_residual(activation="Relu")
    kernel, before = kernel_of(op, *arrays, tf32=True), convolutions.planned

    def planned(convolution: Convolution, **target: Any) -> Any:
        if convolution.residual is not None:
            raise NotInLibrary("cuDNN: no engine")
        return before(convolution, **target)

    monkeypatch.setattr(convolutions, "planned", planned)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        launched = card._Launched(card_with(STREAM), node_of(op, *arrays), kernel, None)
    assert launched.chosen is kernel.otherwise


def test_a_not_a_number_goes_through_activations(emulator: Emulator) -> None:
    x, w = ones(1, 1, 3, 3), ones(1, 1, 1, 1)
    x[0, 0, 1, 1] = np.nan
    y = np.empty_like(x)
    emulator.run(kernel_of(FusedConv(activation="Relu"), x, w), [x, w], [y])
    np.testing.assert_array_equal(y, x)


def test_plans_that_are_not_wanted(library: Any) -> None:
    """Plans are rejected if their bits differ from run to run, or if they multiply with less than float32 precision."""
    always = {numerical_note.NONDETERMINISTIC, numerical_note.REDUCED_PRECISION_REDUCTION, numerical_note.WINOGRAD}
    always.add(numerical_note.FFT)
    rounded = {numerical_note.TENSOR_CORE, numerical_note.DOWN_CONVERT_INPUTS}
    for dtype, tf32, unwanted in (
        (np.float32, False, always | rounded),
        (np.float32, True, always),
        (np.float16, False, always),
        (np.float64, True, always),
    ):
        x, w = ones(1, 2, 5, 5, dtype=dtype), ones(4, 2, 3, 3, dtype=dtype)
        kernel = kernel_of(Conv(), x, w, tf32=tf32)
        card._Launched(card_with(STREAM), node_of(Conv(), x, w), kernel, None)
        assert Graph.made[-1].unwanted == unwanted


def test_what_the_library_has_no_way_for_is_the_cards_own(library: Any) -> None:
    x, w = ones(1, 2, 5, 5), ones(4, 2, 3, 3)
    kernel = kernel_of(Conv(), x, w)
    assert kernel.otherwise is not None
    assert kernel.scratch_bytes >= kernel.otherwise.scratch_bytes
    node = node_of(Conv(), x, w)
    assert card._Launched(card_with(STREAM), node, kernel, None).chosen is kernel
    for Graph.alternatives, Graph.least_workspace in ((0, 0), (1, 1 << 60)):
        with pytest.warns(RuntimeWarning, match=r"Conv.*: cuDNN 9\.28\.0: no engine; graphkit's own kernel"):
            launched = card._Launched(card_with(STREAM), node, kernel, None)
        assert launched.chosen is kernel.otherwise


def test_positions_that_the_library_counts_otherwise() -> None:
    """Negative padding behind an axis, whose last elements no window has, is a rest that a stride leaves, or no way."""
    node = node_of(ConvTranspose(strides=(2,), output_padding=(1,)), ones(1, 2, 4), ones(2, 3, 3))
    kernel = make_launched("cuda", node, KernelContext())
    assert isinstance(kernel, CardKernel)
    (work,) = kernel.launches
    assert isinstance(work, Convolution)
    assert convolutions._end(work) == [0]
    beyond = work._replace(x=(1, 3, 14))
    with pytest.raises(NotInLibrary, match="positions"):
        convolutions._end(beyond)


@together()
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_gradient_wider_than_its_operands(dtype: str, emulator: Emulator) -> None:
    """It is that of all their bits, also where no half float is as large: as the library's sums, on cards where it
    writes them, else of widened operands.
    """
    kind = gk.DType(dtype).numpy
    rng = np.random.default_rng(0)
    x, dy = ((300 * rng.standard_normal(shape)).astype(kind) for shape in ((2, 3, 5, 5), (2, 4, 3, 3)))
    w = ones(4, 3, 3, 3)
    sums, kernel, own = kernel_of(ConvGradWeight(), x, dy, w).alternatives
    (work,) = sums.launches
    assert isinstance(work, Convolution)
    assert (work.kind.value, work.made, work.tf32) == (dtype, gk.DType.FLOAT32, False)
    *widening, work = kernel.launches
    assert isinstance(work, Convolution)
    assert len(widening) == 2
    assert (work.kind, work.made, work.tf32) == (gk.DType.FLOAT32, gk.DType.FLOAT32, True)
    assert sums.scratch_bytes >= kernel.scratch_bytes >= own.scratch_bytes
    places = [argument.offset for argument in (*work.factors, work.working) if isinstance(argument, Scratch)]
    assert places == [0, aligned(4 * x.size), aligned(4 * x.size) + aligned(4 * dy.size)]
    assert kernel.scratch_bytes >= places[-1] + work.workspace
    wide = [a.astype(np.float32) for a in (x, dy)]
    (expected,) = run_node(node_of(ConvGradWeight(), *wide, w), [*wide, w])
    for way in (sums, kernel, own):
        dw = np.empty(w.shape, np.float32)
        emulator.run(way, [x, dy, w], [dw])
        np.testing.assert_allclose(dw, expected, rtol=1e-5, atol=1)
        assert np.abs(dw).max() > 65504


def test_a_way_that_another_library_call_has_is_no_warning(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a GPU cannot write float32 gradients of float16 operands, the operands are converted, without a warning."""
    x, dy, w = ones(1, 2, 5, 5, dtype=np.float16), ones(1, 4, 3, 3, dtype=np.float16), ones(4, 2, 3, 3)
    kernel = kernel_of(ConvGradWeight(), x, dy, w)
    before = convolutions.planned

    def planned(convolution: Convolution, **target: Any) -> Any:
        if convolution.sums:
            raise NotInLibrary("cuDNN: no engine")
        return before(convolution, **target)

    monkeypatch.setattr(convolutions, "planned", planned)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        launched = card._Launched(card_with(STREAM), node_of(ConvGradWeight(), x, dy, w), kernel, None)
    assert launched.chosen is kernel.otherwise


@together()
@pytest.mark.parametrize(("kind", "result"), [("float64", "float32"), ("float32", "float16"), ("float16", "bfloat16")])
def test_other_types_are_the_cards_own(kind: str, result: str) -> None:
    x, dy, w = (
        ones(*shape, dtype=gk.DType(name).numpy)
        for shape, name in (((1, 2, 5, 5), kind), ((1, 4, 3, 3), kind), ((4, 2, 3, 3), result))
    )
    assert all(isinstance(launch, Launch) for launch in kernel_of(ConvGradWeight(), x, dy, w).launches)


def test_a_handle_for_each_thread(library: Any) -> None:
    """It goes with the thread."""
    case = next(c for c in cases_of(Conv) if isinstance(c.kernel.launches[0], Convolution))
    failed: list[BaseException] = []

    def many() -> None:
        try:
            for _ in range(20):
                through_the_library(case, STREAM)
        except BaseException as error:  # noqa: BLE001 - it is what the test is about
            failed.append(error)

    threads, before = [threading.Thread(target=many) for _ in range(4)], sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not failed
    gc.collect()
    assert not Handle.alive


def test_a_thread_has_its_handle_before_it_records(library: Any) -> None:
    """Of cards that compute convolutions; making one takes memory, which nothing may while it is recorded."""
    (case, *_) = cases_of(Conv)
    card._Launched(card_with(STREAM), case.node, case.kernel, None)
    mine = set(Handle.alive)
    found: list[int] = []

    def other() -> None:
        for number in (1, 0, 0):
            cudnn.be_ready(number)
            found.append(len(Handle.alive - mine))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert len(mine) == 1
    assert found == [0, 1, 1]


def test_errors_name_the_node(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("no memory")

    (case, *_) = cases_of(Conv)
    for when in ("build_plans", "execute"):
        with monkeypatch.context() as patch:
            patch.setattr(Graph, when, broken)
            with pytest.raises(RuntimeFailure, match=r"Conv.*: cuDNN 9\.28\.0: no memory"):
                through_the_library(case, STREAM)


def test_without_the_frontend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cudnn", None)
    monkeypatch.setattr(cudnn, "_of_thread", threading.local())
    cudnn.frontend.cache_clear()
    (case, *_) = cases_of(Conv)
    with pytest.raises(MissingDependency, match=r"Conv.*cuDNN.*pip install '\.\[cuda12\]'"):
        through_the_library(case, STREAM)
    cudnn.frontend.cache_clear()


@together()
@pytest.mark.full
@needs_cudnn
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
def test_cudnn_itself_has_plans(architecture: str, tmp_path: Path) -> None:
    """For every convolution of the samples, of ResNet-50's training, and of that and MobileNetV2's with channels last,
    residuals among them, on cards that are not here.
    """
    *none, asked = without_a_plan("convolutions", architecture, tmp_path)
    assert not none
    assert asked > 900
