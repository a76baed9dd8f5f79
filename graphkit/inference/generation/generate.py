"""Generate: continue texts with a decoder, token by token."""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit.data.description import vocabulary_of
from graphkit.data.preprocessing.tokenizer import read_vocabulary
from graphkit.data.preprocessing.vocabulary import Vocabulary
from graphkit.errors import UsageError
from graphkit.inference.engines import open_engine
from graphkit.inference.generation.choosing import Choice
from graphkit.inference.generation.decoder import Decoder, Run
from graphkit.inference.generation.generator import Settings, generate_beams, generate_together
from graphkit.inference.generation.prompts import batches, check_prompts, encoded_prompts
from graphkit.inference.generation.results import Generation, Generations, Token
from graphkit.inference.generation.roles import Roles, find_roles
from graphkit.inference.position_table import PositionTable, position_table
from graphkit.ir.graph import Graph
from graphkit.ir.types import TensorType
from graphkit.loading import is_onnx_file, load
from graphkit.model import Model
from graphkit.signatures import typed
from graphkit.text import listed

if TYPE_CHECKING:
    from graphkit.executor.devices.groups import AnyDevice

# For each model its graph, and what runs it: packed weights, programs and sessions of ONNX Runtime are made once. Keys
# are outputs, device and threads, for a session its engine, device and threads, and for roles the arguments of
# `find_roles`.
_kept: weakref.WeakKeyDictionary[Model, tuple[Graph, dict[Any, Any]]] = weakref.WeakKeyDictionary()


@typed("gk.generate")
def generate(
    model: Model | str | Path,
    prompt: Any,
    *,
    max_tokens: int = 64,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    beams: int = 1,
    length_penalty: float = 0.0,
    seed: int = 0,
    stop: str | Sequence[str] = (),
    end: int | str | Sequence[int | str] | None = None,
    tokenizer: Vocabulary | str | Path | None = None,
    batch_size: int = 8,
    max_positions: int | None = None,
    probabilities: bool = False,
    on_token: Callable[[Token], object] | None = None,
    inputs: Mapping[str, Any] | None = None,
    carry: Mapping[str, str] | None = None,
    output: str | None = None,
    engine: str = "graphkit",
    device: AnyDevice = "cpu",
    threads: int | None = None,
) -> Generations:
    """Continue texts with a decoder: a language model, with a cache of earlier tokens or without.

    The most probable token is chosen at each step. With `temperature`, `top_k` or `top_p`, tokens are drawn at random.

    Inputs and outputs are found by their names: `input_ids`, `attention_mask`, `position_ids`, and pairs such as
    `past_key_values.0.key` and `present.0.key`, or `h` and `last_h`. A decoder without a cache runs on all tokens at
    each step.

    Args:
        model: The model, or its file or run folder. Programs are kept from call to call if you pass the same Model.
        prompt: A text, the numbers of its tokens, or a list of such prompts.
        max_tokens: Maximum number of tokens after each prompt.
        temperature: Scores are divided by it before a token is drawn. 0: the most probable token. Default: 1 with
            `top_k` or `top_p`, else 0.
        top_k: Draw only from the `top_k` most probable tokens.
        top_p: Draw only from the most probable tokens whose probabilities sum up to `top_p`.
        beams: Number of hypotheses of a beam search. 1: no beam search.
        length_penalty: Beam search compares log p / ((5 + length) / 6)^length_penalty.
        seed: Seed of random tokens. The tokens after a prompt do not depend on the other prompts of a batch.
        stop: Texts that end generation. They are not part of the result.
        end: Tokens that end generation, as numbers or names. Default: those with usual names in a tokenizer, such as
            </s> and <|endoftext|>. An empty list: none.
        tokenizer: A Hugging Face tokenizer.json, a vocabulary.json of a run folder, or an object of `gk.data`. Default:
            the vocabulary in the model's metadata.
        batch_size: Maximum number of prompts that run together. Prompts of different lengths run together if the model
            has an attention mask and computes positions from it, or gets them as an input.
        max_positions: Maximum number of tokens of prompt and result that the model may read. Default: the rows of its
            table of positions, if it has one.
        probabilities: Return the probability of each token.
        on_token: Function that is called with each `Token` when it is generated. Not for a beam search.
        inputs: Arrays for further inputs, by name, such as the states of an encoder. They stay the same. If the first
            axis of an input is the batch, the array has one row per prompt, or one row for all.
        carry: Pairs of a cache, {input: output}, if the names do not tell.
        output: The output that scores the next token. Default: `logits`, or the only one that can.
        engine: "graphkit" or "onnxruntime".
        device: Device of graphkit's engine.
        threads: Number of CPU threads.

    Returns:
        A sequence with one Generation per prompt. With one prompt, its `text` and `ids` are those of the result.

    Raises:
        UsageError: The role of an input or output is ambiguous or unknown, or arguments contradict each other.
        InputError: A prompt is empty or too long, or cannot be encoded.
        NotFinite: The model computes NaN. The message names the step.
    """
    carry, given = carry or {}, dict(inputs or {})
    choice = Choice.of(temperature, top_k, top_p)
    _check(max_tokens, seed, batch_size, max_positions)
    _check_beams(beams, length_penalty, choice, probabilities, on_token)
    net = model if isinstance(model, Model) else load(model)
    vocabulary = _vocabulary(net, tokenizer)
    prompts = encoded_prompts(prompt, vocabulary)
    roles, table = _roles_and_table(net, given, carry, output)
    limit = _limit(roles, max_positions, None if table is None else table.rows)
    scored = _scored(net, roles)
    check_prompts(prompts, None if vocabulary is None else len(vocabulary), scored, limit)
    settings = Settings(
        max_tokens, choice, beams, length_penalty, seed, _stops(stop, vocabulary), _ends(end, vocabulary), limit,
        probabilities, vocabulary, on_token,
    )  # fmt: skip
    file = model if not isinstance(model, Model) and is_onnx_file(model) else None
    run = _run(net, roles, engine, file, device, threads)
    types = net.input_types
    padding = 0 if vocabulary is None else vocabulary.padding
    decoder = Decoder(run, roles, types, _arrays(types, given, len(prompts)), padding, net.name)
    groups = batches(prompts, 1 if beams > 1 else batch_size, _pads(roles, table))
    begin = time.perf_counter()
    items = _generated(decoder, prompts, groups, settings)
    seconds = time.perf_counter() - begin
    return Generations(items, seconds, tuple(_notes(roles, vocabulary, scored, settings, items)))


def _generated(
    decoder: Decoder, prompts: Sequence[np.ndarray], groups: Sequence[Sequence[int]], settings: Settings
) -> tuple[Generation, ...]:
    """Return the results in the order of the prompts. groups: the numbers of the prompts that run together."""
    found: dict[int, Generation] = {}
    for group in groups:
        chosen = [prompts[number] for number in group]
        if settings.beams > 1:
            found[group[0]] = generate_beams(decoder, chosen[0], group[0], settings)
        else:
            found.update(zip(group, generate_together(decoder, chosen, group, settings), strict=True))
    return tuple(found[number] for number in range(len(prompts)))


def _check(max_tokens: int, seed: int, batch_size: int, max_positions: int | None) -> None:
    """Raise UsageError if an argument is out of range."""
    if max_tokens < 0 or seed < 0 or batch_size < 1 or (max_positions is not None and max_positions < 1):
        raise UsageError(
            f"gk.generate: max_tokens={max_tokens} and seed={seed} must be at least 0, batch_size={batch_size} and "
            f"max_positions={max_positions} at least 1"
        )


def _check_beams(beams: int, penalty: float, choice: Choice, probabilities: bool, on_token: Any) -> None:
    """Raise UsageError if other arguments contradict the number of beams."""
    if beams < 1 or not math.isfinite(penalty):
        raise UsageError(f"gk.generate: beams={beams} must be at least 1, length_penalty={penalty} a finite number")
    if beams == 1 and penalty:
        raise UsageError("gk.generate: length_penalty is for a beam search: also give beams (--beams)")
    if beams == 1:
        return
    if choice.random:
        raise UsageError("gk.generate: beam search (beams) draws no tokens: leave out temperature, top_k and top_p")
    if probabilities:
        raise UsageError(
            "gk.generate: beam search (beams) returns the log probability of each hypothesis: leave out probabilities"
        )
    if on_token is not None:
        raise UsageError("gk.generate: beam search (beams) knows its tokens only at the end: leave out on_token")


def _pads(roles: Roles, table: PositionTable | None) -> bool:
    """Return whether shorter prompts of a batch can be padded on the left without a change of their results.

    The mask must hide padding, positions must not count it, and there must be no state that padding changes.
    """
    if roles.mask is None or roles.batch is not None or any(cache.grows is None for cache in roles.caches):
        return False
    return roles.positions is not None or (table is not None and table.counts_mask)


def _vocabulary(net: Model, tokenizer: Vocabulary | str | Path | None) -> Vocabulary | None:
    if tokenizer is None:
        return vocabulary_of(net.meta)
    return tokenizer if isinstance(tokenizer, Vocabulary) else read_vocabulary(tokenizer)


def _stops(stop: str | Sequence[str], vocabulary: Vocabulary | None) -> Sequence[str]:
    """Return the stop texts. Raises UsageError if one is empty, or if there is no vocabulary."""
    stops = [stop] if isinstance(stop, str) else list(stop)
    if vocabulary is None and stops:
        raise UsageError("gk.generate: stop texts (stop=, --stop) need a vocabulary or a tokenizer (tokenizer=)")
    if "" in stops:
        raise UsageError("gk.generate: a stop text (stop=, --stop) is empty")
    return stops


def _limit(roles: Roles, given: int | None, rows: int | None) -> int | None:
    """Return the number of tokens that the model may read."""
    fixed = None if roles.caches else roles.length
    return min((n for n in (given, rows, fixed) if n is not None), default=None)


def _scored(net: Model, roles: Roles) -> int | None:
    """Return the number of tokens that the model scores; None if its file does not say."""
    kind = net.output_types[roles.scores]
    size = kind.shape[-1] if isinstance(kind, TensorType) and kind.shape else None
    return size if isinstance(size, int) else None


def _ends(end: Any, vocabulary: Vocabulary | None) -> frozenset[int]:
    """Return the tokens that end a text. Raises UsageError for a name that the vocabulary does not contain."""
    if end is None:
        return frozenset(() if vocabulary is None else vocabulary.ends)
    found = set()
    for each in [end] if isinstance(end, (int, np.integer, str)) else end:
        named = None if vocabulary is None or not isinstance(each, str) else vocabulary.token_number(each)
        number = named if isinstance(each, str) else int(each)
        if number is None or number < 0 or (vocabulary is not None and number >= len(vocabulary)):
            raise UsageError(
                f"gk.generate: there is no token {each!r} (end=, --end): "
                + ("without a vocabulary, give its number" if vocabulary is None else f"it is not in {vocabulary!r}")
            )
        found.add(number)
    return frozenset(found)


def _arrays(types: Mapping[str, Any], given: Mapping[str, Any], prompts: int) -> dict[str, np.ndarray]:
    """Return the arrays that the caller gave. Raises UsageError if an array has neither one row nor one per prompt."""
    arrays = {name: np.asarray(array) for name, array in given.items()}
    for name, array in arrays.items():
        kind = types[name]
        by_row = isinstance(kind, TensorType) and kind.shape and not isinstance(kind.shape[0], int)
        if by_row and (not array.ndim or len(array) not in (1, prompts)):
            raise UsageError(
                f"gk.generate: input {name!r} is {kind}, and its array has the shape {list(array.shape)}; the first "
                f"axis must have size 1 or {prompts}, the number of prompts"
            )
    return arrays


def _kept_of(net: Model) -> dict[Any, Any]:
    """Return what is kept for a model, as long as its graph stays the same."""
    graph, kept = _kept.setdefault(net, (net.graph, {}))
    if graph is not net.graph:  # Model.separate_roles replaces graph and parameters
        kept = {}
        _kept[net] = (net.graph, kept)
    return kept


def _roles_and_table(
    net: Model, given: Mapping[str, Any], carry: Mapping[str, str], output: str | None
) -> tuple[Roles, PositionTable | None]:
    """Return the roles of inputs and outputs, and the table of positions. They are found once for each graph."""
    kept, key = _kept_of(net), ("roles", tuple(given), tuple(carry.items()), output)
    if key not in kept:
        roles = find_roles(net, given, carry, output)
        kept[key] = roles, position_table(net, roles.positions, roles.mask)
    found: tuple[Roles, PositionTable | None] = kept[key]
    return found


def _run(net: Model, roles: Roles, engine: str, file: Any, device: AnyDevice, threads: int | None) -> Run:
    """Return a function that computes the outputs of a step."""
    if file is not None and engine != "graphkit":  # the model was read for this call
        session = open_engine(net, engine, file=file, device=device, threads=threads)
        return lambda feeds: session(feeds, roles.outputs)
    kept = _kept_of(net)
    if engine != "graphkit":
        # A session contains the parameters of its export, so it is kept until one of them changes.
        versions = tuple(map(net.params.version, net.params))
        known, session = kept.get((engine, repr(device), threads), (None, None))
        if session is None or known != versions:
            session = open_engine(net, engine, device=device, threads=threads)
            kept[engine, repr(device), threads] = (versions, session)
        return lambda feeds: session(feeds, roles.outputs)
    key = (roles.outputs, repr(device), threads)
    if key not in kept:
        # A program for all outputs is found faster than one for some of them.
        chosen = net if set(net.outputs) == set(roles.outputs) else net.select(*roles.outputs)
        kept[key] = chosen.compile(device, threads=threads).run
    run: Run = kept[key]
    return run


def _notes(
    roles: Roles, vocabulary: Vocabulary | None, scored: int | None, settings: Settings, items: Sequence[Generation]
) -> list[str]:
    """Return sentences about how the model was run."""
    notes = []
    if not roles.caches:
        notes.append("the model has no cache: each step runs it on all tokens")
    if roles.scores != "logits":
        notes.append(f"output {roles.scores!r} is read as the scores of the next token")
    if vocabulary is not None and scored is not None and len(vocabulary) < scored:
        notes.append(
            f"the model scores {scored:,} tokens and the vocabulary has {len(vocabulary):,}: the others are not chosen"
        )
    short = [number for number, item in enumerate(items) if item.stopped == "positions"]
    if short:
        notes.append(
            f"stopped at {settings.limit:,} tokens, the number of positions of the model, after prompt "
            f"{listed(short, len(short))}"
        )
    return notes
