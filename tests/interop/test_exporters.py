"""Models from scikit-learn estimators and Keras networks have the predictions of the originals."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

import graphkit as gk

RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64) + (X[:, 1] > 0)


def has(*names):
    return all(importlib.util.find_spec(name) is not None for name in names)


needs_sklearn = pytest.mark.skipif(not has("sklearn", "skl2onnx"), reason="scikit-learn or skl2onnx is not installed")
needs_keras = pytest.mark.skipif(not has("keras", "onnxscript", "torch"), reason="Keras or PyTorch is not installed")
pytestmark = [
    pytest.mark.pytorch,
    # Those of the exporters about their own code.
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:sklearn"),
]


def classifiers():
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return {
        "pipeline": make_pipeline(StandardScaler(), LogisticRegression()),
        "forest": RandomForestClassifier(5, random_state=0),
        "mlp": MLPClassifier((8,), max_iter=50, random_state=0),
    }


@needs_sklearn
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["pipeline", "forest", "mlp"])
def test_classifiers_of_sklearn(name):
    estimator = classifiers()[name].fit(X, Y)
    net = gk.from_sklearn(estimator, X[:1])
    assert net.name == type(estimator).__name__
    assert str(net.input_types[net.inputs[0]]) == "float32[N, 4]"
    for rows in (X, X[:1], X[:0]):
        found = net.run({net.inputs[0]: rows})
        if len(rows):
            np.testing.assert_array_equal(found["label"], estimator.predict(rows))
            np.testing.assert_allclose(found["probabilities"], estimator.predict_proba(rows), rtol=1e-4, atol=1e-5)
        assert len(found["label"]) == len(rows)


@needs_sklearn
def test_regressor_of_sklearn():
    from sklearn.linear_model import Ridge

    estimator = Ridge().fit(X, X[:, 0] - 2 * X[:, 2])
    net = gk.from_sklearn(estimator, X[:1])
    np.testing.assert_allclose(net.run({net.inputs[0]: X})[net.outputs[0]][:, 0], estimator.predict(X), atol=1e-5)


@needs_sklearn
def test_estimators_that_cannot_be_exported():
    from sklearn.linear_model import Ridge

    with pytest.raises(gk.errors.InputError, match="must be an estimator of scikit-learn, not 3"):
        gk.from_sklearn(3, X)
    with pytest.raises(gk.errors.UnsupportedError, match="skl2onnx cannot export Ridge: "):
        gk.from_sklearn(Ridge(), X)


@needs_keras
@pytest.mark.filterwarnings("ignore")
def test_keras_network(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    import keras

    network = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(3)])
    network.predict(X, verbose=0)
    net = gk.from_keras(network)
    found = net.run({net.inputs[0]: X})[net.outputs[0]]
    np.testing.assert_allclose(found, network.predict(X, verbose=0), rtol=1e-4, atol=1e-5)
    assert net.num_parameters == network.count_params()
    with pytest.raises(gk.errors.InputError, match=r"must be a keras\.Model, not 3"):
        gk.from_keras(3)


@needs_keras
def test_keras_network_that_was_never_called(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    import keras

    a, b = keras.Input((4,)), keras.Input((2, 3), dtype="int32")
    joined = keras.layers.Concatenate()([a, keras.layers.Flatten()(b)])
    network = keras.Model([a, b], keras.layers.Dense(2)(joined))
    assert len(gk.from_keras(network).inputs) == 2


@needs_keras
def test_keras_layers_that_train_differently_are_reported(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    import keras

    network = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dropout(0.5)])
    network.predict(X, verbose=0)
    with pytest.warns(gk.GraphkitWarning, match="Keras exports Dropout as in inference"):
        gk.from_keras(network)


@pytest.mark.parametrize(("function", "module"), [("from_sklearn", "skl2onnx"), ("from_keras", "keras")])
def test_missing_exporter_is_an_error_that_names_it(monkeypatch, function, module):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == module else find(name))
    arguments = (None, X) if function == "from_sklearn" else (None,)
    with pytest.raises(gk.errors.MissingDependency, match=rf"gk\.{function} needs .*{module}"):
        getattr(gk, function)(*arguments)
