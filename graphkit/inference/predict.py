"""Predict: apply a model to many samples, in batches, with bounded memory."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit import config
from graphkit.data.prefetching import prefetch
from graphkit.data.preprocessing.tokenizer import read_vocabulary
from graphkit.errors import UsageError
from graphkit.inference.batch_runner import BatchRunner
from graphkit.inference.batching import SampleRunner, fixed_batch_size
from graphkit.inference.class_ranking import ClassRanking, ClassScore
from graphkit.inference.hugging_face import with_files_beside
from graphkit.inference.samples import Chunk, Mapper, Part, Samples, open_samples
from graphkit.loading import load
from graphkit.model import Model
from graphkit.signatures import typed

if TYPE_CHECKING:
    from graphkit.data.images.feeding import Said
    from graphkit.data.preprocessing.vocabulary import Vocabulary
    from graphkit.executor.devices.groups import AnyDevice


@dataclass(frozen=True)
class Prediction:
    """Prediction for one sample.

    Attributes:
        number: Number of the sample, from 0.
        name: Its file; None for rows of a table or an array, and lines of a text.
        outputs: Arrays by output name, without the batch axis; empty if the sample could not be read.
        classes: The most probable classes, the most probable first; empty if no output scores classes.
        error: The message, if the sample could not be read (`skip_errors=True`).
    """

    number: int
    name: str | None
    outputs: Mapping[str, np.ndarray]
    classes: tuple[ClassScore, ...] = ()
    error: str | None = None


@dataclass
class PredictionStream(Iterator[Prediction]):
    """An iterator over the predictions of a model, in the order of the samples. `gk.predict` returns one.

    Attributes:
        samples: The samples.
        batch_size: Samples per batch.
        fixed_batch_size: The batch size that the model fixes, or None.
        skip_errors: Whether a sample that cannot be read becomes a Prediction with an error.
        failed: Number of samples so far that could not be read.
    """

    model: Model
    samples: Samples
    batch_size: int
    fixed_batch_size: int | None
    skip_errors: bool
    failed: int = 0
    _: KW_ONLY
    _classes: ClassRanking = field(repr=False)
    _runner: SampleRunner = field(repr=False)
    _readers: int = field(repr=False)  # threads that read samples

    def __post_init__(self) -> None:
        self._source = self._predictions()

    def __len__(self) -> int:
        """Return the number of all samples."""
        return len(self.samples)

    def __next__(self) -> Prediction:
        return next(self._source)

    @property
    def preprocessing(self) -> str | None:
        """How images, columns or texts become inputs, in words; None for arrays."""
        return self.samples.description

    @property
    def class_output(self) -> str | None:
        """The output that scores classes; None if there is none, or before the first prediction."""
        return self._classes.output

    def close(self) -> None:
        """Stop reading samples ahead. Needed only if you stop iterating early."""
        self._source.close()

    def _predictions(self) -> Generator[Prediction, None, None]:
        for chunk in prefetch(self._chunks()):
            found: list[Prediction] = []
            for number, error in chunk.errors.items():
                found.append(Prediction(number, self._name(number), {}, error=error))
            for part in chunk.parts:
                found += self._of_part(part)
            self.failed += len(chunk.errors)
            yield from sorted(found, key=lambda prediction: prediction.number)

    def _of_part(self, part: Part) -> Iterator[Prediction]:
        results = self._runner.run(part.inputs)
        if not self._classes.decided:
            self._classes.decide(results, self._runner.keys)
        classes = self._classes.of(results) or [()] * len(part.numbers)
        for place, number in enumerate(part.numbers):
            outputs = {name: array[place] for name, array in results.items()}
            yield Prediction(number, self._name(number), outputs, classes[place])

    def _name(self, number: int) -> str | None:
        return None if self.samples.names is None else self.samples.names[number]

    def _chunks(self) -> Iterator[Chunk]:
        with ExitStack() as stack:
            mapped: Mapper = map
            if self.samples.is_slow and self._readers > 1:
                mapped = stack.enter_context(ThreadPoolExecutor(self._readers, "graphkit-read")).map
            for start in range(0, len(self), self.batch_size):
                numbers = range(start, min(start + self.batch_size, len(self)))
                yield self.samples.chunk(numbers, self.skip_errors, mapped)


@typed("gk.predict")
def predict(
    model: Model | str | Path,
    inputs: Any,
    *,
    batch_size: int = 32,
    engine: str = "graphkit",
    device: AnyDevice = "cpu",
    threads: int | None = None,
    top: int | None = None,
    outputs: Sequence[str] | None = None,
    skip_errors: bool = False,
    images: Said | None = None,
    tokenizer: Vocabulary | str | Path | None = None,
    data_options: Mapping[str, Any] | None = None,
) -> PredictionStream:
    """Apply a model to many samples, in batches. Predictions come in the order of the samples.

    Samples of the next batch are read and decoded while a batch is computed. Memory does not grow with the number of
    images.

    Args:
        model: The model, or its file or run folder. For an ONNX file with an input `input_ids`, tokenizer.json and the
            class names of config.json beside it are used.
        inputs: An array or a dict of arrays by input name, whose first axis counts samples; or names of files. Names of
            images are files, folders (with all subfolders), glob patterns and `@LIST` (a file with one name per line).
            One .npy, .npz, .csv, .tsv, .parquet, .txt (one text per line), .jsonl or .rec file is possible, too.
        batch_size: Samples per batch. If the model fixes its size, batches are split, and the last one is padded.
        engine: "graphkit" or "onnxruntime".
        device: Device of graphkit's engine.
        threads: CPU threads for the model and for reading images (default: GRAPHKIT_NUM_THREADS, else one per core).
        top: Number of most probable classes for each sample. Default: 1 if the model has class names, else none.
        outputs: Names of the outputs to compute (default: all).
        skip_errors: Return a Prediction with an error for each image that cannot be read, instead of raising.
        images: Preprocessing of images, instead of that in the model's metadata.
        tokenizer: Encodes texts, instead of the vocabulary in the metadata: a Hugging Face tokenizer.json, a
            vocabulary.json of a run folder, or an object of `gk.data`.
        data_options: Options of a .csv or .tsv file, as in `gk.data.load`: header, delimiter, encoding, decimal.

    Returns:
        An iterator of `Prediction`; its length is the number of samples.

    Raises:
        UsageError: The first axis of an input or output is not the batch, or an argument is wrong.
        InputError: A file cannot be read, or does not match the model. The message names it.
    """
    if batch_size < 1 or (top is not None and top < 1):
        raise UsageError(f"gk.predict: batch_size={batch_size} and top={top} must be at least 1")
    net = model if isinstance(model, Model) else with_files_beside(load(model), model)[0]
    net = net.select(*outputs) if outputs else net
    fixed = fixed_batch_size(net)
    tokens = read_vocabulary(tokenizer) if isinstance(tokenizer, (str, Path)) else tokenizer
    samples = open_samples(inputs, net, images, tokens, data_options)
    size = batch_size if fixed is None else -(-batch_size // fixed) * fixed
    # ONNX Runtime runs the given file itself, unless only some outputs are wanted.
    file = model if not isinstance(model, Model) and not outputs and str(model).endswith(".onnx") else None
    runner = BatchRunner(net, engine, file=file, device=device, threads=threads)
    return PredictionStream(
        net, samples, size, fixed, skip_errors, _classes=ClassRanking(net, top), _runner=SampleRunner(net, runner),
        _readers=config.num_threads(threads),
    )  # fmt: skip
