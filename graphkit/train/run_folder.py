"""The folder of a run: one process at a time trains into it, and it contains one run."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

from graphkit.errors import InvalidModel, RuntimeFailure, UnsafeModel, UsageError
from graphkit.ir.atomic import sync_folder, write_whole
from graphkit.ir.locks import try_lock
from graphkit.train import checkpoint

LOCK = ".lock"
MODEL = "model.json"
BEST = "best.json"
# Of the command line: the options in effect, and how it was called.
CONFIG, RECORD = "config.toml", "run.json"

# In a folder without a checkpoint: the SHA-256 of the model that a run writes before its first one.
FIRST_SAVE = ".first-save"

# What training leaves in a folder, beside `.lock` and `.first-save`.
# `run.json` goes behind `config.toml`, which without it is of somebody else.
_FILES = (checkpoint.MANIFEST, MODEL, BEST, "log.jsonl", "vocabulary.json", CONFIG, RECORD)
_WEIGHTS = ("state.*.safetensors", "model.*.safetensors", "best.*.safetensors")


# What is read of a run folder, or written to it in place: no link may lead out of it unless the folder is trusted.
_READ = frozenset({*_FILES, LOCK, FIRST_SAVE, "tensorboard"})
_SUFFIXES = frozenset({".data", ".json", ".jsonl", ".npz", ".onnx", ".safetensors", ".toml"})


def check_links(folder: str | Path) -> None:
    """Refuse a run folder of which a file is a symbolic link that leads out of the folder.

    Otherwise the author of the folder could have any file of this machine read as a checkpoint, shown in a report, or
    written to.

    Raises:
        UnsafeModel: There is such a link; the message names it and its target.
    """
    top = Path(folder).resolve()
    try:
        with os.scandir(top) as entries:
            links = sorted(entry.name for entry in entries if entry.is_symlink())
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise RuntimeFailure(f"{folder} cannot be read: {error.strerror or error}") from error
    for name in links:
        target = Path(os.path.realpath(top / name))
        if (name in _READ or Path(name).suffix in _SUFFIXES) and top not in target.parents:
            raise UnsafeModel(
                f"{Path(folder) / name} is a symbolic link to {target}, outside of the run folder: copy the file, "
                "or pass --trust-run-folder (trusted=True) if the folder is your own"
            )


class RunFolder:
    """A folder that training writes to. `with` takes its lock, for as long as the block, or the process, lasts.

    Raises UsageError when another process, or another RunFolder of this one, has the lock: it says which. Where the
    file system has no locks, a warning says so. May be entered again inside the block. patience: seconds to wait.
    Folders that it has made, and that are empty at the end, are removed.
    """

    def __init__(self, path: str | Path, patience: float = 0.0):
        self.path = Path(path)
        self._patience = patience
        self._depth = 0
        self._descriptor: int | None = None
        self._made: list[Path] = []

    def __enter__(self) -> RunFolder:
        if not self._depth:
            self._lock()
        self._depth += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._depth -= 1
        if not self._depth and self._descriptor is not None:
            # While it is locked: nobody who has opened it takes a file without a name for the lock.
            with contextlib.suppress(OSError):
                (self.path / LOCK).unlink()
            with contextlib.suppress(OSError):  # the first that is not empty, or that another process has removed
                for folder in self._made:
                    folder.rmdir()
            os.close(self._descriptor)
            self._descriptor = None

    def _lock(self) -> None:
        path = self.path / LOCK
        deadline = time.monotonic() + self._patience
        try:
            self._made = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
            while True:
                self.path.mkdir(parents=True, exist_ok=True)
                try:
                    # What a link leads to would be emptied.
                    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
                except FileNotFoundError:  # another process has removed the empty folder
                    continue
                except OSError as error:
                    if path.is_symlink():
                        raise UnsafeModel(f"{path} is a symbolic link, not the lock of a run: remove it") from error
                    raise
                with contextlib.ExitStack() as opened:
                    opened.callback(os.close, descriptor)
                    locked = try_lock(descriptor)
                    if locked is None or (locked and _is_at(path, descriptor)):
                        os.ftruncate(descriptor, 0)
                        holder = {"pid": os.getpid(), "host": platform.node(), "since": time.time()}
                        os.write(descriptor, json.dumps(holder).encode())
                        opened.pop_all()
                        break
                    if locked:  # its last owner has just removed it
                        continue
                    if time.monotonic() >= deadline:
                        owner = _described(os.read(descriptor, 4096))
                        raise UsageError(
                            f"{self.path}: {owner} trains into this folder; wait until it ends, or use another folder"
                        )
                time.sleep(0.02)
        except OSError as error:
            raise RuntimeFailure(f"{self.path} cannot be written: {error.strerror or error}") from error
        if locked is None:
            warnings.warn(
                f"{self.path}: the file system has no locks; make sure that no other process trains into this folder",
                stacklevel=4,
            )
        self._descriptor = descriptor

    # --- what it holds ------------------------------------------------------------------------------

    def check(self, run: str | None = None) -> None:
        """Raise UsageError when it has a model or a checkpoint that is not of this run, of which None has none."""
        if held := self._others(run):
            raise UsageError(
                f"{self.path} already contains a run ({', '.join(held)}): continue it with --resume (Trainer.resume), "
                "replace it with --overwrite (overwrite=True), or use another folder"
            )

    def claim(self, run: str, *, overwrite: bool = False) -> None:
        """Make it the folder of a run, if `check` permits. overwrite: else remove what another run has left in it.

        What a run left that was killed in its first save, which nobody can go on with, is removed either way.
        """
        if not overwrite:
            self.check(run)
        if self._others(run) or self._is_of_first_save():
            # The mark of a first save goes last: it is what permits to remove the rest.
            for path in self._written():
                path.unlink(missing_ok=True)
        (self.path / FIRST_SAVE).unlink(missing_ok=True)

    def _others(self, run: str | None) -> list[str]:
        """The files that say that another run is here."""
        held = [name for name in (checkpoint.MANIFEST, MODEL) if (self.path / name).exists()]
        # A checkpoint that cannot be read is nobody's.
        with contextlib.suppress(InvalidModel):
            if checkpoint.MANIFEST in held and checkpoint.run_of(self.path) == run:
                return []
        return [] if self._is_of_first_save() else held

    def _is_of_first_save(self) -> bool:
        """Whether all it has is the model of a run that was stopped before the checkpoint of its first save."""
        if checkpoint.exists(self.path):
            return False
        try:
            return (self.path / FIRST_SAVE).read_text() == _digest(self.path / MODEL)
        except (OSError, UnicodeDecodeError):  # without the one or the other; what cannot be read is somebody's
            return False

    def _written(self) -> Iterator[Path]:
        # The manifests first: what is left at any moment is no checkpoint of anything.
        yield from (self.path / name for name in _FILES)
        for pattern in _WEIGHTS:
            yield from self.path.glob(pattern)


@contextlib.contextmanager
def model_then_checkpoint(folder: Path) -> Iterator[Callable[[Path], None] | None]:
    """Around the writing of a run's model, and after it of its checkpoint; gives `before` of `ir.serialize.save`.

    The checkpoint comes last: it says that the run has come so far, and that the model is there. A run that is stopped
    between its first model and its first checkpoint leaves a model that is marked as its own, not as one to keep.
    """
    mark = folder / FIRST_SAVE

    def announce(model: Path) -> None:
        write_whole(mark, [_digest(model).encode()])
        sync_folder(folder)

    yield None if checkpoint.exists(folder) else announce
    mark.unlink(missing_ok=True)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether an open file still has its name."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _described(text: bytes) -> str:
    try:
        found = json.loads(text)
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found["since"]))
        return f"process {found['pid']} on {found['host']} (since {since})"
    except (ValueError, KeyError, TypeError):
        return "another process"
