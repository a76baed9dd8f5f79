"""The contents of a plan: steps, operands, blocks of the arena, and memory use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from graphkit.executor.lower.lowering import KernelKind
from graphkit.executor.memory.placement import Place
from graphkit.former_names import former_attribute

BlockKind = Literal["value", "scratch"]


@dataclass(frozen=True, slots=True)
class Operand:
    """One tensor of a step: its name, type and place. `offset` is set only in the arena.

    The place "result" is memory outside the arena: new for every run (outputs), or kept between runs (new values of
    states). "dynamic" is an array whose size is known only after it is computed; its `bytes` is 0.
    """

    name: str
    type: str
    place: Place
    offset: int | None
    bytes: int


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One node. A view or a constant takes no time. `live_bytes` is what the arena contains while the step runs.

    device: if a graph runs on several devices, the device of the step; for a copy, from which device to which.
    """

    node: str
    op: str
    kernel: KernelKind
    inputs: tuple[Operand | None, ...]
    outputs: tuple[Operand | None, ...]
    live_bytes: int
    inplace: bool
    device: str = ""


@dataclass(frozen=True, slots=True)
class Block:
    """Bytes `offset` to `offset + bytes` of the arena, from step `first` (written) to step `last` (read) of `steps`.

    A "value" is the output `name` of step `first`; "scratch" is the working memory of the step `name`. `inplace`: the
    memory is that of an operand whose last step is `first`.
    """

    name: str
    type: str
    kind: BlockKind
    offset: int
    bytes: int
    first: int
    last: int
    inplace: bool


@dataclass(frozen=True)
class PlanData:
    """The memory plan of one program. All sizes are bytes, each tensor rounded up to the alignment.

    - `blocks`: what the arena contains. Values take at most `activation_bytes` in one step, working memory at most
      `scratch_bytes`.
    - `lower_bound`: the peak of both in the chosen order. No layout for this order is smaller.
    - `plain_lower_bound`: the peak in the plain topological order.
    - `naive_bytes`: the sum of all blocks.
    - `packed_bytes`: copies of parameters and constants in the layouts of kernels.
    - `examples`: if a batch is computed in parts, the examples of one part and of the batch. `arenas`: how many parts
      are computed at once.
    - `staging_reason`: on a GPU, all-reduces use the kernel "nccl", or are copied through host memory (the kernel
      "staged"). This is the reason for "staged", or "".
    - `host_bytes`: pinned host memory for values that are swapped out of GPU memory (`swap_memory`). Steps with the
      kernel "swap" copy them.
    - `host_conditions`: on a GPU, branches and loops that cannot be part of a CUDA graph, so that the host reads their
      condition in a run; each with the reason.
    """

    steps: tuple[PlanStep, ...]
    blocks: tuple[Block, ...]
    activation_bytes: int
    scratch_bytes: int
    arena_bytes: int
    lower_bound: int
    plain_lower_bound: int
    naive_bytes: int
    inplace_count: int
    parameter_bytes: int
    packed_bytes: int
    constant_bytes: int
    result_bytes: int
    peak_node: str
    inner_fallbacks: tuple[str, ...] = ()  # interpreted steps inside subgraphs, see `fallbacks`
    examples: tuple[int, int] | None = None
    arenas: int = 1
    staging_reason: str = ""
    host_bytes: int = 0
    host_conditions: tuple[str, ...] = ()

    # Former names.
    staged_because = former_attribute("staging_reason")
    host_looks = former_attribute("host_conditions")
