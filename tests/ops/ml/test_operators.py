"""The other operators of ai.onnx.ml, compared with ONNX Runtime on random attributes and operands."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item
from onnx import numpy_helper

import graphkit as gk
from graphkit.errors import GraphkitError

Call = tuple[str, list[Any], dict[str, Any]]
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO")
NUMBERS = ("float32", "float64", "int64", "int32")


def floats(rng: np.random.Generator, count: int) -> list[float]:
    return [float(np.float32(v)) for v in np.round(rng.normal(size=count), 1)]


def matrix(rng: np.random.Generator, features: int, dtypes: tuple[str, ...] = NUMBERS) -> np.ndarray:
    shape = (int(rng.choice([1, 2, 9, 40])), features) if rng.random() < 0.9 else (features,)
    dtype = str(rng.choice(dtypes))
    numbers = rng.integers(-3, 4, shape) if dtype.startswith("int") else np.round(rng.normal(size=shape), 1)
    return numbers.astype(dtype)


def strings(numbers: np.ndarray) -> np.ndarray:
    return np.array([f"s{n}" for n in numbers.reshape(-1)], object).reshape(numbers.shape)


def labels(rng: np.random.Generator, count: int, name: str = "classlabels_ints") -> dict[str, Any]:
    if rng.random() < 0.5:
        return {"classlabels_strings": [f"c{i}" for i in range(count)]}
    return {name: [int(i) for i in rng.permutation(20)[:count]]}


def linear_regressor(rng: np.random.Generator) -> Call:
    targets, features = int(rng.integers(1, 5)), int(rng.integers(1, 7))
    attributes = {"coefficients": floats(rng, targets * features), "targets": targets}
    intercepts = {"intercepts": floats(rng, targets)} if rng.random() < 0.7 else {}
    x = matrix(rng, features, ("float32",))
    return "LinearRegressor", [x], {**attributes, **intercepts, "post_transform": str(rng.choice(TRANSFORMS))}


def linear_classifier(rng: np.random.Generator) -> Call:
    scores, features = int(rng.integers(1, 5)), int(rng.integers(1, 7))
    attributes = {
        "coefficients": floats(rng, scores * features),
        "intercepts": floats(rng, scores),
        "post_transform": str(rng.choice(TRANSFORMS)),
        **labels(rng, 2 if scores == 1 else scores),
    }
    return "LinearClassifier", [matrix(rng, features)], {**attributes, "outputs": 2}


def kernel(rng: np.random.Generator) -> dict[str, Any]:
    return {
        "kernel_type": str(rng.choice(["LINEAR", "POLY", "RBF", "SIGMOID"])),
        "kernel_params": [float(rng.choice([0.125, 0.5])), float(rng.choice([0.0, 0.5])), float(rng.integers(1, 5))],
    }


def svm_regressor(rng: np.random.Generator) -> Call:
    features, vectors = int(rng.integers(1, 7)), int(rng.choice([0, 1, 3, 10]))
    attributes = kernel(rng) | {
        "n_supports": vectors,
        "coefficients": floats(rng, vectors or features),
        "rho": floats(rng, 1),
        "one_class": int(rng.random() < 0.3),
    }
    if vectors:
        attributes["support_vectors"] = floats(rng, vectors * features)
    return "SVMRegressor", [matrix(rng, features, ("float32",))], attributes


def svm_classifier(rng: np.random.Generator) -> Call:
    features, classes = int(rng.integers(1, 6)), int(rng.integers(2, 5))
    attributes = kernel(rng) | labels(rng, classes) | {"post_transform": str(rng.choice(TRANSFORMS)), "outputs": 2}
    if rng.random() < 0.25:
        attributes |= {"coefficients": floats(rng, classes * features), "rho": floats(rng, 1)}
        return "SVMClassifier", [matrix(rng, features)], attributes
    counts = [int(n) for n in rng.integers(1, 4, classes)]
    pairs = classes * (classes - 1) // 2
    attributes |= {
        "vectors_per_class": counts,
        "support_vectors": floats(rng, sum(counts) * features),
        "coefficients": floats(rng, (classes - 1) * sum(counts)),
        "rho": floats(rng, pairs),
    }
    if rng.random() < 0.5:
        attributes |= {"prob_a": [-abs(a) - 0.5 for a in floats(rng, pairs)], "prob_b": floats(rng, pairs)}
    return "SVMClassifier", [matrix(rng, features)], attributes


def scaler(rng: np.random.Generator) -> Call:
    x = matrix(rng, 3)
    count = int(rng.choice([1, x.shape[-1]]))
    return "Scaler", [x], {"offset": floats(rng, count), "scale": floats(rng, count)}


def normalizer(rng: np.random.Generator) -> Call:
    x = matrix(rng, 3)
    x[:1] = 0
    return "Normalizer", [x], {"norm": str(rng.choice(["MAX", "L1", "L2"]))}


def binarizer(rng: np.random.Generator) -> Call:
    return "Binarizer", [matrix(rng, 4, ("float32",))], {"threshold": float(rng.choice([0.0, 0.25, -1.0]))}


def imputer(rng: np.random.Generator) -> Call:
    x = matrix(rng, 3, ("float32", "int64"))
    count = int(rng.choice([1, x.shape[-1]]))
    if x.dtype == np.int64:
        given = [int(n) for n in rng.integers(0, 9, count)]
        return "Imputer", [x], {"imputed_value_int64s": given, "replaced_value_int64": int(rng.integers(-2, 3))}
    missing = rng.random() < 0.5
    if missing:
        x[rng.random(x.shape) < 0.3] = np.nan
    replaced = math.nan if missing else float(x.reshape(-1)[0])
    return "Imputer", [x], {"imputed_value_floats": floats(rng, count), "replaced_value_float": replaced}


def array_feature_extractor(rng: np.random.Generator) -> Call:
    x = matrix(rng, 4)
    y = rng.integers(0, 4, (1, int(rng.integers(1, 5))))
    return "ArrayFeatureExtractor", [strings(x) if rng.random() < 0.3 else x, y], {}


def feature_vectorizer(rng: np.random.Generator) -> Call:
    dtype = str(rng.choice(NUMBERS))
    xs = [rng.integers(-3, 4, (2, int(rng.integers(1, 5)))).astype(dtype) for _ in range(int(rng.integers(1, 4)))]
    return "FeatureVectorizer", xs, {"inputdimensions": [int(max(1, x.shape[1] + rng.integers(-1, 2))) for x in xs]}


def one_hot_encoder(rng: np.random.Generator) -> Call:
    if rng.random() < 0.3:
        return "OneHotEncoder", [strings(rng.integers(0, 5, (2, 3)))], {"cats_strings": ["s1", "s2", "s3"]}
    x = matrix(rng, 2, ("float32", "int64"))
    return "OneHotEncoder", [x], {"cats_int64s": [int(n) for n in rng.integers(-3, 4, rng.integers(1, 6))]}


def category_mapper(rng: np.random.Generator) -> Call:
    count, x = int(rng.integers(1, 6)), rng.integers(0, 8, (3, 2))
    table = {"cats_int64s": [int(n) for n in rng.integers(0, 6, count)]}
    words = {"cats_strings": list(strings(rng.integers(0, 6, count)))}
    defaults = {"default_int64": -7, "default_string": "none"}
    return "CategoryMapper", [x if rng.random() < 0.5 else strings(x)], {**table, **words, **defaults}


def first_label_encoder(rng: np.random.Generator) -> Call:
    x = rng.integers(-1, 5, (3, 2))
    attributes = {"classes_strings": list(strings(rng.permutation(6)[:3])), "default_int64": -7}
    return "LabelEncoder", [x if rng.random() < 0.5 else strings(x)], {**attributes, "default_string": "none"}


def label_encoder(rng: np.random.Generator) -> Call:
    def entries(kind: str, count: int) -> list[Any]:
        numbers = rng.integers(0, 6, count)
        if kind == "floats":
            return [math.nan if rng.random() < 0.2 else float(n) / 2 for n in numbers]
        return list(strings(numbers)) if kind == "strings" else [int(n) for n in numbers]

    count = int(rng.integers(1, 6))
    keys, values = (str(kind) for kind in rng.choice(["strings", "int64s", "floats"], 2))
    x = rng.integers(0, 8, (2, 3))
    if keys == "floats":
        given = (x / 2).astype(np.float32)
        given[0, 0] = np.nan
    else:
        given = strings(x) if keys == "strings" else x
    attributes = {f"keys_{keys}": entries(keys, count), f"values_{values}": entries(values, count)}
    return "LabelEncoder", [given], {**attributes, "default_int64": -7, "version": int(rng.choice([2, 3, 4]))}


def label_encoder_of_tensors(rng: np.random.Generator) -> Call:
    count = int(rng.integers(1, 6))
    keys = rng.integers(0, 6, count)
    if rng.random() < 0.5:
        wide, values = (keys / 2).astype(np.float64), rng.normal(size=count)
        x = (rng.integers(0, 8, (2, 3)) / 2).astype(np.float64)
        tensors = {"keys_tensor": wide, "values_tensor": values, "default_tensor": np.array([0.5])}
    else:
        x = strings(rng.integers(0, 8, (2, 3)))
        tensors = {"keys_tensor": strings(keys), "values_tensor": np.arange(count, dtype=np.int16)}
        tensors["default_tensor"] = np.array([-5], np.int16)
    return "LabelEncoder", [x], {**{k: numpy_helper.from_array(v) for k, v in tensors.items()}, "version": 4}


def zip_map(rng: np.random.Generator) -> Call:
    count = int(rng.integers(1, 5))
    x = rng.normal(size=(3, count) if rng.random() < 0.8 else (count,)).astype(np.float32)
    return "ZipMap", [x], labels(rng, count, "classlabels_int64s")


GENERATORS = [
    linear_regressor, linear_classifier, svm_regressor, svm_classifier, scaler, normalizer, binarizer, imputer,
    array_feature_extractor, feature_vectorizer, one_hot_encoder, category_mapper, first_label_encoder, label_encoder,
    label_encoder_of_tensors, zip_map,
]  # fmt: skip


def calls() -> Iterator[Any]:
    for make in GENERATORS:
        for seed in range(6):
            yield pytest.param(make, seed, id=f"{make.__name__}-{seed}")


@in_one_item()
@pytest.mark.parametrize(("make", "seed"), [*calls()])
def test_as_in_onnx_runtime(
    make: Callable[[np.random.Generator], Call], seed: int, as_in_runtime: Callable[..., Any]
) -> None:
    operator, inputs, attributes = make(np.random.default_rng(seed))
    as_in_runtime(operator, inputs, **attributes)


def test_probabilities_of_many_rows_do_not_depend_on_each_other() -> None:
    rng = np.random.default_rng(0)
    decisions = rng.normal(size=(50, 6)).astype(np.float32)
    a, b = -np.abs(rng.normal(size=6)).astype(np.float32), rng.normal(size=6).astype(np.float32)
    x = gk.input("x", ["n", 6])
    net = gk.Model({"p": gk.coupled_probabilities(x, a, b)})
    together = net.run({"x": decisions})["p"]
    apart = np.concatenate([net.run({"x": row[None]})["p"] for row in decisions])
    np.testing.assert_allclose(together, apart, rtol=1e-6)
    np.testing.assert_allclose(together.sum(axis=1), 1, rtol=1e-5)


@in_one_item()
@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda x: gk.scaler(x, offset=[1.0, 2.0], scale=[1.0]), "offset has 2 entries"),
        (lambda x: gk.normalizer(x, norm="L3"), "L3"),
        (lambda x: gk.imputer(x), "imputed_value_floats is empty"),
        (lambda x: gk.linear_regressor(x, coefficients=[1.0, 2.0]), "2 features, x has 3"),
        (
            lambda x: gk.linear_regressor(x, coefficients=[1.0] * 5, targets=2),
            "the number of coefficients, 5, must be a multiple of targets=2",
        ),
        (lambda x: gk.linear_classifier(x, coefficients=[1.0] * 3, intercepts=[0.0]), None),
        (
            lambda x: gk.linear_classifier(x, coefficients=[1.0] * 6, intercepts=[0, 0], classlabels_ints=[1]),
            "2 scores need 2 labels, not 1",
        ),
        (
            lambda x: gk.svm_regressor(x, n_supports=2, coefficients=[1.0], rho=[0.0], support_vectors=[1.0] * 6),
            "n_supports=2 needs 2 coefficients",
        ),
        (lambda x: gk.svm_regressor(x, coefficients=[1.0] * 3, rho=[0.0], kernel_params=[1.0]), "kernel_params"),
        (lambda x: gk.zip_map(x, classlabels_int64s=[1, 2]), "2 labels for 3 columns"),
        (lambda x: gk.array_feature_extractor(x, np.array([3])), "outside of 3 features"),
        (lambda x: gk.feature_vectorizer(x, inputdimensions=[1, 2]), "1 operand, but len"),
        (lambda x: gk.one_hot_encoder(x), "one of cats_strings and cats_int64s"),
        (
            lambda x: gk.label_encoder(x, keys_floats=[1.0], values_int64s=[1, 2]),
            "must have one length: keys has 1, values has 2",
        ),
        (lambda x: gk.label_encoder(x, keys_int64s=[1], values_int64s=[1]), "keys are int64"),
        (lambda x: gk.label_encoder(x, keys_floats=[1.0], keys_int64s=[1], values_int64s=[1]), "2 are given"),
        (lambda x: gk.dict_vectorizer(x, int64_vocabulary=[1]), "must be a map"),
    ],
)
def test_attributes_that_do_not_fit(build: Callable[[Any], Any], message: str | None) -> None:
    x = gk.input("x", ["n", 3])
    if message is None:
        build(x)
        return
    with pytest.raises(GraphkitError, match=message):
        build(x)


def test_one_hot_of_an_unknown_category_is_an_error() -> None:
    x = gk.input("x", ["n"], dtype="int64")
    net = gk.Model({"y": gk.one_hot_encoder(x, cats_int64s=[1, 2], zeros=0, name="encoder")})
    assert net.run({"x": np.array([2, 1])})["y"].tolist() == [[0, 1], [1, 0]]
    with pytest.raises(GraphkitError, match=r"encoder.*9 is not one of the categories"):
        net.run({"x": np.array([2, 9])})
