"""Find phrases that make prose hard to read, and public docstrings without a one-line summary.

    python .ci/prose.py            check everything; exit code 1 if something is found
    python .ci/prose.py PART...    check only paths that begin with one of these

Some phrases are rejected everywhere: in pages, docstrings and comments. Others are rejected only in texts for users:
pages, texts of the command line, messages of errors and warnings, and docstrings of public names. Public names are
those that docs/reference/api lists, operators, and networks. If a line needs a phrase, for example to quote it, add a
comment `prose: ok`.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

# Phrases that are rejected in all texts, and advice.
EVERYWHERE = {
    r"^(?:What|Who|Whoever|Whatever)\b[^?]*[.:;]$": "begin with the subject: the user, the command, the file",
    r"^Of (?:the|those|each|all|an?)\b": "begin with the subject",
    r"(?<![Tt]here )\b(?:is|are|was|were) no (?!longer\b|more\b)\w": "is not a, or has no",
    r"(?<!\b[Oo]ne )(?<!\b[Ss]ome )(?<!\b[Ee]ach )(?<!\bboth )(?<!\ball )\bof which [a-z]": "make two sentences",
    r"\bthere is nobody\b|\bnobody\b|\bwhoever\b": "say who acts",
    r"\bby way of\b": "through, or with",
    r"\bin the place of\b": "instead of",
    r"\b(?:has|have|having) to do with\b": "concerns",
    r"\b(?:goes|go|going|went) on\b": "continues, resumes, runs",
    r"\bso many\b": "give the number or its name",
    r"\bsigns? of life\b": "heartbeat",
    r"\b(?:stand|stands|standing|stood) in for\b": "replaces; a placeholder",
}
# Phrases that are rejected in texts for users. The code has names such as `card`.
FOR_USERS = EVERYWHERE | {
    r"\b[Cc]ards?\b": "GPU",
    r"\bhalf floats?\b": "float16 or bfloat16",
}
_EVERYWHERE = {re.compile(pattern): advice for pattern, advice in EVERYWHERE.items()}
# Finds at least these phrases in a whole file, where lines break between words. It is fast, and may find more.
_GAP = r"[\s#/]+"
_ANYWHERE = re.compile(
    rf"\b(?:Wh(?:at|o|oever|atever)\b(?![^.?]*\?)|Of{_GAP}(?:the|those|each|all|an?)\b|nobody\b|whoever\b|so{_GAP}many\b"
    rf"|by{_GAP}way{_GAP}of|in{_GAP}the{_GAP}place|to{_GAP}do{_GAP}with|(?:goes|go|going|went){_GAP}on\b|of{_GAP}which\b"
    rf"|signs?{_GAP}of{_GAP}life|(?:stands?|standing|stood){_GAP}in{_GAP}for"
    rf"|(?<!here )(?:is|are|was|were){_GAP}no{_GAP}(?!longer|more\b))"
)
_FOR_USERS = {re.compile(pattern): advice for pattern, advice in FOR_USERS.items()}
_ANYWHERE_FOR_USERS = re.compile(rf"{_ANYWHERE.pattern}|\b[Cc]ards?\b|\bhalf{_GAP}floats?\b")
_REFERENCE = "docs/reference/api/*.md"
_CODE = re.compile(r"^ *```.*?^ *```$|`[^`\n]*`|<!--.*?-->|\]\([^)\s]*\)|<a id[^>]*>", re.MULTILINE | re.DOTALL)
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z`*\[])")
# Measurements keep the words of the day on which they were made.
_LEFT_OUT = ("bench/results/",)
# Functions whose strings are read: of the command line, and warnings.
_SAYS = {"warn", "echo", "say", "_say", "secho"}
_MAY_SAY = re.compile(rf"\b(?:raise|{'|'.join(sorted(_SAYS))})\b")


class Text(NamedTuple):
    path: Path
    line: int
    text: str
    is_docstring: bool = False


def git_files(*patterns: str) -> list[Path]:
    done = subprocess.run(["git", "ls-files", "-z", "--", *patterns], capture_output=True, text=True, check=True)
    return [Path(name) for name in done.stdout.split("\0") if name and not name.startswith(_LEFT_OUT)]


# --- pages ----------------------------------------------------------------------------------------


def paragraphs(path: Path) -> Iterator[Text]:
    """The paragraphs of a page, table cells and list items apart, without code."""
    plain = _CODE.sub(lambda match: re.sub(r"[^\n]", "_", match[0]), path.read_text("utf-8"))
    line = 1
    for part in re.split(r"(\n\s*\n|\n(?=\s*(?:[-*|#]|\d+\.) ?))", plain):
        for cell in part.split("|"):
            if cell.strip():
                yield Text(path, line, cell.strip().lstrip("-*# "))
        line += part.count("\n")


# --- programs -------------------------------------------------------------------------------------


def documented() -> Iterator[tuple[Path, str | None]]:
    """File and name of all that the reference lists; the name is None for a whole module."""
    for page in git_files(_REFERENCE):
        for path in re.findall(r"^::: (\S+)$", page.read_text("utf-8"), re.MULTILINE):
            home, _, name = path.rpartition(".")
            for parts, named in ((path, None), (home, name)):
                if place := _file_of(parts):
                    yield place, named
                    yield from _imported(place, named)
                    break


def _file_of(module: str) -> Path | None:
    whole = Path(module.replace(".", "/"))
    return next((p for p in (whole.with_suffix(".py"), whole / "__init__.py") if p.exists()), None)


def _imported(path: Path, name: str | None) -> Iterator[tuple[Path, str]]:
    """File and name of what a module only imports: `name`, or all that its `__all__` lists."""
    tree = ast.parse(path.read_text("utf-8"))
    listed = {name}
    for node in tree.body if name is None else ():
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            listed = set(ast.literal_eval(node.value))
    for node in _nodes(tree):
        if isinstance(node, ast.ImportFrom) and (place := _file_of(node.module or "")):
            for alias in node.names:
                if alias.name in listed:
                    yield place, alias.name
                    yield from _imported(place, alias.name)


def docstrings(path: Path, names: set[str | None]) -> Iterator[Text]:
    """Yield the docstrings of the named classes and functions of a module, or of all public ones, and of methods."""
    tree = ast.parse(path.read_text("utf-8"))
    if None in names:
        yield from _docstring(path, tree)
    for node in tree.body:
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            continue
        listed = node.name in names or (None in names and not node.name.startswith("_"))
        decorated = {ast.unparse(d).partition("(")[0] for d in node.decorator_list}
        if not listed and decorated.isdisjoint({"op", "network"}):
            continue
        yield from _docstring(path, node)
        for member in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(member, ast.FunctionDef) and not member.name.startswith("_"):
                yield from _docstring(path, member)


def _docstring(path: Path, node: ast.Module | ast.ClassDef | ast.FunctionDef) -> Iterator[Text]:
    found = ast.get_docstring(node)
    if found:
        yield Text(path, node.body[0].lineno, found, True)


def comments(path: Path) -> Iterator[Text]:
    """Comments, one Text for each block of lines, and all docstrings of a Python file.

    Most files contain none of the phrases, not even in code. They are not parsed, which would take too long.
    """
    source = path.read_text("utf-8")
    if not _ANYWHERE.search(source):
        return
    blocks = list(_docstring_lines(source)) if path.suffix == ".py" else []
    blocks += [(number, text, True) for number, text in _comment_lines(path, source)]
    block: list[str] = []
    first = last = 0
    for number, text, is_comment in sorted(blocks):
        if block and (not is_comment or number != last + 1):
            yield Text(path, first, "\n".join(block))
            block = []
        if not is_comment:
            yield Text(path, number, text)
            continue
        first = first if block else number
        last = number
        block.append(text)
    if block:
        yield Text(path, first, "\n".join(block))


def _docstring_lines(source: str) -> Iterator[tuple[int, str, bool]]:
    for node in _nodes(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and (found := ast.get_docstring(node)):
            yield node.body[0].lineno, found, False


def _comment_lines(path: Path, source: str) -> Iterator[tuple[int, str]]:
    if path.suffix == ".py":
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string.lstrip("# ")
        return
    sign = "//" if path.suffix in (".h", ".cpp") else "#"
    for number, line in enumerate(source.splitlines(), 1):
        _, found, text = line.partition(sign)
        if found:
            yield number, text.strip()


def messages(path: Path) -> Iterator[Text]:
    """Yield the strings of errors and warnings; for the command line, all strings except private docstrings."""
    text_of_file = path.read_text("utf-8")
    whole = path.parts[0] == "cli" or path.parts[:2] == ("graphkit", "report")
    if not whole and not _MAY_SAY.search(text_of_file):
        return
    nodes = _nodes(ast.parse(text_of_file))
    helpers = {
        id(node.body[0].value)
        for node in nodes
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
        and not any("command" in ast.unparse(d) for d in getattr(node, "decorator_list", ()))
    }
    for node in nodes:
        says = isinstance(node, ast.Raise) or (isinstance(node, ast.Call) and _last_name(node.func) in _SAYS)
        for inner in _nodes(node) if says or (whole and isinstance(node, ast.Module)) else ():
            text = inner.value if isinstance(inner, ast.Constant) and isinstance(inner.value, str) else ""
            # A word alone is a name, such as a key of JSON.
            if " " in text.strip() and id(inner) not in helpers:
                yield Text(path, inner.lineno, text)


def _nodes(tree: ast.AST) -> list[ast.AST]:
    """Return a node and all nodes below it, in less than half the time of `ast.walk`."""
    found = [tree]
    for node in found:  # it grows meanwhile
        for value in vars(node).values():
            if isinstance(value, ast.AST):
                found.append(value)
            elif isinstance(value, list):
                found.extend(part for part in value if isinstance(part, ast.AST))
    return found


def _last_name(function: ast.expr) -> str:
    """Return the name of a called function without its module or object; "" if it has none."""
    return getattr(function, "attr", None) or getattr(function, "id", "")


def shown_in() -> Iterator[tuple[Path, Iterator[Text]]]:
    """Yield files and the texts for users in each. A file may come twice: for its docstrings and its messages."""
    for page in git_files("*.md"):
        yield page, paragraphs(page)
    names: dict[Path, set[str | None]] = {path: set() for path in git_files("graphkit/ops/*.py", "models/*.py")}
    for path, name in documented():
        names.setdefault(path, set()).add(name)
    for path, listed in names.items():
        yield path, docstrings(path, listed)
    for path in git_files("graphkit/*.py", "cli/*.py", "models/*.py"):
        yield path, messages(path)


def shown() -> Iterator[Text]:
    """Yield all texts for users."""
    for _, texts in shown_in():
        yield from texts


def internal() -> Iterator[Text]:
    """Yield comments and all docstrings, which only developers read."""
    for path in git_files("*.py", "*.h", "*.cpp", "*.toml", "*.sh"):
        yield from comments(path)


# --- complaints -----------------------------------------------------------------------------------


def complaints(shown: Text, phrases: Mapping[re.Pattern[str], str] = _FOR_USERS) -> Iterator[str]:
    """Yield the rejected phrases of a text, and for a public docstring, an error in the form of its summary."""
    summary, *rest = shown.text.split("\n")
    if shown.is_docstring and (not summary.endswith((".", ".)", "?", ":")) or (rest and rest[0].strip())):
        yield f"{shown.path}:{shown.line}: {summary!r}: a summary is one line, a sentence, before an empty line"
    if not _ANYWHERE_FOR_USERS.search(shown.text) or "prose: ok" in shown.text:
        return
    if "prose: ok" in shown.path.read_text("utf-8").splitlines()[shown.line - 1]:
        return
    for sentence in _SENTENCE.split(re.sub(r"\s*\n\s*", " ", re.sub(r"`[^`\n]*`", "_", shown.text))):
        for pattern, advice in phrases.items():
            if match := pattern.search(sentence):
                near = sentence[max(match.start() - 30, 0) : match.start() + 60]
                yield f"{shown.path}:{shown.line}: {near!r}: {match[0][:20]!r}: {advice}"


def main() -> int:
    parts = tuple(sys.argv[1:] or [""])
    wrong = {line for text in shown() for line in complaints(text)}
    wrong |= {line for text in internal() for line in complaints(text, _EVERYWHERE)}
    wrong = {line for line in wrong if line.startswith(parts)}
    print(*sorted(wrong), sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
