"""Builds the extension with one native fault: compiles what the fault's file is part of, and links it with the rest.

Takes the commands and the objects of an existing build folder, `pip install -e . -C build-dir=FOLDER`, and writes
nothing there. The folder's objects have to be those of the sources.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mutation_planting import NATIVE, ROOT, Fault, apply

# A file that more objects are made of takes too long to compile again; three objects are one source for all
# instruction sets.
_MOST_OBJECTS = 6
_BOUND = re.compile(r'\(\s*m,\s*"(\w+)"|\bm\.def\(\s*"(\w+)"')


class Build:
    """The commands of a build folder."""

    def __init__(self, folder: Path):
        self._folder = folder.resolve()
        libraries = list(self._folder.glob("_native*.so"))
        if not libraries:
            raise SystemExit(f"{folder} has no extension: build it with pip install -e . -C build-dir={folder}")
        self.library = libraries[0].name
        self._compile: dict[str, list[str]] = {}
        self._link: list[str] = []
        for line in self._ninja("-t", "commands", self.library).splitlines():
            words = shlex.split(line)
            if "-c" in words and re.search(r"CMakeFiles/_native\w*\.dir/", line):
                self._compile[words[words.index("-o") + 1]] = words
            elif "-shared" in words and self.library in words:
                self._link = line.split("&&")[1].split()
        self._objects = self._dependents()

    def _ninja(self, *arguments: str) -> str:
        done = subprocess.run(["ninja", *arguments], cwd=self._folder, capture_output=True, text=True, check=True)
        return done.stdout

    def _dependents(self) -> dict[str, list[str]]:
        """Return the object files that depend on each native source or header, by its path from the root."""
        found: dict[str, list[str]] = defaultdict(list)
        start, current = f"{ROOT}/", ""
        for line in self._ninja("-t", "deps").splitlines():
            if line and not line[0].isspace():
                current = line.split(":")[0]
            elif line.strip().startswith(start + NATIVE) and current in self._compile:
                found[line.strip().removeprefix(start)].append(current)
        return found

    def plantable(self) -> dict[str, int]:
        """Return the files that few object files depend on, with the number of these."""
        return {file: len(objects) for file, objects in self._objects.items() if len(objects) <= _MOST_OBJECTS}

    def stale(self) -> list[str]:
        """Sources that have changed since the build folder's objects were made."""
        return [
            file
            for file, objects in self._objects.items()
            for made in objects[:1]
            if (ROOT / file).stat().st_mtime > (self._folder / made).stat().st_mtime
        ]

    def bound(self, file: str) -> list[str]:
        """Return the bindings of the sources in the fault's folder of kernels; empty for other files."""
        if not file.startswith(f"{NATIVE}/kernels/"):
            return []
        sources = (ROOT / file).parent.glob("*.cpp")
        return [a or b for path in sources for a, b in _BOUND.findall(path.read_text())]

    def make(self, fault: Fault, work: Path, target: Path, jobs: int) -> str:
        """Build the extension with the fault into `target`; return the compiler's complaint, if there is one."""
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(ROOT / NATIVE, work / NATIVE)
        path = work / fault.file
        path.write_text(apply(fault, path.read_text()))
        made = {name: work / f"{number}.o" for number, name in enumerate(self._objects[fault.file])}
        with ThreadPoolExecutor(jobs) as pool:
            complaints = list(pool.map(lambda item: self._compiled(*item, work), made.items()))
        if any(complaints):
            return next(filter(None, complaints))
        words = [str(made.get(word, word)) for word in self._link]
        words[words.index("-o") + 1] = str(target)
        return self._run(words)

    def _compiled(self, name: str, target: Path, work: Path) -> str:
        """Compile one object of the changed sources; return the compiler's complaint."""
        source, changed = f"{ROOT}/{NATIVE}", f"{work}/{NATIVE}"
        words = [word.replace(source, changed) for word in self._compile[name]]
        words[words.index("-o") + 1] = str(target)
        place = words.index("-c") + 1
        if not words[place].startswith(changed):  # one instruction set's file, which includes the source
            text = Path(words[place]).read_text().replace(source, changed)
            variant = target.with_suffix(".cpp")
            variant.write_text(text)
            words[place] = str(variant)
        for option in ("-MF", "-MT"):
            at = words.index(option)
            del words[at : at + 2]
        words.remove("-MD")
        return self._run([*words, "-w"])

    def _run(self, words: Sequence[str]) -> str:
        done = subprocess.run(words, cwd=self._folder, capture_output=True, text=True, check=False)
        return "" if done.returncode == 0 else (re.findall(r"error: .*", done.stderr) or [done.stderr[-300:]])[0]
