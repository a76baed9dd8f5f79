"""Draw faults, and plant many of them in the Python files so that any one can be activated.

A drawn fault changes one operator, comparison or number in one line of a function. A named fault is given in
`mutation_named.toml` as text and its replacement. In Python files a fault becomes an expression
`mutated if _fault[17] else original`, or an `if` statement of that kind, so that all faults are planted at once.
"""

from __future__ import annotations

import ast
import copy
import random
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAMED = Path(__file__).with_name("mutation_named.toml")
NATIVE = "graphkit/executor/native"

# The files of each kind, from the root. A file belongs to the first kind that has it; kernels are the C++ sources.
KINDS: dict[str, tuple[str, ...]] = {
    "checkpoint": (
        "graphkit/train/checkpoint.py", "graphkit/train/manifest.py", "graphkit/train/saving.py",
        "graphkit/train/run_folder.py", "graphkit/train/position.py", "graphkit/train/custom_trainer.py",
        "graphkit/train/recurrent_state.py", "graphkit/ir/serialize.py", "graphkit/ir/weights.py",
        "graphkit/ir/stored.py", "graphkit/ir/atomic.py", "graphkit/ir/codec.py",
    ),
    "dist": (
        "graphkit/dist/**/*.py", "graphkit/train/exchange/placement.py", "graphkit/train/programs/sharded.py",
        "graphkit/train/programs/all_reduce.py", "graphkit/train/exchange/gather.py",
        "graphkit/train/exchange/divided.py", "graphkit/train/programs/server_gradients.py",
        "graphkit/train/exchange/stages.py", "graphkit/train/exchange/stage_runner.py",
        "graphkit/train/exchange/servers.py", "graphkit/train/epoch_stats.py",
        "graphkit/train/exchange/residuals.py", "graphkit/train/programs/partition.py",
    ),
    "optimizers": (
        "graphkit/train/optim.py", "graphkit/train/updater.py", "graphkit/train/losses.py",
        "graphkit/train/metrics.py", "graphkit/train/schedules.py",
        "graphkit/train/programs/step.py", "graphkit/train/stepper.py", "graphkit/train/programs/sparse.py",
        "graphkit/train/average.py", "graphkit/train/programs/finite.py", "graphkit/train/programs/loss_scale.py",
        "graphkit/train/mixing.py", "graphkit/train/programs/statistics.py", "graphkit/train/targets.py",
        "graphkit/train/defaults.py", "graphkit/ops/optim/**/*.py",
    ),
    "planner": (
        "graphkit/executor/memory/**/*.py", "graphkit/executor/lower/**/*.py", "graphkit/executor/run/**/*.py",
    ),
    "rules": ("graphkit/ops/**/*.py", "graphkit/autodiff/**/*.py"),
    "passes": ("graphkit/passes/**/*.py",),
    "kernels": (f"{NATIVE}/**/*.cpp", f"{NATIVE}/**/*.h"),
}  # fmt: skip

_SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Mod: ast.Add,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
_SIGNS: dict[type[ast.AST], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%", ast.Lt: "<", ast.LtE: "<=",
    ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=", ast.Is: "is", ast.IsNot: "is not", ast.In: "in",
    ast.NotIn: "not in", ast.And: "and", ast.Or: "or",
}  # fmt: skip
_CPP = re.compile(r" (\+|-|\*|<|<=|>|>=|==|!=|&&|\|\|) ")
_CPP_SWAPS = {
    "+": "-", "-": "+", "*": "+", "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||",
    "||": "&&",
}  # fmt: skip
# Functions that make messages, and calls of this kind.
_TELLING = re.compile(r"__(repr|str|format|dir)__|.*(sample|describe|explain|summary|message).*")
_TELLING_CALLS = frozenset({"warn", "debug", "info", "warning", "error", "print", "echo"})


@dataclass(frozen=True)
class Fault:
    """One change of one file.

    Attributes:
        file: The file, from the root.
        line: Its line, and `text`, what the line reads.
        place: The fault's position among all that the file could have; for C++ the character; -1 for a named fault.
        why: The mistake that a named fault represents; empty for a drawn one.
    """

    kind: str
    file: str
    line: int
    text: str
    place: int
    old: str
    new: str
    why: str = ""

    @property
    def is_native(self) -> bool:
        return not self.file.endswith(".py")

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: " + (self.why or f"{self.old} -> {self.new} in {self.text!r}")


class CannotPlant(ValueError):
    """A fault does not fit its file."""


# --- drawing --------------------------------------------------------------------------------------


def drawn(count: int, seed: int, kinds: Sequence[str], planted: Mapping[str, int]) -> dict[str, list[Fault]]:
    """All possible faults of each kind in random order, one for each line, and how many of them are to be planted.

    Args:
        count: How many faults are planted in all.
        seed: Of the order.
        kinds: Names of KINDS.
        planted: Native files that may be changed; see `mutation_native.py`.

    Returns:
        For each kind its faults, as many as are to be planted; of kernels, all, since some do not compile.
    """
    files = files_of_kinds()
    found: dict[str, list[Fault]] = {}
    for number, kind in enumerate(kinds):
        faults: list[Fault] = []
        for file in files[kind]:
            if kind != "kernels":
                faults += python_faults(file, kind)
            elif file in planted:
                faults += native_faults(file)
        random.Random(f"{seed} {kind}").shuffle(faults)
        lines: dict[tuple[str, int], Fault] = {}
        for fault in faults:
            lines.setdefault((fault.file, fault.line), fault)
        share = (count + number) // len(kinds)
        found[kind] = list(lines.values())[: None if kind == "kernels" else share]
    return found


def files_of_kinds() -> dict[str, list[str]]:
    taken: set[Path] = set()
    found = {}
    for kind, patterns in KINDS.items():
        paths = {path for pattern in patterns for path in ROOT.glob(pattern)} - taken
        taken |= paths
        found[kind] = [str(path.relative_to(ROOT)) for path in sorted(paths)]
    return found


def python_faults(file: str, kind: str) -> list[Fault]:
    text = (ROOT / file).read_text()
    lines = text.splitlines()
    return [
        Fault(kind, file, line, lines[line - 1].strip(), place, old, new)
        for place, (_, _, line, old, new) in enumerate(_candidates(ast.parse(text)))
    ]


def native_faults(file: str) -> Iterator[Fault]:
    """Faults in lines of C++ that compute: not in comments, messages, includes, templates and bindings."""
    position = 0
    for number, line in enumerate((ROOT / file).read_text().splitlines(keepends=True), start=1):
        code = line.split("//")[0]
        skipped = any(word in code for word in ("#", "template", "throw", "static_assert", ".def", '"', "operator"))
        for match in () if skipped else _CPP.finditer(code):
            old = match.group(1)
            yield Fault("kernels", file, number, line.strip(), position + match.start(1), old, _CPP_SWAPS[old])
        position += len(line)


def named_faults() -> list[Fault]:
    """The faults of the list; raises CannotPlant when a text is not in its file, or is there twice."""
    kinds = {file: kind for kind, files in files_of_kinds().items() for file in files}
    found = []
    for entry in tomllib.loads(NAMED.read_text())["fault"]:
        text = (ROOT / entry["file"]).read_text()
        if text.count(entry["old"]) != 1:
            raise CannotPlant(f"{NAMED.name}: {entry['file']} has {entry['old']!r} {text.count(entry['old'])} times")
        line = text[: text.index(entry["old"])].count("\n") + 1
        shown = text.splitlines()[line - 1].strip()
        found.append(
            Fault(kinds[entry["file"]], entry["file"], line, shown, -1, entry["old"], entry["new"], entry["why"])
        )
    return found


def found_again(fault: Fault) -> Fault | None:
    """A fault of another record, where it is now; None when its line has changed."""
    if fault.why:
        return next((f for f in named_faults() if (f.file, f.old, f.new) == (fault.file, fault.old, fault.new)), None)
    if not (ROOT / fault.file).exists():
        return None
    present = list(native_faults(fault.file)) if fault.is_native else python_faults(fault.file, fault.kind)
    alike = [f for f in present if (f.text, f.old, f.new) == (fault.text, fault.old, fault.new)]
    # Of several in one line, or in equal lines, the one that is nearest to where it was.
    return min(alike, key=lambda f: (f.place != fault.place, abs(f.line - fault.line)), default=None)


def _candidates(tree: ast.AST) -> Iterator[tuple[ast.expr, int, int, str, str]]:
    """Expression, index of its operator, line, and what is changed to what; always in the same order."""
    for node in _computing(tree):
        if isinstance(node, ast.BinOp) and type(node.op) in _SWAPS:
            yield node, 0, node.left.end_lineno or 0, _SIGNS[type(node.op)], _SIGNS[_SWAPS[type(node.op)]]
        elif isinstance(node, ast.BoolOp):
            line = node.values[0].end_lineno or 0
            yield node, 0, line, _SIGNS[type(node.op)], _SIGNS[_SWAPS[type(node.op)]]
        elif isinstance(node, ast.Compare):
            for index, (left, op) in enumerate(zip([node.left, *node.comparators], node.ops, strict=False)):
                if type(op) in _SWAPS:
                    yield node, index, left.end_lineno or 0, _SIGNS[type(op)], _SIGNS[_SWAPS[type(op)]]
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            yield node, 0, node.lineno, str(node.value), str(node.value + 1)


def _computing(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions in functions, except in messages, samples and annotations."""
    pending: list[tuple[ast.AST, bool]] = [(tree, False)]
    while pending:
        node, inside = pending.pop()
        if isinstance(node, (ast.Raise, ast.Assert, ast.JoinedStr, ast.pattern)):
            continue
        if isinstance(node, ast.AnnAssign):
            pending += [] if node.value is None else [(node.value, inside)]
            continue
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if not _TELLING.fullmatch(node.name):
                pending += ((part, True) for part in node.body)
            continue
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in _TELLING_CALLS:
                continue
        if inside and isinstance(node, ast.expr):
            yield node
        pending += ((child, inside) for child in ast.iter_child_nodes(node))


# --- planting -------------------------------------------------------------------------------------


def planted(file: str, faults: Mapping[int, Fault]) -> str:
    """Return the Python file with all of these faults, by number. Raises CannotPlant if one does not fit."""
    text = (ROOT / file).read_text()
    tree = ast.parse(text)
    candidates = list(_candidates(tree))
    changes: dict[int, list[tuple[int, int]]] = {}
    blocks: list[tuple[int, list[ast.stmt], list[ast.stmt], list[ast.stmt]]] = []
    for number, fault in faults.items():
        if fault.place < 0:
            blocks.append((number, *_difference(tree, ast.parse(text.replace(fault.old, fault.new, 1)))))
            continue
        node, index, line, old, new = candidates[fault.place]
        if (line, old, new) != (fault.line, fault.old, fault.new):
            raise CannotPlant(f"{fault} does not fit the file")
        changes.setdefault(id(node), []).append((number, index))
    _Expressions(changes).visit(tree)
    for number, body, before, after in blocks:
        _wrap(number, body, before, after)
    first = next(
        (n for n, s in enumerate(tree.body) if not isinstance(s, ast.Expr) and not _is_future(s)), len(tree.body)
    )
    tree.body.insert(first, ast.parse("from graphkit_faults import fault as _fault").body[0])
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def _is_future(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__"


def _switch(number: int) -> ast.expr:
    return ast.parse(f"_fault[{number}]", mode="eval").body


class _Expressions(ast.NodeTransformer):
    """Puts the faults in place of expressions, inner ones first."""

    def __init__(self, changes: Mapping[int, list[tuple[int, int]]]):
        self._changes = changes

    def visit(self, node: ast.AST) -> ast.AST:
        changes = self._changes.get(id(node), ())
        visited = self.generic_visit(node)
        for number, index in changes:
            changed = _changed(node, index)
            visited = ast.IfExp(test=_switch(number), body=changed, orelse=visited)  # type: ignore[arg-type]
        return visited


def _changed(node: ast.AST, index: int) -> ast.expr:
    changed = copy.copy(node)
    if isinstance(changed, (ast.BinOp, ast.BoolOp)):
        changed.op = _SWAPS[type(changed.op)]()  # type: ignore[assignment]
    elif isinstance(changed, ast.Compare):
        changed.ops = [_SWAPS[type(op)]() if i == index else op for i, op in enumerate(changed.ops)]  # type: ignore[misc]
    elif isinstance(changed, ast.Constant):
        changed.value += 1
    else:
        raise CannotPlant(f"no fault is known for {type(node).__name__}")
    return changed


def _difference(tree: ast.AST, other: ast.AST) -> tuple[list[ast.stmt], list[ast.stmt], list[ast.stmt]]:
    """The innermost list of statements that differs, and the statements of both that do."""
    for name, block in ast.iter_fields(tree):
        if not (isinstance(block, list) and block and isinstance(block[0], ast.stmt)):
            continue
        changed = getattr(other, name)
        if [ast.dump(s) for s in block] == [ast.dump(s) for s in changed]:
            continue
        start = 0
        while start < min(len(block), len(changed)) and ast.dump(block[start]) == ast.dump(changed[start]):
            start += 1
        end = 0
        while end < min(len(block), len(changed)) - start and ast.dump(block[-1 - end]) == ast.dump(changed[-1 - end]):
            end += 1
        before, after = block[start : len(block) - end], changed[start : len(changed) - end]
        if len(before) == len(after) == 1 and type(before[0]) is type(after[0]) and _heads_agree(before[0], after[0]):
            return _difference(before[0], after[0])
        if not before:
            raise CannotPlant("a fault that only adds statements has to replace one")
        return block, before, after
    raise CannotPlant("a fault that changes nothing")


def _heads_agree(a: ast.stmt, b: ast.stmt) -> bool:
    """Whether two statements differ in their bodies alone."""
    heads = []
    for statement in (a, b):
        head = copy.copy(statement)
        for name, value in ast.iter_fields(statement):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                setattr(head, name, [])
        heads.append(ast.dump(head))
    return heads[0] == heads[1] and any(isinstance(v, list) for _, v in ast.iter_fields(a))


def _wrap(number: int, block: list[ast.stmt], before: Sequence[ast.stmt], after: Sequence[ast.stmt]) -> None:
    places = [next((i for i, s in enumerate(block) if s is wanted), -1) for wanted in before]
    if -1 in places:
        raise CannotPlant("two named faults change the same statements")
    block[places[0] : places[-1] + 1] = [
        ast.If(test=_switch(number), body=list(after) or [ast.Pass()], orelse=list(before))
    ]


def apply(fault: Fault, text: str) -> str:
    """The text of a C++ file with the fault."""
    if fault.place < 0:
        return text.replace(fault.old, fault.new, 1)
    if text[fault.place : fault.place + len(fault.old)] != fault.old:
        raise CannotPlant(f"{fault} does not fit the file")
    return text[: fault.place] + fault.new + text[fault.place + len(fault.old) :]
