"""A plan as a self-contained page: time against address, drawn in SVG, with details for the block you point at."""

from __future__ import annotations

import json
import string
import zlib
from collections.abc import Sequence
from html import escape
from importlib import resources
from typing import Any

from graphkit.executor.report.plan_data import Block, PlanData
from graphkit.text import human

# Height of both diagrams in SVG units. The width of a step is one unit.
_HEIGHT = 1000.0
# Maximum number of rows in the table of blocks that are live at the peak.
_ROWS = 30
_PALETTE = [f"hsl({hue} 60% {light}%)" for light in (50, 32, 68) for hue in range(0, 360, 30)]


class _Template(string.Template):
    delimiter = "@@"  # scripts have "$" for their own templates


def page(plan: PlanData, title: str) -> str:
    """Return an HTML page that needs no other file. Its diagrams need no scripts; scripts add zoom and search."""
    timed = [i for i, step in enumerate(plan.steps) if step.kernel not in ("view", "constant")]
    # The diagrams leave out views and constants, which take no time. This is the position of each other step in them.
    position = {index: step for step, index in enumerate(timed)}
    steps = [plan.steps[i] for i in timed]
    blocks = sorted(plan.blocks, key=lambda b: (b.first, b.offset))
    spans = [(position[b.first], position[b.last]) for b in blocks]
    live = [step.live_bytes for step in steps]
    peak = max(range(len(live)), key=live.__getitem__, default=0)
    operators = sorted({step.op for step in steps})
    data = {
        "steps": [{"node": s.node, "op": s.op, "kernel": s.kernel, "live": s.live_bytes} for s in steps],
        "blocks": [
            {
                "name": b.name, "type": b.type, "kind": b.kind, "offset": b.offset, "bytes": b.bytes, "first": first,
                "last": last, "inplace": b.inplace,
            }
            for b, (first, last) in zip(blocks, spans, strict=True)
        ],
        "peak": peak,
    }  # fmt: skip
    colours = _colours(operators)
    template = _Template(resources.files("graphkit.executor.report").joinpath("plan_page.html").read_text("utf-8"))
    rects = [
        _rect(i, block, span, colours[steps[span[0]].op], plan.arena_bytes)
        for i, (block, span) in enumerate(zip(blocks, spans, strict=True))
    ]
    quarters = [human(plan.arena_bytes * part // 4) for part in (4, 3, 2, 1, 0)]
    alive = [(b, s) for b, s in zip(blocks, spans, strict=True) if s[0] <= peak <= s[1]]
    # A name that contains "</script" would end the script element.
    embedded = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    fields: dict[str, Any] = {
        "title": escape(title),
        "facts": _facts(plan),
        "addresses": "".join(f"<span>{text}</span>" for text in quarters),
        "arena": human(plan.arena_bytes),
        "map": _svg("map", len(steps), rects),
        "curve": _svg("curve", len(steps), [_curve(live, plan.arena_bytes), _bound(plan, len(steps))]),
        "legend": "".join(
            f'<span data-op="{escape(op)}"><i style="background:{colours[op]}"></i>{escape(op)}</span>'
            for op in operators
        ),
        "peak_rows": "".join(_row(b, s, live[peak]) for b, s in sorted(alive, key=lambda a: -a[0].bytes)[:_ROWS]),
        "data": embedded,
    }
    return template.substitute(fields)


def _facts(plan: PlanData) -> str:
    """Return the list of totals above the diagrams."""
    facts = [
        ("arena", human(plan.arena_bytes)),
        ("lower bound", human(plan.lower_bound)),
        ("plain order's bound", human(plan.plain_lower_bound)),
        ("naive sum", human(plan.naive_bytes)),
        ("activations", human(plan.activation_bytes)),
        ("working memory", human(plan.scratch_bytes)),
        ("parameters", human(plan.parameter_bytes)),
        ("results", human(plan.result_bytes)),
        ("in place", str(plan.inplace_count)),
        ("peak at", escape(plan.peak_node or "no step")),
    ]
    return "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts)


def _svg(name: str, width: int, parts: Sequence[str]) -> str:
    """Return a diagram. name: id of the element. width: number of steps."""
    inside = "\n".join(parts)
    return f'<svg id="{name}" viewBox="0 0 {max(width, 1)} {_HEIGHT:g}" preserveAspectRatio="none">\n{inside}\n</svg>'


def _rect(index: int, block: Block, span: tuple[int, int], colour: str, arena: int) -> str:
    """Return the rectangle of a block. Low addresses are at the bottom. A browser without scripts shows its title."""
    scale = _HEIGHT / arena
    first, last = span
    kind = ' class="scratch"' if block.kind == "scratch" else f' fill="{colour}"'
    title = f"{block.name} {block.type} {human(block.bytes)}, steps {first} to {last}"
    return (
        f'<rect data-block="{index}"{kind} x="{first}" width="{last - first + 1}" '
        f'y="{_HEIGHT - (block.offset + block.bytes) * scale:.4f}" height="{block.bytes * scale:.4f}">'
        f"<title>{escape(title)}</title></rect>"
    )


def _curve(live: Sequence[int], arena: int) -> str:
    """Return the curve of live bytes by step."""
    scale = _HEIGHT / max(arena, 1)
    points = "".join(f"V{_HEIGHT - size * scale:.4f}H{step + 1}" for step, size in enumerate(live))
    return f'<path d="M0 {_HEIGHT:g}{points}V{_HEIGHT:g}Z"/>'


def _bound(plan: PlanData, width: int) -> str:
    """Return the line of the lower bound."""
    y = _HEIGHT * (1 - plan.lower_bound / max(plan.arena_bytes, 1))
    return f'<line x1="0" x2="{width}" y1="{y:.4f}" y2="{y:.4f}"><title>lower bound</title></line>'


def _row(block: Block, span: tuple[int, int], total: int) -> str:
    """Return the row of a block in the table. total: live bytes at the peak."""
    name = block.name if block.kind == "value" else f"working memory of {block.name}"
    return (
        f"<tr><td>{escape(name)}</td><td>{escape(block.type)}</td><td>{human(block.bytes)}</td>"
        f"<td>{100 * block.bytes / total:.1f}%</td><td>{span[0]} to {span[1]}</td></tr>"
    )


def _colours(operators: Sequence[str]) -> dict[str, str]:
    """Return a colour for each operator: the same in every plan, unless two operators of a plan would share it.

    The palette's hues differ by 30 degrees, and its lightness by 18%. Colours repeat above 36 operators.
    """
    free: list[int] = []  # entries of the palette
    taken: dict[str, int] = {}
    for op in sorted(operators):
        free = free or list(range(len(_PALETTE)))
        wanted = zlib.crc32(op.encode()) % len(_PALETTE)
        taken[op] = min(free, key=lambda entry: (entry - wanted) % len(_PALETTE))
        free.remove(taken[op])
    return {op: _PALETTE[entry] for op, entry in taken.items()}
