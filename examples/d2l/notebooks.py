"""Run the notebooks of this folder without Jupyter, and store the outputs of their cells.

python examples/d2l/notebooks.py             all notebooks
python examples/d2l/notebooks.py 3-autograd  one of them
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

FOLDER = Path(__file__).resolve().parent


def paths() -> list[Path]:
    """Return the notebooks in the order in which they are read."""
    return sorted(FOLDER.glob("*.ipynb"))


def executed(path: Path) -> dict[str, Any]:
    """Run the cells in one namespace. Returns the notebook with the outputs of this run."""
    notebook: dict[str, Any] = json.loads(path.read_text("utf-8"))
    namespace: dict[str, Any] = {"__name__": path.stem}
    codes = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(codes, 1):
        cell["execution_count"] = number
        cell["outputs"] = _outputs("".join(cell["source"]), f"{path.name}, cell {number}", number, namespace)
    return notebook


def _outputs(code: str, where: str, number: int, namespace: dict[str, Any]) -> list[dict[str, Any]]:
    """Run one cell: its printed lines, and the value of an expression in its last line."""
    body = ast.parse(code, where).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(body, []), where, "exec"), namespace)
        value = None if last is None else eval(compile(ast.Expression(last.value), where, "eval"), namespace)
    found: list[dict[str, Any]] = []
    if printed.getvalue():
        found.append({"name": "stdout", "output_type": "stream", "text": _lines(printed.getvalue())})
    if value is not None:
        data = {"text/plain": _lines(repr(value))}
        found.append({"data": data, "execution_count": number, "metadata": {}, "output_type": "execute_result"})
    return found


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


@click.command()
@click.argument("names", nargs=-1)
def main(names: Sequence[str]) -> None:
    """Run the notebooks NAMES, or all of them, and store their outputs."""
    known = {path.stem: path for path in paths()}
    if unknown := [name for name in names if name not in known]:
        raise click.BadParameter(f"{', '.join(unknown)}; the notebooks are {', '.join(known)}", param_hint="NAMES")
    for path in [known[name] for name in names] or paths():
        path.write_text(json.dumps(executed(path), indent=1, ensure_ascii=False) + "\n", "utf-8")
        click.echo(f"{path.name}: outputs stored")


if __name__ == "__main__":
    main()
