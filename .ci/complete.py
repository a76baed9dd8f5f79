"""Checks that the checks see everything: the files that tools look at, against those that git has.

    python .ci/complete.py tests LANE=RECORD...             every test file ran, and no case of tests/lanes.toml is lost
    python .ci/complete.py tests --write LANE=RECORD...     write the numbers of cases to tests/lanes.toml
    python .ci/complete.py sources MYPY_REPORT SITE         every source and page was seen

A RECORD is the file that a run of pytest wrote with GRAPHKIT_LANE_RECORD (see tests/lanes.py), MYPY_REPORT the folder
of `mypy --linecount-report`, SITE the folder that mkdocs wrote. Run it from the root of a git checkout.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

COUNTS = Path("tests/lanes.toml")
# The default lane's processor time may be this much on each worker process, in seconds.
DEFAULT_LIMIT = 8 * 60
_HEAD = """\
# How many cases each lane runs, by folder. `.ci/run` fails if the lanes together run fewer cases of a folder, because a
# case is lost then. If you remove tests, or when you release, write the numbers again: see CONTRIBUTING.md.
"""


def git_files(*patterns: str) -> set[str]:
    """The files that git has, from the root, of these patterns."""
    done = subprocess.run(["git", "ls-files", "-z", "--", *patterns], capture_output=True, text=True, check=True)
    return {name for name in done.stdout.split("\0") if name}


def differences(said: str, expected: Iterable[str], seen: Iterable[str]) -> list[str]:
    """A line for each expected file that is not seen. An empty expectation is a mistake of the check itself."""
    wanted = set(expected)
    if not wanted:
        return [f"{said} ...: no file is expected, which is a fault of this check"]
    return [f"{said} {name}" for name in sorted(wanted - set(seen))]


# --- tests ----------------------------------------------------------------------------------------


def folder_of(test: str) -> str:
    """The folder that a test is counted in: the first one below tests/."""
    parts = Path(test.split("::", 1)[0]).parts
    return "/".join(parts[:2]) if len(parts) > 2 else parts[0]


def counts_of(tests: Mapping[str, tuple[int, float]]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for test, (cases, _) in tests.items():
        counts[folder_of(test)] += cases
    return dict(sorted(counts.items()))


def lost_cases(known: Mapping[str, Mapping[str, int]], found: Mapping[str, Mapping[str, int]]) -> list[str]:
    """A line for each folder with lost cases: the lanes together run fewer than `known` says.

    A case may move to another lane, and a folder may have more cases. If the numbers are not written again then, the
    loss of as many cases is not noticed later.
    """
    problems = [f"the {lane} lane did not run" for lane in known if lane not in found]
    problems += [f"{COUNTS} has no numbers of the {lane} lane" for lane in found if lane not in known]
    if problems:
        return problems
    expected, counts = Counter[str](), Counter[str]()
    for lane, folders in found.items():
        expected.update(known[lane])
        counts.update(folders)
    return [
        f"{folder} has {counts[folder]} cases in {', '.join(found)}; {COUNTS} says {expected[folder]}"
        for folder in sorted(expected)
        if counts[folder] < expected[folder]
    ]


def check_tests(records: Mapping[str, Path], write: bool) -> list[str]:
    lanes = {lane: json.loads(path.read_text()) for lane, path in records.items()}
    files = {test.split("::", 1)[0] for record in lanes.values() for test in record["tests"]}
    problems = differences("no lane runs", git_files("test_*.py", "*/test_*.py", "*_test.py"), files)
    known = tomllib.loads(COUNTS.read_text()) if COUNTS.exists() else {}
    found = known | {lane: counts_of(record["tests"]) for lane, record in lanes.items()}
    if write:
        tables = (
            f"\n[{lane}]\n" + "".join(f'"{folder}" = {count}\n' for folder, count in counts.items())
            for lane, counts in found.items()
        )
        COUNTS.write_text(_HEAD + "".join(tables))
    else:
        problems += lost_cases(known, {lane: found[lane] for lane in lanes})
    default = lanes.get("default")
    if default is not None and default["processor"] > DEFAULT_LIMIT * default["workers"]:
        problems.append(
            f"the default lane took {default['processor']:.0f} s of processor time on {default['workers']} processes, "
            f"more than {DEFAULT_LIMIT} s on each"
        )
    return problems


# --- sources --------------------------------------------------------------------------------------

# Folders at the root that are installed as packages of graphkit.
_PACKAGES = {"graphkit": "graphkit", "cli": "graphkit.cli", "models": "graphkit.models"}


def modules() -> dict[str, str]:
    """The modules of the package by their files."""
    found = {}
    for name in git_files("graphkit/*.py", "cli/*.py", "models/*.py"):
        top, *rest = Path(name).with_suffix("").parts
        found[name] = ".".join([_PACKAGES[top], *rest]).removesuffix(".__init__")
    return found


def ruff_problems() -> list[str]:
    done = subprocess.run(["ruff", "check", "--show-files", "."], capture_output=True, text=True, check=True)
    seen = {os.path.relpath(line) for line in done.stdout.splitlines()}
    return differences("ruff does not see", git_files("*.py", "*.pyi") - {"graphkit/__init__.pyi"}, seen)


def mypy_problems(report: Path) -> list[str]:
    lines = (report / "linecount.txt").read_text().splitlines()
    return differences("mypy does not see", modules().values(), (line.split()[-1] for line in lines))


def contract_problems() -> list[str]:
    """grimp builds the graph that import-linter judges. It looks at the installed package, so not from the checkout."""
    code = "import grimp; print(*grimp.build_graph('graphkit', cache_dir=None).modules, sep='\\n')"
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/")
    return differences("the import contract does not see", modules().values(), done.stdout.split())


def site_problems(site: Path) -> list[str]:
    """Report pages of the repository that are not on the site, except forms of the code host and notes in tests."""
    pages = {name for name in git_files("*.md") if not name.startswith((".github/", "tests/"))}
    return differences("mkdocs does not see", pages, (name for name in pages if (site / page_of(name)).exists()))


def page_of(name: str) -> str:
    page = Path(name.removeprefix("docs/"))
    return str(page.with_name("index.html") if page.stem == "README" else page.with_suffix(".html"))


def main(arguments: list[str]) -> int:
    match arguments:
        case ["tests", "--write", *records] if records:
            problems = check_tests(named(records), write=True)
        case ["tests", *records] if records:
            problems = check_tests(named(records), write=False)
        case ["sources", report, site]:
            problems = [*ruff_problems(), *mypy_problems(Path(report)), *contract_problems()]
            problems += site_problems(Path(site))
        case _:
            sys.stderr.write(__doc__ or "")
            return 2
    print("\n".join(problems) or "nothing is left out")
    return 1 if problems else 0


def named(records: Iterable[str]) -> dict[str, Path]:
    return {lane: Path(path) for lane, path in (record.split("=", 1) for record in records)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
