"""Networks that are trained on real data and then quantised, for `quantised_accuracy.py`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from processes import log

import graphkit as gk
from graphkit import data

# Images of MNIST have 28 x 28 pixels; a border of zeros makes them 32 x 32.
_BORDER = ((0, 0), (0, 0), (2, 2), (2, 2))
_TOKENS = 48


class Trained(NamedTuple):
    """model: the .onnx file. folder: train.npz and test.npz, whose arrays are the inputs and the targets y."""

    model: Path
    folder: Path


class _Row(NamedTuple):
    """network: makes the network, given the data. epochs and rate (of Adam, falling to zero) for the training."""

    data: str
    network: Callable[[], gk.Model]
    epochs: int
    rate: float


_ROWS = {
    "mobilenetv2": _Row("mnist", lambda: gk.models.build("mobilenetv2", image=(1, 32, 32), classes=10), 4, 2e-3),
    "resnet18": _Row("mnist", lambda: gk.models.build("resnet", layers=18, image=(1, 32, 32), classes=10), 3, 1e-3),
    "bert": _Row(
        "sentences",
        lambda: gk.models.build("bert", vocab=8000, width=384, heads=6, layers=4, length=_TOKENS, dropout=0.3), 4, 3e-4,
    ),
}  # fmt: skip
NAMES = tuple(_ROWS)
_BATCH, _SAMPLES = 64, 24000


def trained(name: str, sources: Path, folder: Path) -> Trained:
    """Return the files of a row in `folder`. They are made if they are missing, which takes minutes."""
    row = _ROWS[name]
    arrays = folder / f"{row.data}-arrays"
    if not (arrays / "test.npz").exists():
        arrays.mkdir(parents=True, exist_ok=True)
        for part, held in {"train": 0, "test": 1}.items():
            np.savez(arrays / f"{part}.npz", **_MAKERS[row.data](sources)[held])
    path = folder / f"{name}-trained.onnx"
    if not path.exists():
        log(f"{name}: training")
        train, test = data.load(arrays)
        trainer = gk.Trainer(row.network(), optimizer=gk.optim.Adam(gk.optim.Cosine(row.rate)), seed=0)
        trainer.fit(train, test, epochs=row.epochs, batch_size=_BATCH, metrics="accuracy",
                    on_epoch=lambda number, record: log(f"{name}: epoch {number} {record}"))  # fmt: skip
        trainer.net.save(path)
    return Trained(path, arrays)


def _digits(sources: Path) -> tuple[dict[str, Any], ...]:
    """MNIST: the first images of the training part, and all 10,000 of the test part."""
    train, test = data.load(f"mnist:{sources / 'mnist'}")
    return tuple({"x": np.pad(part.inputs[:_SAMPLES], _BORDER), "y": part.targets[:_SAMPLES]} for part in (train, test))


def _sentences(sources: Path) -> tuple[dict[str, Any], ...]:
    """Movie reviews: the most frequent words, with a first token for the classifier; padding is masked."""
    parts = data.load(f"sentences:{sources / 'rt-polarity'}", size=7998, length=_TOKENS - 1, bucket=_TOKENS)

    def arrays(part: Any) -> dict[str, Any]:
        words = np.zeros((len(part), _TOKENS), np.int64)
        words[:, 1:] = part.arrays["x"][:, : _TOKENS - 1] + 1
        mask = (np.arange(_TOKENS) <= part.arrays["lengths"][:, None]).astype(np.int64)
        return {"x": words * mask, "mask": mask, "segments": np.zeros_like(words), "y": part.targets}

    return tuple(map(arrays, parts))


_MAKERS = {"mnist": _digits, "sentences": _sentences}
