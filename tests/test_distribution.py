"""The name of the distribution, and the commands that install it: in metadata, in messages, in the guides."""

import ast
import re
import tomllib
from pathlib import Path

import pytest
from combinations import in_one_item
from test_package import fresh

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = set(PROJECT["optional-dependencies"])
SOURCES = [
    path for folder in ("graphkit", "cli", "models") for path in (ROOT / folder).rglob("*.py")
    if path.name != "distribution.py"
]  # fmt: skip
# Names of other distributions in the package index.
OTHERS = {"graphkit/executor/devices/extension.py": "onednn-cpu-gomp", "graphkit/onnx_io/compare.py": "onnxruntime"}


def written() -> dict[str, str]:
    """Every file of the project that a reader may copy a command from, by its path."""
    patterns = (
        "*.md",
        "*.yml",
        "*.toml",
        "Dockerfile",
        ".pre-commit-config.yaml",
        ".ci/*",
        ".github/**/*.yml",
        "cmake/*",
    )
    folders = ("docs", "examples", "bench", "tests", "graphkit", "cli", "models")
    files = [path for pattern in patterns for path in ROOT.glob(pattern)]
    files += [p for folder in folders for p in (ROOT / folder).rglob("*") if p.suffix in (".md", ".py", ".sh", ".pyi")]
    return {str(p.relative_to(ROOT)): p.read_text("utf-8") for p in files if p.is_file() and p != Path(__file__)}


def test_no_command_installs_a_distribution_of_the_same_name() -> None:
    """`graphkit` on the package index is another project."""
    wrong = re.compile(r"graphkit\\?\[|pip install [^`\n]*(?<!of )\bgraphkit\b(?! (?:build|run|train|quickstart))")
    found = [f"{name}: {m[0]}" for name, text in written().items() for m in wrong.finditer(text)]
    assert [line for line in found if not line.startswith("bench/results/")] == []


def test_commands_name_extras_that_exist() -> None:
    named = re.compile(r"pip\s+install[^`\n]*\.\[([\w,$]+)\]")
    found = {m[1] for text in written().values() for m in named.finditer(text)}
    assert len(found) > 5
    assert {extra for names in found for extra in names.split(",")} - {"$extra"} <= EXTRAS


def test_extras_refer_to_this_distribution() -> None:
    inner = [r for wanted in PROJECT["optional-dependencies"].values() for r in wanted if r.startswith("graphkit")]
    assert inner
    for requirement in inner:
        name, extras = re.fullmatch(r"([\w-]+)\[([\w,]+)\]", requirement).groups()
        assert name == PROJECT["name"]
        assert set(extras.split(",")) <= EXTRAS


def test_messages_take_their_command_from_one_place() -> None:
    used = set()
    for path in SOURCES:
        text = path.read_text("utf-8")
        if "pip" not in text and "how_to_install" not in text:
            continue
        tree = ast.parse(text)
        docstrings = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "how_to_install":
                used |= {ast.literal_eval(argument) for argument in node.args}
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                other = OTHERS.get(str(path.relative_to(ROOT)))
                assert "pip install" not in node.value or other, f"{path.name}:{node.lineno}"
    assert {"images", "mpi", "text", "tables", "curves", "cuda12", "cuda13"} <= used <= EXTRAS


def test_how_to_install() -> None:
    from graphkit.distribution import how_to_install

    assert how_to_install() == "pip install . in a clone of graphkit"
    assert how_to_install("images") == "pip install '.[images]' in a clone of graphkit"
    assert how_to_install("cuda12", "cuda13") == "pip install '.[cuda12]' (or '.[cuda13]') in a clone of graphkit"


def installed(folder: Path, name: str, version: str, command: str = "") -> None:
    """The metadata of an installed distribution, without the packages."""
    entry = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    entry.mkdir(parents=True)
    (entry / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    if command:
        (entry / "entry_points.txt").write_text(f"[console_scripts]\ngraphkit = {command}\n")


@in_one_item()
@pytest.mark.parametrize(
    ("distributions", "expected"),
    [
        ([(PROJECT["name"], "7.1"), ("graphkit", "1.2.4")], "7.1 True"),
        ([("graphkit", "0.3", "graphkit.cli:main")], "0.3 True"),
        ([("graphkit", "1.2.4")], "not installed False"),
        ([], "not installed False"),
    ],
    ids=["both", "older name", "another project", "none"],
)
def test_version_is_of_this_distribution(tmp_path: Path, distributions, expected) -> None:
    for facts in distributions:
        installed(tmp_path, *facts)
    code = f"""
import sys, graphkit
import importlib.metadata, graphkit.errors, graphkit.distribution as d
sys.path[:] = [p for p in sys.path if "-packages" not in p]
sys.path.insert(0, {str(tmp_path)!r})
try:
    print(graphkit.__version__, d.is_installed())
except graphkit.errors.MissingDependency as error:
    assert "pip install ." in str(error)
    print("not installed", d.is_installed())
"""
    assert fresh(code) == expected
