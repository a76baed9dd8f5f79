"""Write predictions to .csv, .jsonl and .npz files, completely or not at all."""

from __future__ import annotations

import csv
import io
import json
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from graphkit.errors import InputError, RuntimeFailure, UsageError
from graphkit.inference.predict import Prediction, PredictionStream
from graphkit.ir.atomic import PendingFile
from graphkit.ir.limits import require_memory
from graphkit.ir.npz import write_member

SUFFIXES = (".csv", ".jsonl", ".npz")

# Maximum number of columns of output values in a .csv file.
MOST_COLUMNS = 1024


@dataclass(frozen=True)
class Written:
    """Summary of predictions that were written to a file.

    Attributes:
        samples: Number of samples, with those that could not be read.
        failed: Number of samples that could not be read.
        errors: Messages of the first of them.
        seconds: Duration, from the first read of a sample.
    """

    samples: int
    failed: int
    errors: tuple[str, ...]
    seconds: float


# Number of messages in `Written.errors`.
_SHOWN = 10


def check_target(path: str | Path) -> Path:
    """Return the path of a file for predictions. Raises UsageError if its suffix is unknown."""
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise UsageError(f"{path}: the name of the file must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    return path


def write_predictions(
    predictions: PredictionStream, path: str | Path, *, advance: Callable[[], None] | None = None
) -> Written:
    """Write all predictions to a file. The file appears when it is complete; an error leaves nothing behind.

    - `.csv`: one row per sample: file, or number of the row; classes with their probabilities; values of all outputs
      that do not score classes.
    - `.jsonl`: one JSON object per sample with the same content. Values are nested lists.
    - `.npz`: only the outputs, as arrays whose first axis counts samples.

    Args:
        predictions: The result of `gk.predict`, at its beginning.
        path: The file. Its suffix selects the format.
        advance: Called after each sample.

    Raises:
        UsageError: The suffix is unknown, or the outputs do not fit the format.
        RuntimeFailure: The file cannot be written.
    """
    path = check_target(path)
    if path.suffix == ".npz" and predictions.skip_errors:
        raise UsageError(f"{path}: an .npz file has no place for errors; use .csv or .jsonl to skip unreadable samples")
    if any(path.exists() and source.exists() and path.samefile(source) for source in predictions.samples.files):
        raise UsageError(f"{path} is an input; choose another name for the output")
    start = time.perf_counter()
    errors: list[str] = []
    count = 0
    try:
        with PendingFile(path.parent, path.name) as file:
            writer = _WRITERS[path.suffix](file, predictions)
            for prediction in predictions:
                writer.add(prediction)
                count += 1
                if prediction.error is not None and len(errors) < _SHOWN:
                    errors.append(prediction.error)
                if advance is not None:
                    advance()
            writer.end()
            file.commit(path)
    except OSError as error:
        raise RuntimeFailure(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        predictions.close()
    return Written(count, predictions.failed, tuple(errors), time.perf_counter() - start)


class _Writer(Protocol):
    def add(self, prediction: Prediction) -> None: ...

    def end(self) -> None: ...


def _values(stream: PredictionStream, prediction: Prediction) -> dict[str, np.ndarray]:
    """Return the outputs to write: all except the one whose classes are written."""
    return {name: array for name, array in prediction.outputs.items() if name != stream.class_output}


def _sample(prediction: Prediction) -> dict[str, Any]:
    """Return the column that identifies a sample."""
    return {"row": prediction.number} if prediction.name is None else {"file": prediction.name}


class _Csv:
    """Rows with a header, which the first sample that can be read determines."""

    def __init__(self, file: PendingFile, stream: PredictionStream):
        self._file, self._stream = file, stream
        self._shapes: dict[str, tuple[int, ...]] | None = None
        self._first: Prediction | None = None
        self._waiting: list[Prediction] = []  # samples with errors before the header
        self._text = io.StringIO(newline="")
        self._csv = csv.writer(self._text)

    def add(self, prediction: Prediction) -> None:
        if prediction.error is not None and self._shapes is None:
            self._waiting.append(prediction)
            return
        if self._shapes is None:
            self._begin(prediction)
        self._row(prediction)

    def end(self) -> None:
        if self._shapes is None:
            self._begin(None)

    def _begin(self, first: Prediction | None) -> None:
        values = {} if first is None else _values(self._stream, first)
        classes = 0 if first is None else len(first.classes)
        self._shapes = {name: array.shape for name, array in values.items()}
        width = sum(array.size for array in values.values())
        if width > MOST_COLUMNS:
            listed = ", ".join(f"{name} {list(array.shape)}" for name, array in values.items())
            raise UsageError(
                f"the outputs ({listed}) have {width:,} values per sample, and a .csv file gets at most "
                f"{MOST_COLUMNS:,} columns; write a .jsonl or .npz file, or choose an output (--output-name)"
            )
        header = ["file" if self._stream.samples.names is not None else "row"]
        for place in range(classes):
            header += ["class", "probability"] if not place else [f"class_{place + 1}", f"probability_{place + 1}"]
        for name, array in values.items():
            header += [name] if array.size == 1 else [name + _index(place) for place in np.ndindex(array.shape)]
        self._width = len(header)
        self._csv.writerow([*header, "error"] if self._stream.skip_errors else header)
        for prediction in self._waiting:
            self._row(prediction)
        self._waiting.clear()
        self._flush()

    def _row(self, prediction: Prediction) -> None:
        row: list[Any] = list(_sample(prediction).values())
        if prediction.error is None:
            for found in prediction.classes:
                row += [found.number if found.name is None else found.name, f"{found.probability:.7g}"]
            for name, array in _values(self._stream, prediction).items():
                self._check(name, array, prediction)
                row += [str(value) for value in array.reshape(-1)]
        if self._stream.skip_errors:
            row += [""] * (self._width - len(row)) + [prediction.error or ""]
        self._csv.writerow(row)
        self._flush()

    def _check(self, name: str, array: np.ndarray, prediction: Prediction) -> None:
        assert self._shapes is not None
        if array.shape != self._shapes[name]:
            raise _differs(name, array.shape, self._shapes[name], prediction)

    def _flush(self) -> None:
        # File names that are not UTF-8 keep their bytes.
        self._file.write(self._text.getvalue().encode("utf-8", "surrogateescape"))
        self._text.seek(0)
        self._text.truncate()


def _index(place: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, place))}]"


def _differs(name: str, shape: tuple[int, ...], first: tuple[int, ...], prediction: Prediction) -> InputError:
    sample = prediction.name or f"row {prediction.number}"
    return InputError(
        f"{sample}: output {name!r} has the shape {list(shape)}, but that of the first sample has {list(first)}; write "
        "a .jsonl file, which allows different shapes"
    )


class _JsonLines:
    """One JSON object per line. NaN and infinities are strings, because JSON has no numbers for them."""

    def __init__(self, file: PendingFile, stream: PredictionStream):
        self._file, self._stream = file, stream

    def add(self, prediction: Prediction) -> None:
        record = _sample(prediction)
        if prediction.error is not None:
            record["error"] = prediction.error
        if prediction.classes:
            record["classes"] = [
                {"class": c.number, "name": c.name, "probability": _finite(c.probability)} for c in prediction.classes
            ]
        if values := _values(self._stream, prediction):
            record["outputs"] = {name: _json(array) for name, array in values.items()}
        # "backslashreplace" writes bytes of file names that are not UTF-8 as escapes of JSON.
        self._file.write(json.dumps(record, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n")

    def end(self) -> None:
        """Nothing follows the last line."""


def _finite(value: Any) -> Any:
    return value if not isinstance(value, float) or np.isfinite(value) else str(value)


def _json(array: np.ndarray) -> Any:
    if array.dtype.kind == "V":  # bfloat16 and other types that numpy lacks
        array = array.astype(np.float32)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return _nested(array.tolist())
    return array.tolist()


def _nested(value: Any) -> Any:
    return [_nested(item) for item in value] if isinstance(value, list) else _finite(value)


class _Npz:
    """Arrays of all samples, which are allocated when the first sample is known."""

    def __init__(self, file: PendingFile, stream: PredictionStream):
        self._file, self._count = file, len(stream)
        self._arrays: dict[str, np.ndarray] = {}

    def add(self, prediction: Prediction) -> None:
        for name, array in prediction.outputs.items():
            if name not in self._arrays:
                require_memory(self._count * array.nbytes, f"output {name!r} of {self._count:,} samples")
                self._arrays[name] = np.empty((self._count, *array.shape), array.dtype)
            whole = self._arrays[name]
            if whole.shape[1:] != array.shape:
                raise _differs(name, array.shape, whole.shape[1:], prediction)
            whole[prediction.number] = array

    def end(self) -> None:
        with zipfile.ZipFile(self._file.path, "w") as archive:
            for name, array in self._arrays.items():
                write_member(archive, name, array, instead="a .jsonl file")


_WRITERS: Mapping[str, Callable[[PendingFile, PredictionStream], _Writer]] = {
    ".csv": _Csv, ".jsonl": _JsonLines, ".npz": _Npz,
}  # fmt: skip
