"""Every exception that graphkit raises on purpose, with the exit code that the command line gives it.

Exit codes: 1 a check failed (or code of the caller), 2 usage, 3 unsupported operator, 4 invalid or unsafe model,
5 runtime failure.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class GraphkitError(Exception):
    """Base of all errors; `exit_code` is the process status of the command line."""

    exit_code = 5


class CheckFailed(GraphkitError):
    """A proof did not hold: outputs differ, a gradient is wrong."""

    exit_code = 1


class UserCodeError(CheckFailed):
    """Python code of the caller's that a command runs raised something; the message says what, and the line."""


class UsageError(GraphkitError):
    """The call is wrong: an unknown name, a bad option, an input that does not fit the declared type."""

    exit_code = 2


class InputError(UsageError):
    """A fed array does not fit the graph's input: name, rank, dtype, dimension or value."""


class DamagedSample(InputError):
    """A sample of a data set cannot be read: the message names the file, or the record, and what is wrong with it."""


class PassOrderError(UsageError):
    """Graph passes in an order that their declarations rule out; the message names the pass and what it lacks."""


class NotAnArray(UsageError, TypeError):
    """numpy was asked to compute with a graph value, which has no elements before the graph runs."""


class UnsupportedError(GraphkitError):
    """Something valid that graphkit (or the export target) cannot do; names the operators."""

    exit_code = 3


class UnsupportedOperator(UnsupportedError):
    """Operators without an implementation here; lists all of them at once."""


class MissingGradient(UnsupportedError):
    """Operators on the differentiated path that have no gradient rule; lists all of them at once."""


class InvalidModel(GraphkitError):
    """A file or a graph that is not well formed."""

    exit_code = 4


class UnsafeModel(InvalidModel):
    """A file that asks for something it must not have, such as data outside its own folder."""


class TypeMismatch(InvalidModel):
    """Operand types or shapes do not fit an operator; the message names the node."""


class RuntimeFailure(GraphkitError):
    """Execution failed: a kernel, a device, a rank, the disk."""


class RanksDiffer(RuntimeFailure):
    """The ranks of a job have different settings or states; every rank raises it, and the message names all sides."""


class NotFinite(RuntimeFailure):
    """A value that must be finite is NaN or infinite; the message says what made it."""


class WorkerError(RuntimeFailure):
    """A process that makes samples failed, was ended or does not go on; the message names data set and sample."""


class ReferenceEnded(RuntimeFailure):
    """The process of another engine, to compare with, has ended before it gave its results; the message says how."""


class OutOfMemory(RuntimeFailure, MemoryError):
    """Memory that is not there, or more than can be counted; the message names who asked, and for how much."""


class LimitReached(RuntimeFailure):
    """A run took longer, or a loop more iterations, than it may; the message says which limit, and where."""


class FileChanged(RuntimeFailure):
    """A file whose weights are read when they are needed was written meanwhile; the message names it."""


class Cancelled(RuntimeFailure):
    """An operation was taken back before it ran."""


class MissingDependency(RuntimeFailure):
    """An optional package is needed and is not installed; the message says what to install."""


class GraphkitWarning(UserWarning):
    """Base of all warnings: nothing is wrong with the result, and something is with what was given."""


class FileWarning(GraphkitWarning):
    """A file breaks a rule of its format where its meaning is still clear; the message says how it was read."""


class DeclarationWarning(FileWarning):
    """A file declares a shape that a tensor does not have; the declaration is ignored."""


# What Python and numpy raise for a value that does not fit what is done with it.
BAD_VALUE = (ArithmeticError, LookupError, TypeError, ValueError)

# What numpy says, as a ValueError, of arrays that are larger than its own limits.
_TOO_LARGE = ("array is too big", "Maximum allowed", "maximum supported", "iterator is too large")


def lacks_memory(error: BaseException) -> bool:
    """Whether an exception means that an array is larger than memory, or than a size can be."""
    too_large = isinstance(error, ValueError) and any(text in str(error) for text in _TOO_LARGE)
    return too_large or isinstance(error, MemoryError)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `"; did you mean 'x'?"` for the closest known name, or a short list of what exists."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]!r}?"
    if not known:
        return ""
    shown = ", ".join(repr(k) for k in known[:8])
    return f"; known: {shown}" + (", ..." if len(known) > 8 else "")
