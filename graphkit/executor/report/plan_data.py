"""What a plan says: steps, operands, blocks of the arena, and the numbers of its memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from graphkit.executor.lower.lowering import KernelKind
from graphkit.executor.memory.placement import Place

BlockKind = Literal["value", "scratch"]


@dataclass(frozen=True, slots=True)
class Operand:
    """One tensor of a step: its name and type, and where it lives. `offset` is set in the arena only.

    "result" is memory of its own, made for every run (outputs) or kept between runs (new values of states);
    "dynamic" is an array whose size is known only when it has been computed: then `bytes` is 0.
    """

    name: str
    type: str
    place: Place
    offset: int | None
    bytes: int


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One node. A view and a constant take no time; `live_bytes` is what the arena holds while the step runs.

    device: where a graph runs on several; of a copy, from which one to which.
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
    """Bytes `offset` to `offset + bytes` of the arena from step `first` (written) to step `last` (read) of `steps`.

    "value" is the output `name` of step `first`, "scratch" the working memory of the step called `name`. `inplace`: the
    memory was taken over from an operand whose last step is `first`.
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
    """The memory plan of one program. All sizes in bytes, each tensor rounded up to the alignment.

    The arena holds `blocks`: values, of which `activation_bytes` live at one step at most, and working memory, of at
    most `scratch_bytes` a step. `lower_bound` is the peak of both in the chosen order: no layout of it is smaller.
    `plain_lower_bound` is the peak in the plain topological order, `naive_bytes` what the blocks take side by side.
    `packed_bytes` is what kernels keep of parameters and constants in layouts of their own. `examples`, of a batch that
    is computed in parts: how many the plan is for, of how many. `arenas`: how many parts are computed at once. Of a
    device with memory of its own, the kernel of a step that sums over processes is "nccl" or "staged", by way of the
    host: `staged_because` says why; `host_bytes` are pinned memory of the host, where values wait between their
    readers; steps of the kernel "swap" copy to it and from it; `host_looks` are steps whose conditions no recording can
    have, with the reason.
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
    inner_fallbacks: tuple[str, ...] = ()  # steps inside subgraphs, see `fallbacks`
    examples: tuple[int, int] | None = None
    arenas: int = 1
    staged_because: str = ""
    host_bytes: int = 0
    host_looks: tuple[str, ...] = ()
