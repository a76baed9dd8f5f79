from __future__ import annotations

from collections.abc import Callable, Hashable, Set
from typing import TYPE_CHECKING, Any

from graphkit.executor.devices.kernel import MOST_READ_BYTES, NativeKernel, VersionedArray, is_native
from graphkit.executor.devices.registry import make_kernel
from graphkit.executor.lower.lowering import ABSENT, Emission, Location, Lowering, Site
from graphkit.executor.memory.placement import Placement
from graphkit.ir.graph import Node, Value, native_sweeps
from graphkit.ir.types import TensorType
from graphkit.ops import Op
from graphkit.ops._op import number_of
from graphkit.ops.pointwise import DIVISIONS, divides_integers
from graphkit.passes.core.sweep import read_positions

if TYPE_CHECKING:
    from graphkit.executor.devices.loading import _native


def unread_operands(kernel: NativeKernel, node: Node) -> Set[int]:
    """Return the positions of operands whose elements are not read. Their memory may contain another value."""
    if not isinstance(node.op, Op) or not node.op.shape_only:
        return frozenset()
    return set(kernel.optional_inputs).difference(read_positions(node))


class PreparedKernel(Lowering):
    """A kernel of the native extension for exactly these shapes.

    reads_all: Whether it reads every operand as it is: none is packed, and none is unread.
    """

    def __init__(self, kernel: NativeKernel, node: Node):
        self.kernel = kernel
        self.unread = unread_operands(kernel, node)
        self.scratch_bytes = int(kernel.scratch_bytes)
        self.inplace = kernel.inplace
        self.packing = kernel
        self.reads_all = not self.unread and not kernel.packed_inputs
        self._counts = kernel.input_count, kernel.output_count

    def emit(self, step: Emission) -> None:
        self.write(step.builder, step.name, step.inputs, step.outputs, step.scratch)

    def write(
        self,
        builder: _native.Builder,
        name: str,
        inputs: list[Location],
        outputs: list[Location],
        scratch: Location,
    ) -> None:
        operands, results = self._counts
        builder.kernel(name, self.kernel, _padded(inputs, operands), _padded(outputs, results), scratch)


class SharedKernels:
    """Lowerings to kernels of the device. Equal nodes of a graph share one: kernels have no state.

    Args:
        known: The arrays of parameters and constants, by storage.
    """

    def __init__(self, placement: Placement, known: dict[Value, VersionedArray]):
        self._placement, self._known = placement, known
        self._lowerings: dict[Hashable, PreparedKernel] = {}

    def lowerings(self, nodes: tuple[Node, ...], choose: Callable[[Node], Lowering]) -> list[Lowering]:
        """Return the lowering of each node: that of an equal earlier node, or `choose(node)`."""
        found: list[Lowering] = []
        for node, key in zip(nodes, self._keys(nodes), strict=True):
            if node.op.name in DIVISIONS and divides_integers(node):
                key = (*key, node.name or node.describe())
            lowering: Lowering | None = self._lowerings.get(key)
            if lowering is None:
                lowering = choose(node)
                if isinstance(lowering, PreparedKernel):
                    self._lowerings[key] = lowering
            found.append(lowering)
        return found

    def _keys(self, nodes: tuple[Node, ...]) -> list[tuple[Any, ...]]:
        """Return keys that are equal if the same kernel fits both nodes. All sizes must be known.

        A key contains ids of constants and of small parameters: it is valid while these arrays exist. A key also says
        which operands are the same value.
        """
        placement, native = self._placement, native_sweeps()
        if native is None:
            return [self._key(node) for node in nodes]
        return native.kernel_keys(nodes, placement.root, self._known, placement.used, _operator_key, _identity)

    def _key(self, node: Node) -> tuple[Any, ...]:
        root, known = self._placement.root, self._known
        places: dict[Value, int] = {}
        parts: list[Hashable] = [_operator_key(node.op)]
        for position, value in enumerate(node.inputs):
            if value is None or not isinstance(value.type, TensorType):
                parts += (None, None, None)
                continue
            storage = root.get(value)
            array = None if storage is None else known.get(storage)
            same = places.setdefault(value, position)
            parts += (value.type.number, same, None if array is None else _identity(value, value.type, array))
        for value in node.outputs:
            kind = value.type
            parts += (kind.number if isinstance(kind, TensorType) else None, value in self._placement.used)
        return tuple(parts)


def _operator_key(operator: Any) -> Hashable:
    return number_of(operator) if isinstance(operator, Op) else operator


def _identity(value: Value, kind: TensorType, array: VersionedArray) -> int:
    """Return the id of an array whose elements a kernel may depend on, else 0."""
    # Factories read Constant nodes of any size, but other arrays only up to MOST_READ_BYTES.
    return 0 if value.node is None and kind.is_static and kind.nbytes > MOST_READ_BYTES else id(array)


def native_kernel(site: Site) -> Lowering | None:
    if not site.static:
        return None
    kernel = make_kernel(site.settings.device, site.node, site.context)
    if kernel is None:
        return None
    if is_native(kernel):
        return PreparedKernel(kernel, site.node)
    from graphkit.executor.lower.python_step import PythonKernel

    return PythonKernel("native", site.node, kernel)


def _padded(locations: list[Location], count: int) -> list[Location]:
    return locations if len(locations) >= count else [*locations, *[ABSENT] * (count - len(locations))]
