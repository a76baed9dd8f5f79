"""Small files of fitted models as skl2onnx and onnxmltools write them, for `corpus.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from corpus import Made, unplaced
from skl2onnx import convert_sklearn, to_onnx
from skl2onnx.common.data_types import FloatTensorType, StringTensorType
from sklearn import cluster, ensemble, feature_extraction, gaussian_process, linear_model, mixture, neighbors

from sklearn import pipeline, preprocessing, svm, tree  # isort: skip

_RNG = np.random.default_rng(1)
_X = _RNG.normal(size=(60, 4)).astype(np.float32)
_CLASSES = (_X[:, 0] > 0).astype(int) + (_X[:, 1] > 1)
_TARGETS = _X @ np.float32([1, -2, 0.5, 0]) + 1
_NAMES = np.array(["low", "middle", "high"])[_CLASSES]
_WORDS = np.array(["a small file", "another file", "a b a b", "some more words", "file file"]).reshape(-1, 1)


def makers() -> dict[str, Callable[[], Made]]:
    fit = _fitted
    return {
        "skl_logistic": lambda: fit(
            pipeline.make_pipeline(preprocessing.StandardScaler(), linear_model.LogisticRegression())
        ),
        "skl_forest": lambda: fit(ensemble.RandomForestClassifier(3, max_depth=3, random_state=0), _NAMES),
        "skl_boosting": lambda: fit(ensemble.GradientBoostingRegressor(n_estimators=4, random_state=0), _TARGETS),
        "skl_tree": lambda: fit(tree.DecisionTreeClassifier(max_depth=4), options={"zipmap": False}),
        "skl_svm": lambda: fit(svm.SVC(probability=False), options={"zipmap": False}),
        "skl_svr": lambda: fit(svm.SVR(), _TARGETS),
        "skl_neighbours": lambda: fit(neighbors.KNeighborsClassifier(3), options={"zipmap": False}),
        "skl_means": lambda: fit(cluster.KMeans(3, n_init=1, random_state=0)),
        "skl_gaussian": lambda: fit(gaussian_process.GaussianProcessRegressor(), _TARGETS),
        "skl_mixture": lambda: fit(mixture.GaussianMixture(2, random_state=0), None),
        "skl_words": _words,
        "skl_categories": _categories,
        "lightgbm": _lightgbm,
        "xgboost": _xgboost,
    }  # fmt: skip


def _fitted(estimator: Any, targets: Any = _CLASSES, options: Any = None) -> Made:
    estimator.fit(_X, targets)
    model = to_onnx(estimator, initial_types=[("x", FloatTensorType([None, 4]))], options=options, target_opset=18)
    return Made(unplaced(model).SerializeToString(), inputs={"x": _X[:5]})


def _words() -> Made:
    vectors = feature_extraction.text.TfidfVectorizer(ngram_range=(1, 2), lowercase=False).fit(_WORDS.ravel())
    model = convert_sklearn(vectors, initial_types=[("x", StringTensorType([None, 1]))], target_opset=18)
    return Made(unplaced(model).SerializeToString(), inputs={"x": _WORDS})


def _categories() -> Made:
    codes = preprocessing.OneHotEncoder(handle_unknown="ignore").fit(_NAMES.reshape(-1, 1))
    model = convert_sklearn(codes, initial_types=[("x", StringTensorType([None, 1]))], target_opset=18)
    return Made(unplaced(model).SerializeToString(), inputs={"x": np.array([["low"], ["high"], ["other"]])})


def _lightgbm() -> Made:
    import lightgbm
    import onnxmltools
    from onnxmltools.convert.common.data_types import FloatTensorType as Floats

    fitted = lightgbm.LGBMClassifier(n_estimators=3, max_depth=3, verbose=-1).fit(_X, _CLASSES)
    model = onnxmltools.convert_lightgbm(fitted, initial_types=[("x", Floats([None, 4]))], target_opset=15)
    return Made(unplaced(model).SerializeToString(), inputs={"x": _X[:5]})


def _xgboost() -> Made:
    import onnxmltools
    import xgboost
    from onnxmltools.convert.common.data_types import FloatTensorType as Floats

    fitted = xgboost.XGBRegressor(n_estimators=4, max_depth=3).fit(_X, _TARGETS)
    model = onnxmltools.convert_xgboost(fitted, initial_types=[("x", Floats([None, 4]))], target_opset=15)
    return Made(unplaced(model).SerializeToString(), inputs={"x": _X[:5]})
