"""Data from a function in a Python file of the user: FILE.py:FUNCTION."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from graphkit.data.dataset import Dataset, Splits
from graphkit.data.files.arrays import of_arrays
from graphkit.errors import InputError
from graphkit.user_code import function_of, running


def loader(file: str, name: str) -> Callable[..., Dataset | Splits]:
    """Return a loader with the function's own parameters. Raises as `function_of`; InputError for other results.

    The function must return a dict of arrays as in an .npz file, (inputs, targets), a Dataset, or Splits if there are
    two parts.
    """
    function = function_of(file, name)

    @functools.wraps(function)
    def load(**given: Any) -> Dataset | Splits:
        with running(file):
            made = function(**given)
        if isinstance(made, (Dataset, Splits)):
            return made
        spec = f"{file}:{name}"
        if isinstance(made, dict):
            return of_arrays({key: np.asarray(array) for key, array in made.items()}, spec)
        if isinstance(made, tuple) and len(made) == 2:
            return Dataset(*made, name=spec)
        raise InputError(
            f"{spec} must return a dict of arrays by name, (inputs, targets), a Dataset or Splits, not "
            f"{type(made).__name__}"
        )

    return load
