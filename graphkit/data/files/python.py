"""Data from a function in a Python file of the user: FILE.py:FUNCTION."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from graphkit.data.dataset import Dataset, Splits
from graphkit.data.files.arrays import of_arrays
from graphkit.errors import InputError, UsageError
from graphkit.user_code import function_of, running


def loader(file: str, name: str) -> Callable[..., Dataset | Splits]:
    """Return a loader with the parameters of a function in a Python file.

    The function must return a dict of arrays as in an .npz file, (inputs, targets), a Dataset, or Splits if there are
    two parts. The loader raises UsageError if a parameter without a default is missing, and InputError if the function
    returns something else. Raises the errors of `function_of`.
    """
    function = function_of(file, name)

    @functools.wraps(function)
    def load(**given: Any) -> Dataset | Splits:
        spec = f"{file}:{name}"
        if missing := [n for n in _needed(function) if n not in given]:
            options = " ".join(f"--data-option {n}=..." for n in missing)
            values = ", ".join(f"{n}=..." for n in missing)
            raise UsageError(f"{spec} needs a value for {', '.join(missing)}: pass {values} ({options})")
        with running(file):
            made = function(**given)
        if isinstance(made, (Dataset, Splits)):
            return made
        if isinstance(made, dict):
            return of_arrays({key: np.asarray(array) for key, array in made.items()}, spec)
        if isinstance(made, tuple) and len(made) == 2:
            return Dataset(*made, name=spec)
        raise InputError(
            f"{spec} must return a dict of arrays by name, (inputs, targets), a Dataset or Splits, not "
            f"{type(made).__name__}"
        )

    return load


def _needed(function: Callable[..., Any]) -> list[str]:
    """Return the names of the parameters without a default that can be passed by name."""
    parameters = inspect.signature(function).parameters.items()
    return [n for n, p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
