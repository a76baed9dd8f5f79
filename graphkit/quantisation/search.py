"""Search for the layers that must stay in float, so that a model keeps its accuracy."""

from __future__ import annotations

import glob
from collections.abc import Callable, Sequence
from dataclasses import replace

from graphkit.errors import CheckFailed
from graphkit.quantisation.quantize import Quantized
from graphkit.text import listed, quantity
from graphkit.train.progress import ProgressBar

# Quantises the model: patterns to include, and patterns to exclude.
Make = Callable[[Sequence[str], Sequence[str]], Quantized]


def search_layers(
    first: Quantized,
    make: Make,
    sqnr: Callable[[Quantized], float],
    fits: Callable[[Quantized], bool],
    *,
    progress: bool | None = False,
) -> Quantized:
    """Return a model in which as few layers as possible stay in float.

    Each layer is quantised alone, which gives an order: the layer with the lowest signal-to-noise ratio comes first.
    Binary search then finds the smallest number of layers, in this order, that must stay in float.

    Args:
        first: The model with all layers quantised, which does not fit.
        make: Quantises the model.
        sqnr: Returns the signal-to-quantisation-noise ratio of the outputs in dB.
        fits: Whether the accuracy of a quantised model is high enough.
        progress: Whether to show a progress bar on stderr. None: only on a terminal.

    Raises:
        CheckFailed: The accuracy is too low even if only one layer is quantised.
    """
    names = [name for name, _ in first.layers]
    with ProgressBar(progress) as bar:
        bar.start("sensitivity of layers", len(names), transient=True)
        ratios = {}
        for name in names:
            ratios[name] = sqnr(make([glob.escape(name)], ()))
            bar.advance()
        order = sorted(names, key=lambda name: ratios[name])
        best: Quantized | None = None
        least, most = 1, len(order) - 1
        while least <= most:
            count = (least + most) // 2
            found = make((), [glob.escape(name) for name in order[:count]])
            if fits(found):
                best, most = found, count - 1
            else:
                least = count + 1
    if best is None:
        raise CheckFailed(
            f"search: the accuracy falls too much even if only the layer {order[-1]!r} is quantised. Allow a larger "
            "drop (--max-drop), or choose another --method or --mode"
        )
    left = order[: len(names) - len(best.layers)]
    note = f"the search left {quantity(len(left), 'layer')} in float: {listed(map(repr, left), len(left), 8)}"
    return replace(best, notes=(*best.notes, note))
