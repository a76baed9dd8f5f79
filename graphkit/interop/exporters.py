"""gk.from_sklearn and gk.from_keras: Models of estimators and Keras networks, through their own ONNX exporters."""

from __future__ import annotations

import importlib
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

from graphkit.distribution import how_to_install
from graphkit.errors import GraphkitWarning, InputError, UnsupportedError
from graphkit.interop.torch_export import BATCH, require
from graphkit.loading import load
from graphkit.model import Model
from graphkit.signatures import shown, typed
from graphkit.text import listed

# Layers of Keras that compute something else in training than the exported network.
_TRAINING_LAYERS = ("BatchNormalization", "Dropout", "SpatialDropout", "GaussianDropout", "GaussianNoise")


@typed("gk.from_sklearn")
def from_sklearn(estimator: Any, example_inputs: Any, **options: Any) -> Model:
    """Return a Model that predicts what a fitted estimator of scikit-learn predicts. skl2onnx exports it.

    A classifier has the outputs `label` and `probabilities`.

    Args:
        estimator: A fitted estimator or pipeline.
        example_inputs: A few rows of its input: an array, or a table of pandas, whose columns become inputs. Only types
            and names matter.
        options: Further arguments of `skl2onnx.to_onnx`, such as `target_opset`.

    Raises:
        MissingDependency: scikit-learn or skl2onnx is not installed.
        InputError: `estimator` is not an estimator of scikit-learn.
        UnsupportedError: skl2onnx cannot export it, for example because it is not fitted. The message contains the
            reason.
    """
    require("sklearn", "skl2onnx", task="gk.from_sklearn", command=how_to_install("sklearn"))
    base: Any = importlib.import_module("sklearn.base")
    exporter: Any = importlib.import_module("skl2onnx")
    if not isinstance(estimator, base.BaseEstimator):
        raise InputError(f"from_sklearn: estimator must be an estimator of scikit-learn, not {shown(estimator)}")
    if base.is_classifier(estimator):
        # Without it, probabilities would be a sequence of maps.
        options.setdefault("options", {id(estimator): {"zipmap": False}})
    try:
        message = exporter.to_onnx(estimator, example_inputs, **options)
    except Exception as error:
        raise UnsupportedError(
            f"from_sklearn: skl2onnx cannot export {type(estimator).__name__}: {_first_line(error)}"
        ) from error
    for value in (*message.graph.input, *message.graph.output):
        sizes = value.type.tensor_type.shape.dim
        if len(sizes) and not sizes[0].dim_value and not sizes[0].dim_param:
            sizes[0].dim_param = BATCH
    return _named(load(message), type(estimator).__name__)


@typed("gk.from_keras")
def from_keras(network: Any) -> Model:
    """Return a Model that computes what a Keras network computes. Keras exports it: `network.export(format="onnx")`.

    The backend of Keras needs its own packages for this: onnxscript and onnx with PyTorch, tf2onnx with TensorFlow and
    JAX. The exporter chooses the names of parameters.

    Args:
        network: A built keras.Model.

    Raises:
        MissingDependency: Keras is not installed.
        InputError: `network` is not a Keras model.
        UnsupportedError: Keras cannot export it. The message contains the reason.
    """
    require("keras", task="gk.from_keras", command=how_to_install("keras"))
    keras: Any = importlib.import_module("keras")
    if not isinstance(network, keras.Model):
        raise InputError(f"from_keras: network must be a keras.Model, not {shown(network)}")
    with tempfile.TemporaryDirectory(prefix="graphkit-") as folder:
        path = Path(folder) / "network.onnx"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about the exporter's own code
                _call_once(network, keras)
                network.export(os.fspath(path), format="onnx", verbose=False)
        except Exception as error:
            raise UnsupportedError(
                f"from_keras: Keras cannot export {type(network).__name__} {network.name!r}: {_first_line(error)}"
            ) from error
        model = load(path)
    kinds = {type(layer).__name__ for layer in network._flatten_layers()}
    if found := sorted(kind for kind in kinds if kind.startswith(_TRAINING_LAYERS)):
        warnings.warn(
            f"from_keras: Keras exports {listed(found, len(found), 5)} as in inference: training the Model differs "
            "from training in Keras",
            GraphkitWarning,
            stacklevel=3,
        )
    return _named(model, network.name)


def _call_once(network: Any, keras: Any) -> None:
    """Call a network on zeros if its inputs are known and it was never called: Keras exports no such network."""
    inputs = getattr(network, "inputs", None)
    if inputs and not getattr(network, "_called", True):
        zeros = [keras.ops.zeros([1 if size is None else size for size in x.shape], x.dtype) for x in inputs]
        network(zeros[0] if len(zeros) == 1 else zeros)


def _named(model: Model, name: str) -> Model:
    return Model.from_graph(model.graph, model.params.entries(), name=name)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
