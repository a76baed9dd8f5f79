"""Samples with their predictions as HTML: images, text or numbers."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Sequence
from html import escape

import numpy as np

from graphkit.data import TokenStream, Vocabulary
from graphkit.report.png import encode, is_picture, pixels
from graphkit.report.predictions import Predictions

# Maximum number of characters of a text, numbers of a sample, and tokens of a section of running text.
_CHARACTERS, _NUMBERS, _TOKENS = 300, 8, 60


def shown(found: Predictions, places: np.ndarray) -> str:
    """Return HTML of the samples at some indices of `found`: images in a grid, otherwise a table."""
    if isinstance(found.data, TokenStream):
        return _running_text(found, found.data, places)
    arrays = arrays_of(found, places)
    picture = _pictures(found, arrays)
    if picture is not None:
        figures = (_figure(found, place, sample) for place, sample in zip(places, picture, strict=True))
        return f'<div class="pictures">{"".join(figures)}</div>'
    vocabulary, text = found.data.vocabulary, tokens_of(found, arrays)
    if vocabulary is not None and text is not None:
        return _table("text", (text_of(vocabulary, row) for row in text), found, places)
    if not arrays:
        return table_of(found, places)
    first, array = next(iter(arrays.items()))
    return _table(first, (_numbers(row) for row in array), found, places)


def table_of(found: Predictions, places: np.ndarray) -> str:
    """Return HTML of the samples at some indices of `found`: a table without their inputs."""
    return _table("", ("" for _ in places), found, places)


def _pictures(found: Predictions, arrays: dict[str, np.ndarray]) -> np.ndarray | None:
    """Return the input that consists of images, [samples, C, H, W]; None if there is none."""
    preprocess = found.data.preprocess
    for array in arrays.values():
        last = array.ndim == 4 and preprocess is not None and preprocess.layout == "NHWC"
        moved = np.moveaxis(array, -1, 1) if last else array
        if is_picture(moved.shape[1:]):
            return moved
    return None


def arrays_of(found: Predictions, places: np.ndarray) -> dict[str, np.ndarray]:
    """Return inputs of some samples by name, with samples along axis 0. Inputs for the whole batch are left out."""
    inputs, _ = found.data.take(found.index[places])
    named = inputs if isinstance(inputs, dict) else {found.data.names[0] if found.data.names else "input": inputs}
    axes = {name: found.data.axes.get(name, 0) for name in named}
    return {
        name: np.moveaxis(np.asarray(array), axes[name] or 0, 0)
        for name, array in named.items()
        if axes[name] is not None
    }


def tokens_of(found: Predictions, arrays: dict[str, np.ndarray]) -> np.ndarray | None:
    """Return the input that is text, integers [samples, tokens], if the data have a vocabulary."""
    if found.data.vocabulary is None:
        return None
    return next((a for a in arrays.values() if a.ndim == 2 and a.dtype.kind == "i"), None)


def _figure(found: Predictions, place: int, sample: np.ndarray) -> str:
    data = base64.b64encode(encode(pixels(sample))).decode()
    title = f"{_name(found, place)}: {'; '.join(f'{n} {v}' for n, v in said(found, place))}"
    small = max(sample.shape[1:]) < 64
    return (
        f'<figure class="{_mark(found, place)}" title="{escape(title)}"><img alt="{escape(title)}"'
        f'{" class=small" if small else ""} src="data:image/png;base64,{data}">'
        f"<figcaption>{_caption(found, place)}</figcaption></figure>"
    )


def _name(found: Predictions, place: int) -> str:
    """Return the name of a sample, else its number."""
    return f"sample {found.index[place]}" if found.names is None else found.names[place]


def _mark(found: Predictions, place: int) -> str:
    """Return the CSS class of a sample: right, wrong or neither."""
    if found.target is None or found.predicted is None or not found.of_classes:
        return "neither"
    return "right" if found.target[place] == found.predicted[place] else "wrong"


def _caption(found: Predictions, place: int) -> str:
    if found.target is None or found.predicted is None:
        return f"loss {_number(found.loss[place])}"
    target, predicted = found.target[place], found.predicted[place]
    if not found.of_classes:
        return f"{_number(predicted)} <small>target: {_number(target)}</small>"
    said = f"<b>{escape(found.classes[predicted])}</b>"
    if target != predicted:
        said += f" <small>target: {escape(found.classes[target])}</small>"
    return said


def said(found: Predictions, place: int) -> Iterator[tuple[str, str]]:
    """Yield the columns of a sample with their values."""
    if found.target is not None and found.predicted is not None:
        target, predicted = found.target[place], found.predicted[place]
        of_classes = found.of_classes
        yield "target", found.classes[target] if of_classes else _number(target)
        yield "predicted", found.classes[predicted] if of_classes else _number(predicted)
    if found.probability is not None:
        yield "probability", _number(found.probability[place])
    yield "loss" if found.of_classes else "squared error", _number(found.loss[place])


def _table(head: str, cells: Iterator[str], found: Predictions, places: np.ndarray) -> str:
    names = [name for name, _ in said(found, int(places[0]))] if len(places) else []
    rows = []
    for place, cell in zip(places, cells, strict=True):
        values = "".join(f"<td>{escape(v)}</td>" for _, v in said(found, int(place)))
        mark = _mark(found, int(place))
        rows.append(
            f'<tr class="{mark}"><td>{_place(found, int(place))}</td><td class="sample">{cell}</td>{values}</tr>'
        )
    columns = "".join(f"<th>{escape(n)}</th>" for n in ("sample", head, *names))
    table = f'<table class="samples"><thead><tr>{columns}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    return f'<div class="wide">{table}</div>'


def _place(found: Predictions, place: int) -> str:
    """Return the number of a sample, and its name if it has one, as HTML."""
    number = str(found.index[place])
    return number if found.names is None else f"{number} <small>{escape(found.names[place])}</small>"


def text_of(vocabulary: Vocabulary, row: np.ndarray) -> str:
    """Return a row of tokens as escaped text. Numbers outside the vocabulary are left out."""
    known = [n for n in row if 0 <= n < len(vocabulary)]
    text = vocabulary.decode(known)
    return escape(text if len(text) <= _CHARACTERS else text[:_CHARACTERS] + " ...")


def _numbers(row: np.ndarray) -> str:
    flat = np.asarray(row).reshape(-1)
    shown = ", ".join(_number(v) for v in flat[:_NUMBERS])
    return escape(shown + (f", ... ({flat.size} numbers)" if flat.size > _NUMBERS else ""))


def _number(value: float) -> str:
    number = float(value)
    if not math.isfinite(number):
        return str(number)
    return f"{number:.4g}"


# --- running text ---------------------------------------------------------------------------------------


def _running_text(found: Predictions, data: TokenStream, places: Sequence[int] | np.ndarray) -> str:
    """Return sections of text around some tokens. The larger the loss of a token, the darker it is."""
    of_token = {int(t): i for i, t in enumerate(found.index)}
    pieces, taken = [], set()
    for place in places:
        start = int(found.index[place]) // _TOKENS * _TOKENS
        if start not in taken:
            taken.add(start)
            pieces.append(_piece(found, data, of_token, start))
    return f'<div class="text">{"".join(pieces)}</div>'


def _piece(found: Predictions, data: TokenStream, of_token: dict[int, int], start: int) -> str:
    space = " " if data.vocabulary.level == "word" else ""
    tokens = data.vocabulary.tokens
    parts = []
    for at in range(start, min(start + _TOKENS, len(data))):
        place = of_token.get(at)
        if place is None or found.predicted is None or found.target is None:
            continue
        said, target = tokens[found.predicted[place]], tokens[found.target[place]]
        title = f"{target!r}: probability {_number(math.exp(-found.loss[place]))}, predicted {said!r}"
        dark = min(max(found.loss[place] / 8.0, 0.0), 1.0) if math.isfinite(found.loss[place]) else 1.0
        parts.append(f'<span title="{escape(title)}" style="--d:{dark:.2f}">{escape(target + space)}</span>')
    return f"<p>{''.join(parts)}</p>"
