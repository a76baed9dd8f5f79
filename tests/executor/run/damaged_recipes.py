"""Damaged recipes of kernels: make the kernels, and run those that can be made between pages that no code may access.

Run as a program by test_damaged_recipes.py: a process that reads or writes elsewhere ends.
"""

import ctypes
import math
import mmap
import re
import resource
import struct
import sys
from collections import Counter

import ml_dtypes
import numpy as np

from graphkit.checks.samples import dtypes_of, make_case, samples_of
from graphkit.executor.devices.cpu import native
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.recipes import recorded_recipes
from graphkit.executor.devices.registry import make_kernel
from graphkit.ops import registry

MOST_BYTES, MOST_OPERANDS, PAGE = 1 << 20, 24, mmap.PAGESIZE
TYPES = {
    "f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "i8": np.int8,
    "i16": np.int16, "i32": np.int32, "i64": np.int64, "u8": np.uint8, "u16": np.uint16, "u32": np.uint32,
    "u64": np.uint64, "bool": np.bool_,
}  # fmt: skip
EXTREME = [
    0,
    1,
    2,
    63,
    255,
    1 << 20,
    (1 << 31) - 1,
    1 << 31,
    1 << 32,
    1 << 40,
    *(1 << n for n in range(60, 64)),
    -1,
    -2,
]


def recipes(names, samples):
    """The recipes of the first samples of these operators."""
    found = []
    for cls in registry:
        for number in range(min(len(samples_of(cls)), samples)) if cls.name in names else ():
            case = make_case(cls, number, dtypes_of(cls, samples_of(cls)[number])[0])
            (node,) = [n for n in case.graph().nodes if n.op is case.op]
            with recorded_recipes():
                kernel = make_kernel("cpu", node, KernelContext(threads=2, used_outputs=(True,) * len(node.outputs)))
            found += [] if getattr(kernel, "recipe", None) is None else [kernel.recipe]
    return found


def damaged(recipe, rng):
    """The recipe with other numbers, mostly at places where a small number seems to be."""
    data, start = bytearray(recipe), 8 + struct.unpack_from("<Q", recipe)[0]
    small = [p for p in range(start, len(data) - 7) if not any(data[p + 3 : p + 8])]
    for _ in range(rng.integers(1, 4)):
        place = small[rng.integers(len(small))]
        old = struct.unpack_from("<Q", data, place)[0]
        if rng.random() < 0.35:
            new = EXTREME[rng.integers(len(EXTREME))]
        else:
            new = [old - 1, old + 1, old * 2, old // 2, -old, old ^ 1][rng.integers(6)]
        # Sizes of one axis occur several times.
        alike = [p for p in small if struct.unpack_from("<Q", data, p)[0] == old and rng.random() < 0.3]
        for changed in (place, *alike):
            struct.pack_into("<Q", data, changed, new % (1 << 64))
    return bytes(data)


class Guarded:
    """Memory between two pages that no code may access."""

    def __init__(self):
        self._memory = mmap.mmap(-1, MOST_BYTES + 2 * PAGE)
        self._start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory)) + PAGE
        protect = ctypes.CDLL(None).mprotect
        for place in (self._start - PAGE, self._start + MOST_BYTES):
            assert protect(ctypes.c_void_p(place), ctypes.c_size_t(PAGE), 0) == 0

    def array(self, shape, dtype, at_end):
        """An array that begins or ends beside such a page."""
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        if not nbytes:
            return np.zeros(shape, dtype)
        memory = (ctypes.c_char * nbytes).from_address(self._start + (MOST_BYTES - nbytes if at_end else 0))
        return np.frombuffer(memory, dtype).reshape(shape)


def run(kernel, memory, rng):
    """Run a kernel on random operands. Return whether its operands are small enough."""
    specs = [
        [([int(d) for d in sizes.split(", ") if d], TYPES[t]) for t, sizes in re.findall(r"(\w+)\[([^]]*)\]", part)]
        for part in repr(kernel).split(") -> ")
    ]
    every = [*specs[0], *specs[1]]
    nbytes = [math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in every]
    if max(nbytes) > MOST_BYTES or len(every) > MOST_OPERANDS or kernel.scratch_bytes > 1 << 26 or kernel.packed_inputs:
        return False
    at_end = bool(rng.integers(2))
    arrays = [each.array(shape, dtype, at_end) for each, (shape, dtype) in zip(memory, every, strict=False)]
    given = len(specs[0])
    for array in arrays[:given]:
        array[...] = rng.integers(0, 3, array.shape)
    try:
        kernel(arrays[:given], arrays[given:])
    except native.Error as error:  # such as a label that is out of range
        if "wrote beyond" in str(error):
            raise SystemExit(str(error)) from None
    return True


def main(names, samples, count, seed):
    resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
    rng, outcomes = np.random.default_rng(seed), Counter()
    memory = [Guarded() for _ in range(MOST_OPERANDS)]
    for recipe in recipes(names, samples):
        for number in range(count):
            try:
                kernel = native.make_kernel(recipe if number == 0 else damaged(recipe, rng))
                outcomes["ran" if run(kernel, memory, rng) else "too large"] += 1
            except (native.Error, MemoryError, ValueError, IndexError, RuntimeError, UnicodeDecodeError):
                outcomes["refused"] += 1
    sys.stdout.write(f"survived {outcomes['ran']} {outcomes['refused']}")


if __name__ == "__main__":
    main(sys.argv[4:], *map(int, sys.argv[1:4]))
