"""The folder of a run, to which one process at a time writes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

from graphkit.errors import InvalidModel, RuntimeFailure, UnsafeModel, UsageError
from graphkit.ir.atomic import sync_folder, write_whole
from graphkit.ir.locks import try_lock
from graphkit.train import checkpoint
from graphkit.train.adapter_marks import CONFIG as ADAPTER_CONFIG
from graphkit.train.adapter_marks import WEIGHTS as ADAPTER_WEIGHTS

LOCK = ".lock"
MODEL = "model.json"
BEST = "best.json"
ADAPTER_FILES = (ADAPTER_CONFIG, ADAPTER_WEIGHTS)
CONFIG, RECORD = "config.toml", "run.json"

FIRST_SAVE = ".first-save"

# The files of a run in the order of removal. `config.toml` is removed before `run.json`: without `run.json`, a later
# run would refuse to replace `config.toml`.
_FILES = (
    checkpoint.MANIFEST, MODEL, BEST, *ADAPTER_FILES, "log.jsonl", "vocabulary.json", CONFIG, RECORD,
)  # fmt: skip
_WEIGHTS = ("state.*.safetensors", "model.*.safetensors", "best.*.safetensors")
_BEST_OF_EPOCHS = re.compile(r"best-epoch-\d+(\.json|\.[0-9a-f]+\.safetensors)")


# Files that are read from a run folder, or overwritten in it. In a folder that is not trusted, they must not be links
# to places outside.
_READ = frozenset({*_FILES, LOCK, FIRST_SAVE, "tensorboard"})
_SUFFIXES = frozenset({".data", ".json", ".jsonl", ".npz", ".onnx", ".safetensors", ".toml"})


def best_of_epoch(epoch: int) -> str:
    return f"best-epoch-{epoch}.json"


def remove_model(path: Path) -> None:
    """Remove a model, then its weights: an interruption then leaves no model without weights."""
    path.unlink(missing_ok=True)
    for weights in path.parent.glob(f"{path.stem}.*.safetensors"):
        weights.unlink(missing_ok=True)


def check_links(folder: str | Path) -> None:
    """Raise UnsafeModel if a file of a run folder is a symbolic link to a place outside of the folder.

    A link could make graphkit read or overwrite any file of this machine.
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
    """A folder that training writes to. Its `with` block holds a lock on the folder.

    The block is reentrant. Its end removes empty folders that it has created.

    Args:
        patience: Seconds to wait for the lock.

    Raises:
        UsageError: Another process, or another RunFolder of this process, holds the lock.
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
            # Remove the file before the lock is released: a process that has opened the file, and now gets the lock,
            # sees that the file is gone.
            with contextlib.suppress(OSError):
                (self.path / LOCK).unlink()
            with contextlib.suppress(OSError):
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
                    # Without O_NOFOLLOW, the target of a link would be truncated below.
                    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
                except FileNotFoundError:
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
                    if locked:
                        # The previous holder of the lock has just removed the file: create it again.
                        continue
                    if time.monotonic() >= deadline:
                        owner = _describe_holder(os.read(descriptor, 4096))
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

    # --- files --------------------------------------------------------------------------------------

    def check(self, run: str | None = None) -> None:
        if files := self._files_of_another_run(run):
            raise UsageError(
                f"{self.path} already contains a run ({', '.join(files)}): continue it with --resume (Trainer.resume), "
                "replace it with --overwrite (overwrite=True), or use another folder"
            )

    def claim(self, run: str, *, overwrite: bool = False) -> None:
        """`overwrite` removes another run in the folder. Otherwise, another run raises UsageError.

        Files of a run that was killed during its first save are always removed.
        """
        if not overwrite:
            self.check(run)
        incomplete = self._is_incomplete_first_save()
        if incomplete or self._files_of_another_run(run):
            # If the first save was incomplete, remove FIRST_SAVE last, and the model just before it. If this process is
            # killed in between, a later run can finish the removal.
            for path in sorted(self._files_of_runs(), key=lambda path: incomplete and path.name == MODEL):
                path.unlink(missing_ok=True)
        (self.path / FIRST_SAVE).unlink(missing_ok=True)

    def _files_of_another_run(self, run: str | None) -> list[str]:
        files = [name for name in (checkpoint.MANIFEST, MODEL) if (self.path / name).exists()]
        # A checkpoint that cannot be read counts as one of another run.
        with contextlib.suppress(InvalidModel):
            if checkpoint.MANIFEST in files and checkpoint.run_of(self.path) == run:
                return []
        return [] if self._is_incomplete_first_save() else files

    def _is_incomplete_first_save(self) -> bool:
        if checkpoint.exists(self.path):
            return False
        try:
            return (self.path / FIRST_SAVE).read_text() == _digest(self.path / MODEL)
        except (OSError, UnicodeDecodeError):
            return False

    def _files_of_runs(self) -> Iterator[Path]:
        # Manifests first: if this process is killed in between, no incomplete checkpoint remains.
        yield from (self.path / name for name in _FILES)
        of_epochs = [path for path in self.path.glob("best-epoch-*") if _BEST_OF_EPOCHS.fullmatch(path.name)]
        yield from sorted(of_epochs, key=lambda path: path.suffix != ".json")
        for pattern in _WEIGHTS:
            yield from self.path.glob(pattern)


@contextlib.contextmanager
def model_then_checkpoint(folder: Path) -> Iterator[Callable[[Path], None] | None]:
    """Context in which a run writes its model and then its checkpoint. Yields the argument `before` of `Model.save`.

    FIRST_SAVE marks the model until the first checkpoint exists. If the run is killed before, a later run may remove
    the model.
    """
    first_save = folder / FIRST_SAVE

    def mark(model: Path) -> None:
        write_whole(first_save, [_digest(model).encode()])
        sync_folder(folder)

    yield None if checkpoint.exists(folder) else mark
    first_save.unlink(missing_ok=True)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _describe_holder(text: bytes) -> str:
    try:
        found = json.loads(text)
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found["since"]))
        return f"process {found['pid']} on {found['host']} (since {since})"
    except (ValueError, KeyError, TypeError):
        return "another process"
