"""graphkit generate"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphkit.cli._adapters import adapter_option, with_adapters
from graphkit.cli._groups import GENERATION, INPUTS, OUTPUT, GroupedCommand, option
from graphkit.cli._limits import limit_options
from graphkit.cli._options import (
    device_of,
    device_options,
    engine_option,
    json_option,
    key_values,
    model_file_options,
    read_model,
    tokenizer_option,
)
from graphkit.cli._output import log, print_json, print_table, show
from graphkit.cli._ranges import FloatRange, IntRange
from graphkit.errors import InputError, UsageError
from graphkit.loading import is_onnx_file
from graphkit.text import printable, quantity

if TYPE_CHECKING:
    from graphkit.data import Vocabulary
    from graphkit.inference.generation.results import Generation, Generations, Token

# Why generation stopped, for the user.
_STOPPED = {
    "end": "a token that ends the text", "stop": "a stop text", "max_tokens": "--max-tokens",
    "positions": "the positions of the model",
}  # fmt: skip


@click.command(cls=GroupedCommand)
@click.argument("model")
@click.argument("prompts", nargs=-1, metavar="[TEXT | -]...")
@option(
    "--ids", "numbers", group=INPUTS, multiple=True, metavar="N,N,...",
    help="A prompt as numbers of tokens, instead of TEXT. Repeatable.",
)  # fmt: skip
@tokenizer_option
@option(
    "--input", "arrays", group=INPUTS, multiple=True, metavar="NAME=FILE",
    help="Array of a further input, such as the states of an encoder: a .npy file, or an .npz file with an array NAME. "
    "It stays the same in all steps. Repeatable.",
)  # fmt: skip
@option(
    "--recurrent-state", "carries", group=INPUTS, multiple=True, metavar="INPUT=OUTPUT",
    help="Cache or recurrent state: feed OUTPUT of each step to INPUT of the next one. Default: pairs with usual "
    "names, such as past_key_values.0.key and present.0.key, or h and last_h. Repeatable.",
)  # fmt: skip
@option(
    "--output-name", "output", group=INPUTS, metavar="NAME",
    help="Output that scores the next token. Default: logits, or the only output that can.",
)  # fmt: skip
@option(
    "--batch-size", group=INPUTS, type=IntRange(1), default=8, show_default=True,
    help="Maximum number of prompts that run together.",
)  # fmt: skip
@option(
    "--max-positions", group=INPUTS, type=IntRange(1), metavar="N",
    help="Maximum number of tokens of prompt and result that the model may read. Default: the rows of its table of "
    "positions, if it has one.",
)  # fmt: skip
@option(
    "--max-tokens", group=GENERATION, type=IntRange(0), default=64, show_default=True, metavar="N",
    help="Maximum number of tokens after each prompt.",
)  # fmt: skip
@option(
    "--temperature", group=GENERATION, type=FloatRange(0), metavar="T",
    help="Divide the scores by T, and draw tokens at random. 0: choose the most probable token. Default: 1 with "
    "--top-k or --top-p, else 0.",
)  # fmt: skip
@option(
    "--top-k", group=GENERATION, type=IntRange(1), metavar="K", help="Draw only from the K most probable tokens."
)  # fmt: skip
@option(
    "--top-p", group=GENERATION, type=FloatRange(0, 1, min_open=True), metavar="P",
    help="Draw only from the most probable tokens whose probabilities sum up to P.",
)  # fmt: skip
@option(
    "--beams", group=GENERATION, type=IntRange(1), default=1, show_default=True, metavar="N",
    help="Beam search with N hypotheses.",
)  # fmt: skip
@option(
    "--length-penalty", group=GENERATION, type=float, default=0.0, show_default=True, metavar="A",
    help="Beam search compares log p / ((5 + length) / 6)^A.",
)  # fmt: skip
@option("--seed", group=GENERATION, type=IntRange(0), default=0, show_default=True, help="Seed of random tokens.")
@option(
    "--stop", "stops", group=GENERATION, multiple=True, metavar="TEXT",
    help="Text that ends generation. It is not part of the result. Repeatable.",
)  # fmt: skip
@option(
    "--end", "ends", group=GENERATION, multiple=True, metavar="TOKEN",
    help="Token that ends generation, by its name, or by its number if no token has this name. Default: usual names of "
    "a tokenizer, such as </s> and <|endoftext|>. Repeatable.",
)  # fmt: skip
@option("--no-end", group=GENERATION, is_flag=True, help="No token ends generation.")
@option(
    "--probabilities", group=OUTPUT, is_flag=True, help="Also print each token with its probability by the model."
)  # fmt: skip
@engine_option
@adapter_option
@device_options
@model_file_options
@limit_options
@json_option
def command(
    model: str, prompts: tuple[str, ...], numbers: tuple[str, ...], tokenizer: str | None, probabilities: bool,
    arrays: tuple[str, ...], carries: tuple[str, ...], stops: tuple[str, ...], ends: tuple[str, ...], no_end: bool,
    beams: int, device: str, adapters: tuple[str, ...], external_root: str | None, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Continue each TEXT with the decoder MODEL (.json, .onnx or a run folder), token by token.

    MODEL is a language model, with a cache of earlier tokens or without. Its inputs and outputs are found by their
    names: input_ids, attention_mask, position_ids, past_key_values.* and present.*, or others that have one possible
    meaning. A model without a cache runs on all tokens in each step.

    A text becomes tokens by the vocabulary in the model's metadata, or by a tokenizer.json (--tokenizer). - reads one
    TEXT from stdin.

    With one prompt, tokens are printed as they come.

    \b
    graphkit generate net.onnx "ROMEO:" --temperature 0.8
    graphkit generate gpt2/model.onnx "The meaning of life is" --tokenizer gpt2/tokenizer.json --top-k 40
    graphkit generate net.onnx "One." "Two." --max-tokens 20 --stop "." --json
    graphkit generate net.onnx --ids 1,15,7 --beams 4
    graphkit generate base.onnx "ROMEO:" --adapter tuned/ --adapter other/:0.5
    """
    from graphkit.data.description import vocabulary_of
    from graphkit.data.preprocessing.tokenizer import read_vocabulary
    from graphkit.inference.generation.generate import generate
    from graphkit.train.progress import ProgressBar

    given = _prompts(prompts, numbers)
    if model == "-":
        raise UsageError("graphkit generate cannot read MODEL from stdin; give its file")
    net = with_adapters(read_model(model, external_root, best=True), adapters)
    # ONNX Runtime runs the file itself, unless its weights are in another folder, or it gets adapters.
    runs_file = options["engine"] == "onnxruntime" and external_root is None and is_onnx_file(model) and not adapters
    vocabulary = vocabulary_of(net.meta) if tokenizer is None else read_vocabulary(tokenizer)
    printed = len(given) == 1 and beams == 1 and not as_json
    printer = _Printer(given[0], vocabulary) if printed else None
    with ProgressBar(None if printer is None else False) as bar:  # the bar would erase printed tokens
        if printer is None and beams == 1:
            bar.start("generating", len(given) * options["max_tokens"], transient=True)
        found = generate(
            model if runs_file else net, given, tokenizer=vocabulary, inputs=_arrays(arrays), beams=beams, stop=stops,
            end=_ends(ends, no_end, vocabulary),
            carry=key_values(carries, "--recurrent-state", "INPUT=OUTPUT"), probabilities=probabilities,
            on_token=printer or (None if beams > 1 else lambda token: None if token.last else bar.advance()),
            device=device_of(device), **options,
        )  # fmt: skip
    if printer is not None:
        printer.finish()
    for note in found.notes:
        log(note)
    if as_json:
        print_json("generate", _plain(net.name, found))
        return
    _print(given, found, vocabulary, texts=not printed)
    reasons = ", ".join(_STOPPED[each] for each in dict.fromkeys(item.stopped for item in found))
    log(
        f"{quantity(found.tokens, 'token')} in {found.seconds:.2f} s ({found.per_second:,.1f} per second); stopped by "
        f"{reasons}"
    )


class _Printer:
    """Prints the prompt, and each piece of text as it comes."""

    def __init__(self, prompt: Any, vocabulary: Vocabulary | None):
        self._vocabulary = vocabulary
        self._prompt: Any = prompt

    def __call__(self, token: Token) -> None:
        piece = (f" {token.id}" if not token.last else "") if self._vocabulary is None else token.text
        click.echo(printable(self._begin() + piece), nl=False)
        sys.stdout.flush()

    def finish(self) -> None:
        """End the line. If there was no token, print the prompt."""
        click.echo(printable(self._begin()))

    def _begin(self) -> str:
        """Return the text of the prompt at the first call, "" later. Numbers are checked before the first token."""
        prompt, self._prompt = self._prompt, ""
        if isinstance(prompt, str):
            return prompt
        return " ".join(map(str, prompt)) if self._vocabulary is None else self._vocabulary.decode(prompt)


def _prompts(texts: tuple[str, ...], numbers: tuple[str, ...]) -> list[Any]:
    """Return the prompts. Raises UsageError if there is none, or if there are texts and numbers."""
    if bool(texts) == bool(numbers):
        raise UsageError("give at least one prompt: a TEXT, - for stdin, or numbers of tokens (--ids), but not both")
    if texts.count("-") > 1:
        raise UsageError("-: stdin can be read only once")
    return [_from_stdin() if text == "-" else text for text in texts] or [_numbers(text) for text in numbers]


def _from_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise InputError(f"-: stdin is not UTF-8 text (byte {error.start})") from None


def _numbers(text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise UsageError(f"--ids {text}: expected numbers of tokens, as in 1,15,7") from None


def _ends(ends: tuple[str, ...], none: bool, vocabulary: Vocabulary | None) -> list[int | str] | None:
    """Return the tokens of --end, as names or numbers; None for the default."""
    if none:
        if ends:
            raise UsageError("--no-end and --end contradict each other: leave out one of them")
        return []
    named = [end for end in ends if vocabulary is not None and vocabulary.token_number(end) is not None]
    return [int(end) if end.isdecimal() and end not in named else end for end in ends] or None


def _arrays(pairs: tuple[str, ...]) -> dict[str, Any]:
    """Return the arrays of `--input`, by name."""
    from graphkit.data.files.npz import mapped_array, read_arrays

    found: dict[str, Any] = {}
    for name, file in key_values(pairs, "--input", "NAME=FILE").items():
        if file.endswith(".npy"):
            found[name] = mapped_array(Path(file))
            continue
        arrays = read_arrays(Path(file))
        if name not in arrays:
            names = ", ".join(map(repr, arrays)) or "none"
            raise InputError(f"--input {name}={file}: the file has no array {name!r}; its arrays: {names}")
        found[name] = arrays[name]
    return found


def _plain(model: str, found: Generations) -> dict[str, Any]:
    return {
        "model": model, "results": [dataclasses.asdict(item) for item in found], "tokens": found.tokens,
        "seconds": found.seconds, "per_second": found.per_second, "notes": found.notes,
    }  # fmt: skip


def _print(prompts: list[Any], found: Generations, vocabulary: Vocabulary | None, *, texts: bool) -> None:
    for number, (prompt, item) in enumerate(zip(prompts, found, strict=True)):
        if texts:
            if number:
                show("")
            if vocabulary is None:
                show(" ".join(map(str, (*item.prompt_ids, *item.ids))))
            else:
                show((prompt if isinstance(prompt, str) else vocabulary.decode(prompt)) + (item.text or ""))
        if item.hypotheses:
            rows = [
                (f"{h.log_probability:.4f}", _text(vocabulary, h.ids), _STOPPED[h.stopped]) for h in item.hypotheses
            ]
            print_table("hypotheses", ["log probability", "tokens", "stopped by"], rows)
        if item.probabilities is not None:
            print_table("tokens", ["number", "token", "probability"], _rows(item, vocabulary))


def _text(vocabulary: Vocabulary | None, ids: tuple[int, ...]) -> str:
    return " ".join(map(str, ids)) if vocabulary is None else repr(vocabulary.decode(ids))


def _rows(item: Generation, vocabulary: Vocabulary | None) -> list[tuple[Any, ...]]:
    assert item.probabilities is not None
    return [
        (number, "" if vocabulary is None else repr(vocabulary.tokens[number]), f"{share:.4f}")
        for number, share in zip(item.ids, item.probabilities, strict=True)
    ]
