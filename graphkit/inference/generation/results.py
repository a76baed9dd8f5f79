"""The results of text generation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from graphkit.errors import UsageError
from graphkit.inference.generation.beams import Hypothesis


@dataclass(frozen=True)
class Token:
    """A token that was just generated, for the callback of `gk.generate`.

    Attributes:
        prompt: Number of the prompt, from 0.
        number: Number of the token after the prompt, from 0.
        id: Number of the token in the vocabulary.
        text: The text that is complete with this token. Empty if a character is incomplete, or without a vocabulary.
        last: Whether this is only the rest of the text, after the last token. `id` is that of the last token.
    """

    prompt: int
    number: int
    id: int
    text: str
    last: bool = False


@dataclass(frozen=True)
class Generation:
    """The tokens and the text that were generated after one prompt.

    Attributes:
        prompt_ids: The tokens of the prompt.
        ids: The tokens after the prompt, including one that ends the text.
        text: The text after the prompt, up to a stop text; None without a vocabulary.
        stopped: Why it stopped: "end" (a token that ends the text), "stop" (a stop text), "max_tokens", or "positions"
            (the model has no more positions).
        probabilities: For each token of `ids`, its probability by the model (temperature 1); None if not requested.
        log_probability: Beam search: log probability of `ids`; else None.
        hypotheses: Beam search: all sequences that were kept, the best first; else empty.
    """

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    text: str | None
    stopped: str
    probabilities: tuple[float, ...] | None = None
    log_probability: float | None = None
    hypotheses: tuple[Hypothesis, ...] = ()


@dataclass(frozen=True)
class Generations(Sequence[Generation]):
    """The results of all prompts, in their order. `gk.generate` returns one.

    Attributes:
        items: One Generation per prompt.
        seconds: Time of all runs of the model and of the choice of tokens.
        notes: Sentences about how the model was run.
    """

    items: tuple[Generation, ...]
    seconds: float
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Generation:  # type: ignore[override]
        return self.items[index]

    def __iter__(self) -> Iterator[Generation]:
        return iter(self.items)

    @property
    def text(self) -> str | None:
        """The text after the only prompt. Raises UsageError if there are several prompts."""
        return self._only.text

    @property
    def ids(self) -> tuple[int, ...]:
        """The tokens after the only prompt. Raises UsageError if there are several prompts."""
        return self._only.ids

    @property
    def tokens(self) -> int:
        """Number of tokens that were generated after all prompts."""
        return sum(len(item.ids) for item in self.items)

    @property
    def per_second(self) -> float:
        """Number of tokens per second, 0 if there are none."""
        return self.tokens / self.seconds if self.tokens and self.seconds else 0.0

    @property
    def _only(self) -> Generation:
        if len(self.items) != 1:
            raise UsageError(f"there are {len(self.items)} prompts: read the results one by one, as results[0].text")
        return self.items[0]
