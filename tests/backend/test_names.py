"""Names and options of backends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import graphkit as gk
from graphkit.backend import Backend
from graphkit.errors import BackendError, UsageError


@pytest.fixture
def registered() -> Iterator[Backend]:
    yield gk.backend.register("mine", supports=lambda node: True, compile=lambda part: None, min_nodes=2)
    gk.backend.unregister("mine")


def test_registered_backends_have_names(registered: Backend) -> None:
    assert gk.backend.names() == ("onnxruntime", "mine")
    assert gk.backend.use("mine") is registered
    assert gk.backend.use("mine", check=True, min_nodes=7).min_nodes == 7
    assert gk.backend.resolve("mine") == (registered,)
    assert gk.backend.resolve([registered]) == (registered,)


def test_names_are_unique(registered: Backend) -> None:
    for name in ("mine", "onnxruntime"):
        with pytest.raises(UsageError, match=f"the name '{name}' is in use"):
            gk.backend.register(name, supports=lambda node: True, compile=lambda part: None)
    with pytest.raises(UsageError, match="backends=: 'mine' is listed twice"):
        gk.backend.resolve(["mine", gk.backend.use("mine", check=True)])


def test_unregistered_backends_are_gone() -> None:
    gk.backend.register("gone", supports=lambda node: True, compile=lambda part: None)
    gk.backend.unregister("gone")
    with pytest.raises(UsageError, match="there is no backend 'gone'"):
        gk.backend.use("gone")
    with pytest.raises(UsageError, match="no backend 'gone' was registered"):
        gk.backend.unregister("gone")
    with pytest.raises(UsageError, match="no backend 'onnxruntime' was registered"):
        gk.backend.unregister("onnxruntime")


def test_unknown_names_are_errors(image_net) -> None:
    with pytest.raises(UsageError, match="no backend 'onnxruntim'; did you mean 'onnxruntime'"):
        image_net.compile(backends="onnxruntim")
    with pytest.raises(UsageError, match="there is no option 'min_node'; did you mean 'min_nodes'"):
        gk.backend.use("onnxruntime", min_node=1)
    with pytest.raises(UsageError, match="backends= takes names of backends and Backend objects, not 3"):
        image_net.compile(backends=[3])


@pytest.mark.parametrize("options", [{"name": ""}, {"name": "a/b"}, {"min_nodes": 0}, {"min_flops": -1}])
def test_wrong_options_are_errors(options) -> None:
    with pytest.raises(UsageError):
        Backend(**{"name": "a", "supports": lambda node: True, "compile": lambda part: None} | options)


def test_functions_must_be_functions() -> None:
    with pytest.raises(UsageError, match="compile"):
        gk.backend.register("a", supports=lambda node: True, compile=3)
    assert "a" not in gk.backend.names()


@pytest.mark.parametrize("answer", [None, 1])
def test_supports_must_answer(answer, image_net) -> None:
    backend = Backend(name="a", supports=lambda node: answer, compile=lambda part: None)
    with pytest.raises(BackendError, match=r"supports returned .* for node 'conv' Conv"):
        image_net.compile(backends=backend)


def test_failing_supports_is_a_named_error(image_net) -> None:
    backend = Backend(name="a", supports=lambda node: node.nothing, compile=lambda part: None)
    with pytest.raises(BackendError, match=r"backend 'a': supports failed for node 'conv' .*AttributeError"):
        image_net.compile(backends=backend)


def test_table_without_backends(image_net) -> None:
    assert gk.backend.explain(image_net.compile()) == "no backends"
