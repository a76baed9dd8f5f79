"""Names and options of backends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from combinations import in_one_item

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
    with pytest.raises(UsageError, match="'onnxruntime' is a backend of graphkit; only registered backends can be rem"):
        gk.backend.unregister("onnxruntime")


def test_unknown_names_are_errors(image_net) -> None:
    with pytest.raises(UsageError, match="no backend 'onnxruntim'; did you mean 'onnxruntime'"):
        image_net.compile(backends="onnxruntim")
    with pytest.raises(UsageError, match="there is no option 'min_node'; did you mean 'min_nodes'"):
        gk.backend.use("onnxruntime", min_node=1)


@pytest.mark.parametrize("backends", [3, [3], {"onnxruntime": 1}, b"onnxruntime"])
def test_wrong_backends_are_errors(backends, image_net) -> None:
    wanted = r"backends(\[0\])? (must be|is 3, but backends must be) a string or a gk.backend.Backend or a list of str"
    with pytest.raises(UsageError, match=f"Model.compile: {wanted}"):
        image_net.compile(backends=backends)
    with pytest.raises(UsageError, match=f"gk.Trainer: {wanted}"):
        gk.Trainer(image_net, backends=backends)
    with pytest.raises(UsageError, match=r"gk\.backend\.resolve: backends"):
        gk.backend.resolve(backends)


@pytest.mark.parametrize("name", [3, [3]])
def test_wrong_names_are_errors(name) -> None:
    for function in (gk.backend.use, gk.backend.unregister):
        with pytest.raises(UsageError, match="name must be a string, not"):
            function(name)


def test_table_of_something_else_is_an_error(image_net) -> None:
    for other in (image_net, None):
        with pytest.raises(UsageError, match=r"explain: executor must be an Executor, such as the result of"):
            gk.backend.explain(other)


@in_one_item()
@pytest.mark.parametrize(
    "options", [{"name": ""}, {"name": "a/b"}, {"name": "a\nb"}, {"name": " "}, {"min_nodes": 0}, {"min_flops": -1}]
)
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


@pytest.mark.filterwarnings("ignore::graphkit.errors.BackendWarning")
@pytest.mark.parametrize(("answer", "reason"), [("", "it does not support Conv here"), ("no\nConv", "no Conv")])
def test_texts_of_supports_are_reasons(answer: str, reason: str, image_net) -> None:
    backend = Backend(name="a", supports=lambda node: answer, compile=lambda part: None)
    assert image_net.compile(backends=backend).backend_decisions[0].reason == f"a: {reason}."


def test_failing_supports_is_a_named_error(image_net) -> None:
    backend = Backend(name="a", supports=lambda node: node.nothing, compile=lambda part: None)
    with pytest.raises(BackendError, match=r"backend 'a': supports failed for node 'conv' .*AttributeError"):
        image_net.compile(backends=backend)


def test_table_without_backends(image_net) -> None:
    assert gk.backend.explain(image_net.compile()) == "no backends"
