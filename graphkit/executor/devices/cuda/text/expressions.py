"""Instructions of a pointwise program as CUDA C++: one line for each, on values in registers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphkit.executor.devices.pointwise.instructions import PointwiseProgram
from graphkit.ir.types import FLOATS, HALVES, DType

# The C types of elements in memory, and of values in registers.
STORED = {
    DType.FLOAT32: "float",
    DType.FLOAT64: "double",
    DType.FLOAT16: "gk_f16",
    DType.BFLOAT16: "gk_bf16",
    DType.INT8: "gk_i8",
    DType.INT16: "gk_i16",
    DType.INT32: "gk_i32",
    DType.INT64: "gk_i64",
    DType.UINT8: "gk_u8",
    DType.UINT16: "gk_u16",
    DType.UINT32: "gk_u32",
    DType.UINT64: "gk_u64",
    DType.BOOL: "gk_u8",
}
_REGISTER = STORED | {DType.FLOAT16: "float", DType.BFLOAT16: "float"}

_FLOATS = frozenset({DType.FLOAT32, DType.FLOAT64})
_COMPARISONS = {"equal": "==", "not_equal": "!=", "less": "<", "less_equal": "<="}
_BITS = {"bit_and": "&", "bit_or": "|", "bit_xor": "^"}
_OF_NUMBERS = {
    "add", "sub", "mul", "mul_add", "mul_sub", "nmul_add", "minimum", "maximum", "neg", "abs", "sign", "prelu",
    "clip",
}  # fmt: skip
_OF_INTEGERS = {"shift_left", "shift_right"}
# These may divide integers by zero. For integers, they get a pointer to the fault.
_DIVIDING = {"div", "mod", "fmod", "pow"}
_OF_FLOATS = {
    "floor", "ceil", "round", "sqrt", "exp", "expm1", "log", "tanh", "sigmoid", "erf", "gelu", "gelu_tanh", "softplus",
    "mish", "softsign", "swish", "hard_swish_grad", "threshold", "unit_line",
    "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh",
}  # fmt: skip


class Unsupported(Exception):
    """A program has a type or an instruction that has no CUDA C++ code."""


def statements(program: PointwiseProgram, loaded: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return lines that compute the values of a program, and the expression of each output that is used.

    The lines name the values v0, v1, .... If integers are divided, they use the parameter `fault`. Raises Unsupported.

    loaded: an expression for each input, of its type in memory.
    """
    names: list[str] = []
    kinds: list[DType] = []
    lines: list[str] = []

    def define(kind: DType, expression: str) -> None:
        name = f"v{len(names)}"
        lines.append(f"const {_register(kind)} {name} = {expression};")
        names.append(name)
        kinds.append(kind)

    read = program.read
    for i, given in enumerate(program.inputs):
        if given is None or i not in read:
            names.append("")
            kinds.append(DType.BOOL)
        else:
            define(_computed(DType(given[1])), f"gk_read({loaded[i]})")
    for name, element in program.constants:
        names.append(literal(DType(name), element))
        kinds.append(DType(name))
    for opcode, operands, target in program.instructions:
        given_kinds = [kinds[n] for n in operands]
        define(*_instruction(opcode, [names[n] for n in operands], given_kinds, target))
    return lines, [names[value] for value, _ in program.outputs if value >= 0]


def _instruction(opcode: str, names: Sequence[str], kinds: Sequence[DType], target: str) -> tuple[DType, str]:
    """Return the type and the expression of the result of an instruction."""
    kind = kinds[1] if opcode == "select" else kinds[0]
    if opcode == "select":
        return kind, f"{names[0]} ? {names[1]} : {names[2]}"
    if opcode == "cast":
        to = DType(target)
        if to is DType.BOOL:
            return to, f"{names[0]} != 0"
        return to, f"gk_cast<{_register(to)}>({names[0]})"
    if opcode == "cast_to_odd":
        return DType.FLOAT32, f"gk_to_odd({names[0]})"
    if opcode in ("round_float16", "round_bfloat16"):
        short = "f16" if opcode == "round_float16" else "bf16"
        return kind, f"gk_from_{short}(gk_to_{short}({names[0]}))"
    if opcode in _COMPARISONS:
        return DType.BOOL, f"{names[0]} {_COMPARISONS[opcode]} {names[1]}"
    if opcode in _BITS:
        if kind in _FLOATS:
            raise Unsupported(f"{opcode} of {kind.value}")
        return kind, f"({_register(kind)})({names[0]} {_BITS[opcode]} {names[1]})"
    known = opcode in _OF_NUMBERS or opcode in _DIVIDING
    known = known or (opcode in _OF_INTEGERS and kind not in _FLOATS and kind is not DType.BOOL)
    if not (known or (opcode in _OF_FLOATS and kind in _FLOATS)):
        raise Unsupported(f"{opcode} of {kind.value}")
    fault = ["fault"] if opcode in _DIVIDING and kind not in _FLOATS else []
    return kind, f"gk_{opcode}({', '.join([*names, *fault])})"


def literal(kind: DType, element: bytes) -> str:
    """Return a number as CUDA C++ with exactly these bits. element: its bytes. Raises Unsupported."""
    value = np.frombuffer(element, kind.numpy)[0]
    if kind is DType.FLOAT32:
        bits = int(np.frombuffer(element, np.uint32)[0])
        return f"{float(value).hex()}f" if np.isfinite(value) else f"__int_as_float({bits:#x})"
    if kind is DType.FLOAT64:
        bits = int(np.frombuffer(element, np.uint64)[0])
        return float(value).hex() if np.isfinite(value) else f"__longlong_as_double({bits:#x}LL)"
    if kind is DType.BOOL:
        return f"(gk_u8){int(value)}"
    if kind not in STORED:
        raise Unsupported(kind.value)
    # The smallest 64-bit integer has no literal of its own.
    number = (
        "(-9223372036854775807LL - 1)" if int(value) == -(1 << 63) else f"{int(value)}{'ULL' if value >= 0 else 'LL'}"
    )
    return f"({STORED[kind]}){number}"


def held_type(kind: DType) -> DType:
    """Return the type in registers of elements of a type of STORED: float32 for float16 and bfloat16, else the same."""
    return DType.FLOAT32 if kind in HALVES else kind


def float_type(kind: DType) -> DType | None:
    """Return the type in registers of elements of a floating-point type; None for other types."""
    return held_type(kind) if kind in FLOATS and kind in STORED else None


def _computed(kind: DType) -> DType:
    if kind not in STORED:
        raise Unsupported(kind.value)
    return held_type(kind)


def _register(kind: DType) -> str:
    return _REGISTER[kind]
