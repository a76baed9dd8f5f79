"""NDArray: an array whose elements a background thread computes."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit.errors import UsageError
from graphkit.executor.run.array_queue import Copy
from graphkit.ir.graph import Value
from graphkit.ir.types import DType, TensorType, dtype_of
from graphkit.nd import elements
from graphkit.nd.runtime import Memory, fresh, locks, queue, settings
from graphkit.text import short_repr


class Signature:
    """A dtype and a shape. Equal ones are the same object, so that calls with arrays are found by identity."""

    __slots__ = ("dtype", "shape", "type", "nbytes", "size", "__weakref__")

    def __init__(self, dtype: np.dtype, shape: tuple[int, ...]):
        self.dtype, self.shape = dtype, shape
        self.type = TensorType(dtype_of(dtype), shape)
        self.nbytes = self.type.nbytes
        self.size = self.nbytes // dtype.itemsize if dtype.itemsize else 0


# Signatures that are found fast, and all that are in use.
_signatures: dict[tuple[np.dtype, tuple[int, ...]], Signature] = {}
_used: weakref.WeakValueDictionary[tuple[np.dtype, tuple[int, ...]], Signature] = weakref.WeakValueDictionary()
_MOST_SIGNATURES = 4096


def signature(dtype: np.dtype, shape: tuple[int, ...]) -> Signature:
    """Return the signature of arrays of this dtype and shape. Raises UsageError for dtypes that graphkit lacks."""
    found = _signatures.get((dtype, shape))
    if found is None:
        if dtype.hasobject or dtype.kind in "SU":
            raise UsageError(f"gk.nd has no arrays of dtype {dtype}: strings are values of graphs only")
        with locks.listing:
            found = _used.get((dtype, shape))
            if found is None:
                found = _used[dtype, shape] = Signature(dtype, shape)
            if len(_signatures) >= _MOST_SIGNATURES:
                _signatures.clear()
            _signatures[dtype, shape] = found
    return found


_NO_ATTRS: Mapping[str, Any] = MappingProxyType({})


class NDArray(Value):
    """An array. Operations on it return at once, and a background thread computes the elements.

    `gk.nd.array`, `gk.nd.zeros` and related functions make arrays. All functions of operators, such as `gk.relu`, take
    them and return arrays. Methods that read elements (`asnumpy`, `asscalar`, `wait_to_read`, `print`) wait until they
    are computed. They raise the errors of the operations that compute them.

    Indexing with integers and slices, `reshape` and `T` return views, which share the memory, as in numpy.

    Attributes:
        grad: The gradient that the latest `backward` computed, after `attach_grad`; else None.
    """

    __slots__ = ("_data", "_memory", "_signature", "_origin", "_grad_req", "grad")

    _data: np.ndarray
    _memory: Memory
    _signature: Signature
    # The recorded call that computed it (`tape.Origin`).
    _origin: Any
    _grad_req: str
    grad: NDArray | None

    # As a graph value, it is an input without a name.
    node = None  # type: ignore[misc]
    index = 0  # type: ignore[misc]
    name = ""  # type: ignore[misc]
    role = "data"  # type: ignore[misc]
    attrs = _NO_ATTRS  # type: ignore[misc]

    def __init__(self, data: np.ndarray, memory: Memory, signature: Signature):
        self._data = data
        self._memory = memory
        if memory.nbytes < 0:
            memory.nbytes = data.nbytes
        self._signature = signature
        self._origin = None
        self._grad_req = ""
        self.grad = None

    if TYPE_CHECKING:
        # `methods` installs them, because they call operators.
        def __add__(self, other: Any) -> NDArray: ...
        def __radd__(self, other: Any) -> NDArray: ...
        def __sub__(self, other: Any) -> NDArray: ...
        def __rsub__(self, other: Any) -> NDArray: ...
        def __mul__(self, other: Any) -> NDArray: ...
        def __rmul__(self, other: Any) -> NDArray: ...
        def __truediv__(self, other: Any) -> NDArray: ...
        def __rtruediv__(self, other: Any) -> NDArray: ...
        def __pow__(self, other: Any) -> NDArray: ...
        def __matmul__(self, other: Any) -> NDArray: ...
        def __lt__(self, other: Any) -> NDArray: ...
        def __le__(self, other: Any) -> NDArray: ...
        def __gt__(self, other: Any) -> NDArray: ...
        def __ge__(self, other: Any) -> NDArray: ...
        def __neg__(self) -> NDArray: ...
        def __getitem__(self, key: Any) -> NDArray: ...
        def __iadd__(self, other: Any) -> NDArray: ...
        def __isub__(self, other: Any) -> NDArray: ...
        def __imul__(self, other: Any) -> NDArray: ...
        def __itruediv__(self, other: Any) -> NDArray: ...
        def __setitem__(self, key: Any, value: Any) -> None: ...
        def __iter__(self) -> Iterator[NDArray]: ...
        def reshape(self, *shape: Any) -> NDArray: ...
        def transpose(self, *axes: Any) -> NDArray: ...
        def astype(self, dtype: Any, copy: bool = True) -> NDArray: ...
        def copy(self) -> NDArray: ...
        def __copy__(self) -> NDArray: ...
        def copyto(self, other: NDArray) -> NDArray: ...
        def fill(self, value: Any) -> None: ...
        def ravel(self, order: str = "C") -> NDArray: ...
        def flatten(self, order: str = "C") -> NDArray: ...
        def squeeze(self, axis: Any = None) -> NDArray: ...
        def swapaxes(self, axis1: int, axis2: int) -> NDArray: ...
        def clip(self, min: Any = None, max: Any = None, out: None = None) -> NDArray: ...
        def round(self, decimals: int = 0, out: None = None) -> NDArray: ...
        def take(self, indices: Any, axis: int | None = None, out: None = None, mode: str = "raise") -> NDArray: ...
        def repeat(self, repeats: Any, axis: int | None = None) -> NDArray: ...
        def dot(self, b: Any) -> NDArray: ...
        def any(self, axis: Any = None, out: None = None, keepdims: bool = False) -> NDArray: ...
        def all(self, axis: Any = None, out: None = None, keepdims: bool = False) -> NDArray: ...
        def max(self, axis: Any = None, out: None = None, keepdims: bool = False) -> NDArray: ...
        def min(self, axis: Any = None, out: None = None, keepdims: bool = False) -> NDArray: ...
        def sum(self, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False) -> NDArray: ...
        def prod(self, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False) -> NDArray: ...
        def mean(self, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False) -> NDArray: ...
        def var(
            self, axis: Any = None, dtype: Any = None, out: None = None, ddof: float = 0, keepdims: bool = False
        ) -> NDArray: ...
        def std(
            self, axis: Any = None, dtype: Any = None, out: None = None, ddof: float = 0, keepdims: bool = False
        ) -> NDArray: ...
        def argmax(self, axis: int | None = None, out: None = None, *, keepdims: bool = False) -> NDArray: ...
        def argmin(self, axis: int | None = None, out: None = None, *, keepdims: bool = False) -> NDArray: ...
        def cumsum(self, axis: int | None = None, dtype: Any = None, out: None = None) -> NDArray: ...
        def detach(self) -> NDArray: ...
        def attach_grad(self, grad_req: str = "write") -> None: ...
        def backward(self, head_grads: NDArray | None = None, retain_graph: bool = False) -> None: ...
        @property
        def T(self) -> NDArray: ...  # noqa: N802
        @property
        def mT(self) -> NDArray: ...  # noqa: N802

    # --- facts, which need no elements ----------------------------------------------------------------

    @property  # type: ignore[misc]
    def type(self) -> TensorType:
        return self._signature.type

    @property
    def tensor(self) -> TensorType:
        return self._signature.type

    @property
    def dtype(self) -> np.dtype:  # type: ignore[override]
        """The element type, as numpy's dtype."""
        return self._signature.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the axes."""
        return self._signature.shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self._signature.shape)

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self._signature.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return self._data.size

    @property
    def nbytes(self) -> int:
        """The number of bytes of all elements."""
        return self._signature.nbytes

    @property
    def itemsize(self) -> int:
        """The number of bytes of one element."""
        return self._signature.dtype.itemsize

    @property
    def is_input(self) -> bool:
        return True

    # --- elements -------------------------------------------------------------------------------------

    def wait_to_read(self) -> None:
        """Wait until the elements are computed. Raises the error of the operation that failed to compute them."""
        memory = self._memory
        error = queue().wait(memory.state if memory.maker is None else memory.readable())
        if error is not None:
            raise fresh(error)

    def wait_to_write(self) -> None:
        """Wait until no pending operation reads or writes the array. Raises errors like `wait_to_read`."""
        error = queue().wait(self._memory.readable(), exclusive=True)
        if error is not None:
            raise fresh(error)

    def asnumpy(self) -> np.ndarray:
        """Wait, and return a copy as a numpy array."""
        return self._elements().copy()

    def _elements(self) -> np.ndarray:
        """Wait, and return the elements. Raises UsageError while a function is traced: they would become constants."""
        if settings.capture is not None:
            raise UsageError(
                f"array of {self.type}: a hybridized function cannot read elements, which may differ in later calls; "
                "use operators, or pass the number as an argument"
            )
        self.wait_to_read()
        return self._data

    def asscalar(self) -> Any:
        """Wait, and return the only element as a Python number. Raises UsageError for any other number of elements."""
        if self._data.size != 1:
            raise UsageError(f"asscalar of {self.describe()}: the array must have one element")
        found = self._elements().item()
        # Most numbers are floats, and reading the dtype takes longer than reading the element.
        return float(found) if type(found) is not float and self.tensor.dtype is DType.BFLOAT16 else found

    def item(self, *place: Any) -> Any:
        """Wait, and return one element as a Python number: the only one, that at a position, or at an index."""
        if not place:
            return self.asscalar()
        try:
            found = self._elements().item(*place)
            return float(found) if self.tensor.dtype is DType.BFLOAT16 else found
        except (IndexError, TypeError, ValueError) as error:
            raise UsageError(f"item of {self.describe()}: {error}") from None

    def tobytes(self) -> bytes:
        """Wait, and return the bytes of the elements, in the order of rows."""
        return self._elements().tobytes()

    __bytes__ = tobytes

    def tolist(self) -> Any:
        """Wait, and return the elements as nested lists of Python numbers."""
        return self.asnumpy().tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("an NDArray is converted to a numpy array by a copy")
        found = self.asnumpy()
        return found if dtype is None else found.astype(dtype, copy=False)

    def __dlpack__(self, **options: Any) -> Any:
        return self.asnumpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._data.__dlpack_device__()

    def __float__(self) -> float:
        return float(self.asscalar())

    def __int__(self) -> int:
        return int(self.asscalar())

    def __index__(self) -> int:
        if not (self.tensor.dtype.is_integer and self._data.size == 1):
            raise TypeError(f"{self.describe()} is not an integer")
        return int(self.asscalar())

    def __bool__(self) -> bool:
        if self._data.size != 1:
            raise UsageError(f"{self.describe()} has no truth value: it does not have exactly one element")
        return bool(self.asscalar())

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    # Arrays are compared element by element, but a dict or set finds the object itself.
    __hash__ = object.__hash__

    def describe(self) -> str:
        """Return the type for messages, without waiting for the elements."""
        return f"array: {self.type}"

    def __str__(self) -> str:
        self.wait_to_read()
        return str(self._data)

    def __format__(self, spec: str) -> str:
        """Format the number of an array with one element, or else the type. Messages use `describe`, which is fast."""
        if settings.capture is None and (self._data.size == 1 or spec):
            return format(self.asscalar(), spec)
        return self.describe()

    def __repr__(self) -> str:
        error = queue().wait(self._memory.readable())
        if error is not None:
            return short_repr(self, lambda: [f"{self.type}", f"failed: {error}"])
        return f"{self._data}\n<NDArray {self.dtype}{list(self.shape)}>"

    def __deepcopy__(self, memo: dict[int, Any]) -> NDArray:
        return own(self.asnumpy())

    def __reduce__(self) -> Any:
        return own, (self.asnumpy(),)


def own(data: np.ndarray) -> NDArray:
    """Return an array that uses the memory of `data`. The caller must not change `data` afterwards."""
    return NDArray(data, Memory(), signature(data.dtype, data.shape))


def view(x: NDArray, data: np.ndarray) -> NDArray:
    """Return an array for `data`, which is part of the memory of `x`."""
    return NDArray(data, x._memory, signature(data.dtype, data.shape))


def contiguous(x: NDArray) -> NDArray:
    """Return `x` itself if its elements are contiguous and aligned, or else a copy."""
    return x if x._data.flags.carray else copied(x)


def copied(x: NDArray) -> NDArray:
    """Return a copy of an array, which a background thread makes."""
    made = own(elements.empty(x.shape, x.dtype))
    queue().push_copy("copy", x._data, made._data, (x._memory.readable(),), (made._memory.state,))
    return made


def write(source: NDArray, target: NDArray, data: np.ndarray | None = None) -> None:
    """Copy `source`, of the same shape and dtype, to an array, or to the part `data` of its memory."""
    copy = _copy_to(source, target, target._data if data is None else data)
    queue().push_copy("assignment", *copy)


def write_all(sources: Iterable[NDArray], targets: Iterable[NDArray]) -> None:
    """Copy each source to the target of the same shape and dtype at its position."""
    copies = [_copy_to(source, target, target._data) for source, target in zip(sources, targets, strict=True)]
    queue().push_copies("assignment", copies)


def _copy_to(source: NDArray, target: NDArray, data: np.ndarray) -> Copy:
    """Return the arguments of a copy to `data`, a part of the memory of `target`, and count the write."""
    memory = target._memory
    memory.written()
    given, state = source._memory, memory.state
    read = given.state if given.maker is None else given.readable()
    # Elements that are not written keep their error.
    return source._data, data, (read,) if data.nbytes == memory.nbytes else (read, state), (state,)
