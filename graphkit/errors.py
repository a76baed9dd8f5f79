"""Every exception that graphkit raises on purpose, with its exit code on the command line.

Exit codes: 1 a check failed (or code of the user), 2 usage, 3 unsupported operator, 4 invalid or unsafe model, 5
runtime failure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class GraphkitError(Exception):
    """Base class of all errors. `exit_code` is the exit code of the command line."""

    exit_code = 5


class CheckFailed(GraphkitError):
    """A check failed: outputs differ, or a gradient is wrong."""

    exit_code = 1


class UserCodeError(CheckFailed):
    """Python code of the user raised an exception in a command. The message gives the exception and the line."""


class UsageError(GraphkitError):
    """A call is wrong: an unknown name, an invalid option, an input that does not match the declared type."""

    exit_code = 2


class InputError(UsageError):
    """An input array or a data set has a wrong name, shape, dtype or value, or its file cannot be read."""


class DamagedSample(InputError):
    """A sample of a data set cannot be read. The message names the file or the record, and says what is wrong."""


class PassOrderError(UsageError):
    """Graph passes are in an invalid order. The message names the pass, and what must run before it."""


class NotAnArray(UsageError, TypeError):
    """numpy was called with a graph value, which has no elements before the graph runs."""


class UnsupportedError(GraphkitError):
    """graphkit or the export target does not support something valid. The message says what."""

    exit_code = 3


class UnsupportedOperator(UnsupportedError):
    """Operators are not implemented. The message lists all of them."""


class MissingGradient(UnsupportedError):
    """Operators on the way from the inputs to the differentiated output have no gradient. The message lists them."""


class InvalidModel(GraphkitError):
    """A file or a graph is not well formed."""

    exit_code = 4


class UnsafeModel(InvalidModel):
    """A file refers to something that it must not access, such as data outside its own folder."""


class TypeMismatch(InvalidModel):
    """Operands have types or shapes that an operator does not accept. The message names the node."""


class RuntimeFailure(GraphkitError):
    """Execution failed: a kernel, a device, a rank, the disk."""


class BackendError(RuntimeFailure):
    """A backend failed, or returned a wrong result. The message names the backend, the group and its nodes."""


class RanksDiffer(RuntimeFailure):
    """The ranks of a job have different settings or states. Every rank raises it; the message gives all values."""


class NotFinite(RuntimeFailure):
    """A value that must be finite is NaN or infinite. The message says what produced it."""


class WorkerError(RuntimeFailure):
    """A worker process failed, was killed or hangs. The message names data set and sample."""


class ReferenceEnded(RuntimeFailure):
    """The process that ran the reference engine ended before it returned its results. The message says how."""


class OutOfMemory(RuntimeFailure, MemoryError):
    """Memory cannot be allocated, or a size is too large to count. The message says for what, and how much."""


class LimitReached(RuntimeFailure):
    """A run took longer, or a loop more iterations, than allowed. The message gives the limit and the place."""


class FileChanged(RuntimeFailure):
    """A file changed after it was loaded, so weights that were not read yet are lost.

    The message names the file.
    """


class Cancelled(RuntimeFailure):
    """An operation was cancelled before it ran."""


class MissingDependency(RuntimeFailure):
    """An optional package is needed but not installed. The message says what to install."""


class GraphkitWarning(UserWarning):
    """Base class of all warnings. A warning means that the result is correct, but the input has a fault."""


class FileWarning(GraphkitWarning):
    """A file breaks a rule of its format, but has only one possible meaning. The message says how it was read."""


class DeclarationWarning(FileWarning):
    """A file declares a shape that a tensor does not have. The declaration is ignored."""


class BackendWarning(GraphkitWarning):
    """graphkit computes nodes for a backend: it could not compile a group, or no node is in a group."""


# Exceptions that Python and numpy raise for an operation on an unsuitable value.
BAD_VALUE = (ArithmeticError, LookupError, TypeError, ValueError)

# Parts of the messages of numpy's ValueError for an array larger than numpy's limits.
_TOO_LARGE = ("array is too big", "Maximum allowed", "maximum supported", "iterator is too large")


def lacks_memory(error: BaseException) -> bool:
    """Return whether an exception means that an array is larger than memory, or than any array can be."""
    too_large = isinstance(error, ValueError) and any(text in str(error) for text in _TOO_LARGE)
    return too_large or isinstance(error, MemoryError)


# Common names in machine learning -> names in graphkit. A hint gives the first one that is valid in that place.
_OTHER_NAMES = {
    "acc": ("accuracy",),
    "bce": ("sigmoid_binary_cross_entropy",),
    "categorical_crossentropy": ("softmax_cross_entropy",),
    "ce": ("softmax_cross_entropy",),
    "f1_score": ("f1",),
    "gpu": ("cuda",),
    "mean_absolute_error": ("mae", "l1"),
    "mean_squared_error": ("mse",),
    "onecycle": ("one-cycle",),
    "ppl": ("perplexity",),
    "roc_auc": ("auc",),
    "val_acc": ("valid_accuracy",),
    "val_accuracy": ("valid_accuracy",),
    "val_loss": ("valid_loss",),
    "valid_acc": ("valid_accuracy",),
}


def error_text(error: BaseException) -> str:
    """Return type and text of an error, such as "ValueError: no"; for errors of graphkit, only the text."""
    text, kind = str(error), type(error).__name__
    if not text:
        return kind
    return text if isinstance(error, GraphkitError) else f"{kind}: {text}"


def closest(name: str, known: Sequence[str], alike: float = 0.6) -> str | None:
    """Return the known name that is a synonym of `name`, else the most similar known name; None if none is similar.

    alike: Required similarity, 0 to 1. Three-letter names that differ in one letter have 0.67. For a long list of
    names, a higher value avoids wrong suggestions.
    """
    if not isinstance(name, str):
        return None
    meant = [other for other in _OTHER_NAMES.get(name, ()) if other in known]
    import difflib  # only errors need it

    return next(iter(meant or difflib.get_close_matches(name, known, n=1, cutoff=alike)), None)


def did_you_mean(name: str, known: Iterable[str], alike: float = 0.6, most: int = 8) -> str:
    """Return `"; did you mean 'x'?"` for the closest known name, or a list of the known names.

    Args:
        name: The unknown name.
        known: The known names.
        alike: Required similarity of a suggestion, 0 to 1. If no known name reaches it, the names are listed.
        most: Maximum number of names in the list.
    """
    known = list(dict.fromkeys(k for k in known if isinstance(k, str)))
    close = closest(name, known, alike)
    if close is not None:
        return f"; did you mean {close!r}?"
    if not known:
        return ""
    shown = ", ".join(repr(k) for k in known[:most])
    return f"; known: {shown}" + (", ..." if len(known) > most else "")
