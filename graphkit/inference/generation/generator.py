"""Generates tokens after prompts: greedily or at random for several prompts together, or by beam search for one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from graphkit.data.preprocessing.vocabulary import Vocabulary
from graphkit.inference.generation.beams import Search, beam_search
from graphkit.inference.generation.choosing import Choice, softmax, without
from graphkit.inference.generation.decoder import Decoder, check_scores
from graphkit.inference.generation.results import Generation, Token
from graphkit.inference.generation.text_stream import TextStream


@dataclass(frozen=True)
class Settings:
    """How tokens are generated. The attributes are arguments of `gk.generate`.

    ends: Tokens that end a text. limit: Number of positions of the model.
    """

    max_tokens: int
    choice: Choice
    beams: int
    length_penalty: float
    seed: int
    stops: Sequence[str]
    ends: frozenset[int]
    limit: int | None
    probabilities: bool
    vocabulary: Vocabulary | None
    on_token: Callable[[Token], object] | None

    def ended(self, prompt: int, ids: Sequence[int]) -> str:
        """Return why generation ends after a token, or "". prompt: number of tokens of the prompt."""
        if ids[-1] in self.ends:
            return "end"
        if len(ids) >= self.max_tokens:
            return "max_tokens"
        # The last token is not fed, so it needs no position.
        return "positions" if self.limit is not None and prompt + len(ids) > self.limit else ""

    def usable(self, scores: np.ndarray) -> np.ndarray:
        """Return scores with minus infinity at tokens without text."""
        found = self.vocabulary
        return scores if found is None else without(scores, found.unwritten, len(found))


@dataclass
class _Row:
    """A prompt and the tokens after it. number: of the prompt."""

    number: int
    prompt: np.ndarray
    settings: Settings
    ids: list[int] = field(default_factory=list)
    probabilities: list[float] = field(default_factory=list)
    stopped: str = ""

    def __post_init__(self) -> None:
        # Each prompt has its own generator, so that its tokens do not depend on the other prompts.
        random = self.settings.choice.random
        self._rng = np.random.default_rng([self.settings.seed, self.number]) if random else None
        found = self.settings.vocabulary
        self._text = None if found is None else TextStream(found, self.prompt.tolist(), self.settings.stops)

    def choose(self, scores: np.ndarray, usable: np.ndarray) -> int:
        """Append the next token and return it. scores: of the model, [V]. usable: without tokens that have no text."""
        token = self.settings.choice.pick(usable, self._rng)
        self.ids.append(token)
        if self.settings.probabilities:
            self.probabilities.append(float(softmax(scores)[token]))
        self.stopped = self.settings.ended(len(self.prompt), self.ids)
        piece = ""
        if self._text is not None:
            piece = self._text.add(token)
            self.stopped = "stop" if self._text.stopped else self.stopped
        self._tell(token, piece, last=False)
        if self.stopped and self._text is not None and (rest := self._text.finish()):
            self._tell(token, rest, last=True)
        return token

    def _tell(self, token: int, text: str, last: bool) -> None:
        if self.settings.on_token is not None:
            self.settings.on_token(Token(self.number, len(self.ids) - 1, token, text, last))

    def result(self) -> Generation:
        return Generation(
            tuple(self.prompt.tolist()), tuple(self.ids), None if self._text is None else self._text.text,
            self.stopped or "max_tokens", tuple(self.probabilities) if self.settings.probabilities else None,
        )  # fmt: skip


def generate_together(
    decoder: Decoder, prompts: Sequence[np.ndarray], numbers: Sequence[int], settings: Settings
) -> list[Generation]:
    """Generate tokens after prompts that run in one batch. numbers: of the prompts among all."""
    rows = [_Row(number, prompt, settings) for number, prompt in zip(numbers, prompts, strict=True)]
    if settings.max_tokens == 0:
        return [row.result() for row in rows]
    longest = max(map(len, prompts))
    padded = any(len(prompt) < longest for prompt in prompts)
    tokens = np.full((len(rows), longest), decoder.padding, np.int64)
    for filled, prompt in zip(tokens, prompts, strict=True):
        filled[longest - len(prompt) :] = prompt
    sequences, active = decoder.begin(prompts, numbers), rows
    while True:
        scores = sequences.feed(tokens)
        check_scores(scores, len(active[0].ids) + 1, [row.number for row in active], padded)
        usable = settings.usable(scores)
        if usable is not scores:
            check_scores(usable, len(active[0].ids) + 1, [row.number for row in active], padded)
        chosen = [row.choose(s, u) for row, s, u in zip(active, scores, usable, strict=True)]
        going = [place for place, row in enumerate(active) if not row.stopped]
        if not going:
            return [row.result() for row in rows]
        if len(going) < len(active):
            sequences, active = sequences.select(going), [active[place] for place in going]
        tokens = np.array([[chosen[place]] for place in going], np.int64)


class _Texts:
    """The texts of hypotheses. Each is decoded from the text of the hypothesis that it continues.

    start: The text before the first token.
    """

    def __init__(self, start: TextStream):
        self._streams: dict[tuple[int, ...], TextStream] = {(): start}
        self._length = 0

    def of(self, ids: tuple[int, ...]) -> TextStream:
        """Return the complete text of a hypothesis, up to a stop text."""
        found = self._stream(ids).copy()
        found.finish()
        return found

    def _stream(self, ids: tuple[int, ...]) -> TextStream:
        if ids in self._streams:
            return self._streams[ids]
        known = next(length for length in range(len(ids) - 1, -1, -1) if ids[:length] in self._streams)
        stream = self._streams[ids[:known]].copy()
        for token in ids[known:]:
            if stream.stopped:
                break
            stream.add(token)
        if len(ids) > self._length:  # a new step: later hypotheses continue those of the last one
            self._length = len(ids)
            kept = (self._length - 1, 0)
            self._streams = {key: each for key, each in self._streams.items() if len(key) in kept}
        self._streams[ids] = stream
        return stream


def generate_beams(decoder: Decoder, prompt: np.ndarray, number: int, settings: Settings) -> Generation:
    """Generate tokens after a prompt by beam search. number: of the prompt among all."""
    ids, given = prompt.tolist(), settings.vocabulary
    texts = None if given is None else _Texts(TextStream(given, ids, settings.stops))

    def ended(found: tuple[int, ...]) -> str:
        if settings.stops and texts is not None and texts.of(found).stopped:
            return "stop"
        return settings.ended(len(prompt), found)

    def checked(scores: np.ndarray, step: int) -> np.ndarray:
        check_scores(scores, step, [number] * len(scores), padded=False)
        usable = settings.usable(scores)
        if usable is not scores:
            check_scores(usable, step, [number] * len(scores), padded=False)
        return usable

    if settings.max_tokens == 0:
        return _Row(number, prompt, settings).result()
    sequences = decoder.begin([prompt], [number])
    first = sequences.feed(prompt[None])
    search = Search(settings.beams, settings.max_tokens, settings.length_penalty, ended)
    found = beam_search(search, first, sequences, checked)
    best = found[0]
    return Generation(
        tuple(ids), best.ids, None if texts is None else texts.of(best.ids).text, best.stopped,
        log_probability=best.log_probability, hypotheses=tuple(found),
    )  # fmt: skip
