"""Load the Free Spoken Digit Dataset for training (`--data recordings.py:load`).

Recordings 0 to 4 of each speaker and digit are the test part, as defined by the authors of the data set. A wave has
8,192 samples, 1.024 seconds: shorter ones are padded with zeros, longer ones are truncated.
"""

from __future__ import annotations

import re
import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from graphkit.data.files.npz import read_arrays
from graphkit.errors import InputError

RATE, SAMPLES = 8000, 8192
TESTED = 5  # test recordings of each speaker and digit
CLASSES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]

_NAME = re.compile(r"([0-9])_([A-Za-z]+)_([0-9]+)")


def samples(path: Path) -> np.ndarray:
    """Return the samples of a .wav file, int16 [samples]. Raises InputError, which names the file."""
    try:
        with path.open("rb") as file, wave.open(file) as sound:
            form = sound.getnchannels(), 8 * sound.getsampwidth(), sound.getframerate()
            found = sound.readframes(sound.getnframes())
            whole = len(found) == sound.getnframes() * sound.getsampwidth() * sound.getnchannels()
    except (OSError, EOFError, wave.Error, RuntimeError) as error:  # RuntimeError: the size of a chunk is wrong
        raise InputError(f"{path}: {str(error) or 'it ends too early'}") from None
    if form != (1, 16, RATE):
        raise InputError(
            f"{path}: {form[0]} channels of {form[1]} bits at {form[2]} Hz, not one of 16 bits at {RATE} Hz"
        )
    if not whole:
        raise InputError(f"{path}: it ends too early")
    return np.frombuffer(found, "<i2")


def recordings(source: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (DIGIT_SPEAKER_NUMBER, int16 [samples]) in the order of names. Raises InputError for a bad recording."""
    if source.is_dir():
        yield from ((path.stem, samples(path)) for path in sorted(source.glob("*.wav")))
        return
    arrays = read_arrays(source)
    yield from ((name, arrays[name]) for name in sorted(arrays))


def load(folder: str = "recordings") -> dict[str, np.ndarray]:
    """Load the data set.

    Args:
        folder: Folder with files DIGIT_SPEAKER_NUMBER.wav of 8 kHz, or an .npz file with one int16 array under each
            such name.

    Returns:
        x_train, x_test: int16 [N, SAMPLES]; y_train, y_test: int64 [N]; classes: the names of the digits.

    Raises:
        InputError: A recording cannot be read. The message names it.
    """
    source = Path(folder)
    waves: dict[str, list[np.ndarray]] = {"train": [], "test": []}
    digits: dict[str, list[int]] = {"train": [], "test": []}
    for name, sound in recordings(source):
        found = _NAME.fullmatch(name)
        if found is None:
            raise InputError(f"{source}: {name!r} is not DIGIT_SPEAKER_NUMBER")
        if sound.ndim != 1 or sound.dtype != np.int16 or not sound.size:
            raise InputError(f"{source}: {name} is {sound.dtype}{list(sound.shape)}, not one channel of 16 bits")
        part = "test" if int(found[3]) < TESTED else "train"
        waves[part].append(np.pad(sound[:SAMPLES], (0, max(0, SAMPLES - len(sound)))))
        digits[part].append(int(found[1]))
    if not all(waves.values()):
        held = {part: len(made) for part, made in waves.items()}
        raise InputError(f"{source}: {held['train']} recordings to train on and {held['test']} to test")
    arrays = {f"x_{part}": np.stack(made) for part, made in waves.items()}
    arrays |= {f"y_{part}": np.array(made, np.int64) for part, made in digits.items()}
    return {**arrays, "classes": np.array(CLASSES)}
