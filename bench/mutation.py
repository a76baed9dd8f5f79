"""How many planted faults the tests catch: mutants of operators, passes, gradients and native kernels.

    python bench/mutation.py --count 100 --record mutants.json [--minutes 30] [--build "pip install ..."]

Each mutant changes one operator, comparison or number in one line of a file drawn at random with `--seed`; then come
the tests of that file's room, and where these pass those of whole networks. Needs graphkit installed in editable mode
from this checkout, without changes; `--build` is the command that builds the extension again (default: an editable
install into build/mutation). The record is written after every mutant, and a second call goes on where the first one
stopped. The kind of a survivor is for a person to tell: a gap in the tests, or a change that computes the same.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NATIVE = ROOT / "graphkit/executor/native"
# Of whole networks: what comes after the tests of a room.
NETWORKS = ["tests/executor/run/test_random_networks.py", "tests/executor/lower", "tests/models", "tests/train"]
# Seconds for the tests of one mutant; a loop that never ends is caught.
LIMIT = 900


@dataclass(frozen=True)
class Mutant:
    """One fault: in `file` (from the root) the characters from `start` to `end` become `new`."""

    kind: str
    file: str
    line: int
    start: int
    end: int
    old: str
    new: str

    def apply(self, text: str) -> str:
        assert text[self.start : self.end] == self.old, f"{self.file} is not the file that was read"
        return text[: self.start] + self.new + text[self.end :]


# --- planting -------------------------------------------------------------------------------------

_SWAPS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "+"),
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
}
_CPP = re.compile(r" (\+|-|\*|<|<=|>|>=|==|!=|&&|\|\|) ")
_CPP_SWAPS = {
    "+": "-", "-": "+", "*": "+", "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||",
    "||": "&&",
}  # fmt: skip


def python_mutants(path: Path, kind: str) -> Iterator[Mutant]:
    """Faults in functions that compute: not in messages, samples, annotations and tables of modules."""
    text = path.read_text()
    starts = [0]
    for row in text.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(row.decode()))
    if not text.isascii():
        return

    def offset(line: int, column: int) -> int:
        return starts[line - 1] + column

    def found(line: int, start: int, old: str, new: str) -> Mutant:
        return Mutant(kind, str(path.relative_to(ROOT)), line, start, start + len(old), old, new)

    for node in _computing(ast.parse(text)):
        pairs: list[tuple[ast.expr, ast.AST, ast.expr]] = []
        if isinstance(node, ast.BinOp):
            pairs = [(node.left, node.op, node.right)]
        elif isinstance(node, ast.Compare):
            pairs = list(zip([node.left, *node.comparators], node.ops, node.comparators, strict=False))
        elif isinstance(node, ast.BoolOp):
            pairs = [(node.values[0], node.op, node.values[1])]
        for left, operator, right in pairs:
            begin = offset(left.end_lineno or 0, left.end_col_offset or 0)
            between = text[begin : offset(right.lineno, right.col_offset)]
            old, new = _SWAPS.get(type(operator), ("", ""))
            at = re.search(rf"(?<![\w<>=!]){re.escape(old)}(?![\w=])", between) if old else None
            if at is not None:
                yield found(left.end_lineno or 0, begin + at.start(), old, new)
        if isinstance(node, ast.Constant) and type(node.value) is int and str(node.value).isdecimal():
            start = offset(node.lineno, node.col_offset)
            old = text[start : offset(node.end_lineno or 0, node.end_col_offset or 0)]
            if old == str(node.value):
                yield found(node.lineno, start, old, str(node.value + 1))


def _computing(tree: ast.AST) -> Iterator[ast.AST]:
    """The expressions inside of functions that a run or a rewrite reaches."""
    pending: list[tuple[ast.AST, bool]] = [(tree, False)]
    while pending:
        node, inside = pending.pop()
        if isinstance(node, (ast.Raise, ast.Assert, ast.JoinedStr, ast.AnnAssign)):
            continue
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if "sample" in node.name or node.name.startswith("__"):
                continue
            pending += ((part, True) for part in node.body)
            continue
        if inside and isinstance(node, ast.expr):
            yield node
        pending += ((child, inside) for child in ast.iter_child_nodes(node))


def native_mutants(path: Path) -> Iterator[Mutant]:
    """Faults in lines of kernels that compute: not in comments, messages, includes, templates and bindings."""
    position = 0
    for number, line in enumerate(path.read_text().splitlines(keepends=True), start=1):
        code = line.split("//")[0]
        skipped = any(word in code for word in ("#", "template", "throw", "static_assert", ".def", '"', "operator"))
        for match in () if skipped else _CPP.finditer(code):
            old = match.group(1)
            start = position + match.start(1)
            yield Mutant("kernels", str(path.relative_to(ROOT)), number, start, start + len(old), old, _CPP_SWAPS[old])
        position += len(line)


def drawn(count: int, seed: int) -> list[Mutant]:
    """As many of each kind, from files drawn by their size, one mutant a line at most."""
    python = {
        "rules": [*(ROOT / "graphkit/ops").rglob("*.py"), *(ROOT / "graphkit/autodiff").rglob("*.py")],
        "passes": [*(ROOT / "graphkit/passes").rglob("*.py"), *(ROOT / "graphkit/executor/memory").rglob("*.py")],
    }
    kinds = [
        *([m for path in sorted(paths) for m in python_mutants(path, kind)] for kind, paths in python.items()),
        [m for path in sorted([*NATIVE.rglob("*.cpp"), *NATIVE.rglob("*.h")]) for m in native_mutants(path)],
    ]
    rng = random.Random(seed)
    chosen: list[Mutant] = []
    for number, mutants in enumerate(kinds):
        lines = {(m.file, m.line): m for m in rng.sample(mutants, len(mutants))}
        chosen += rng.sample(sorted(lines.values(), key=str), (count + number) // len(kinds))
    rng.shuffle(chosen)
    return chosen


# --- catching -------------------------------------------------------------------------------------


def tests_of(file: str) -> list[list[str]]:
    """The arguments of pytest for a file's own room; what comes later is run where the earlier passes."""
    path = Path(file)
    parts = path.with_suffix("").parts[1:]
    if parts[:2] == ("executor", "native"):
        room = ROOT / "tests/executor/devices/cpu"
        family = [str(found.relative_to(ROOT)) for found in sorted(room.glob(f"test_{path.parent.name}*.py"))]
        return [*([family] if family else []), [str(room.relative_to(ROOT))], NETWORKS]
    if parts[0] == "ops":
        names = re.findall(r"^class (\w+)\(", (ROOT / file).read_text(), re.M)
        room = ROOT / "tests" / Path(*parts[:-1])
        own = [[str(room.relative_to(ROOT))]] if room.is_dir() and room != ROOT / "tests/ops" else []
        named = [["tests/ops", "tests/checks", "-k", " or ".join(names)]] if names else []
        return [*own, *named, ["tests/ops", "tests/autodiff", "tests/frontend"], NETWORKS]
    room = ROOT / "tests" / Path(*parts[: 2 if parts[0] in ("executor", "passes") else 1])
    return [[str((room if room.is_dir() else room.parent).relative_to(ROOT))], ["tests/passes", *NETWORKS]]


def caught(mutant: Mutant) -> str:
    """The first test that fails; empty when all pass."""
    for arguments in tests_of(mutant.file):
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *arguments]
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT, check=False)
        except subprocess.TimeoutExpired:
            return "it does not end"
        if done.returncode not in (0, 5):
            found = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.M)
            return found.group(1) if found else (done.stdout + done.stderr)[-300:]
    return ""


def build(command: str) -> str:
    """Build the extension; the compiler's complaint when it does not compile."""
    done = subprocess.run(shlex.split(command), cwd=ROOT, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else (re.findall(r"error: .*", done.stdout + done.stderr) or ["error"])[0]


def try_one(mutant: Mutant, command: str) -> str:
    """What caught the mutant; empty when nothing did."""
    path = ROOT / mutant.file
    text = path.read_text()
    native = mutant.kind == "kernels"
    try:
        path.write_text(mutant.apply(text))
        return (build(command) if native else "") or caught(mutant)
    finally:
        path.write_text(text)
        if native:
            build(command)


def report(results: Sequence[dict[str, object]]) -> str:
    lines = []
    for kind in ("rules", "passes", "kernels"):
        of_kind = [r for r in results if r["kind"] == kind]
        lines.append(f"{kind}: {sum(bool(r['caught']) for r in of_kind)} of {len(of_kind)} caught")
    lines += [f"survived: {r['file']}:{r['line']}: {r['old']!r} -> {r['new']!r}" for r in results if not r["caught"]]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", type=Path, required=True, help="JSON, written after every mutant")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    editable = f"{sys.executable} -m pip install -q --no-deps --no-build-isolation -e . -C build-dir=build/mutation"
    parser.add_argument("--build", default=editable)
    arguments = parser.parse_args()
    record: Path = arguments.record
    results = json.loads(record.read_text()) if record.exists() else []
    end = time.monotonic() + 60 * arguments.minutes
    for mutant in drawn(arguments.count, arguments.seed)[len(results) :]:
        if time.monotonic() > end:
            break
        start = time.monotonic()
        by = try_one(mutant, arguments.build)
        results.append(asdict(mutant) | {"caught": by, "seconds": round(time.monotonic() - start)})
        record.write_text(json.dumps(results, indent=1))
        print(
            f"{len(results)}: {mutant.file}:{mutant.line} {mutant.old} -> {mutant.new}: {by or 'SURVIVED'}", flush=True
        )
    print(report(results))


if __name__ == "__main__":
    main()
