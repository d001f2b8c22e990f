"""The simulated model: tokens, their text and their log probabilities, all computed from the prompt alone.

Owns: which token follows, how an id reads as text. Must never enter: a dialect, HTTP, time.

The state of a sequence is a checksum over every token so far, prompt and output alike. So the same prompt
gives the same tokens on every worker, and a prompt that ends in the first half of an output continues with
its second half, as a greedy model would.
"""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Sequence
from zlib import crc32

#: Bytes per id in packed prompts.
WIDTH = 4
# One vowel is not ASCII, so that most texts have more bytes than characters.
_SYLLABLES = [consonant + vowel for consonant in "bdfghjklmnprstvz" for vowel in "aeioü"]
_BASE = len(_SYLLABLES)
_WORD = re.compile(r"\s*\S+")
_FIRST_WORD = 3  # below are the special ids: unknown, begin, end
#: A bias of this size makes a token certain; smaller ones have no effect here.
_CERTAIN = 15.0


def pack(ids: Sequence[int]) -> bytes:
    """Return token ids as bytes, WIDTH per id. Raises OverflowError for an id that is negative or needs
    more.
    """
    return array("I", ids).tobytes()


def word(token: int) -> str:
    """Return the text of one token, "" for a special one. It needs no escapes inside a JSON string."""
    if token < _FIRST_WORD:
        return ""
    text = ""
    rest = token
    while True:
        rest, syllable = divmod(rest, _BASE)
        text = _SYLLABLES[syllable] + text
        if not rest:
            return " " + text


def words(ids: Sequence[int]) -> str:
    """Return the text of ``ids``."""
    return "".join(map(word, ids))


def tokenize(text: str, vocab_size: int) -> list[int]:
    """Return the ids of a text: the inverse of ``words`` for its own output, a checksum of each word for any
    other.
    """
    return [_token(match.strip(), vocab_size) for match in _WORD.findall(text)]


def _token(text: str, vocab_size: int) -> int:
    token = 0
    for at in range(0, len(text), 2):
        syllable = text[at : at + 2]
        if syllable not in _SYLLABLES:
            return _FIRST_WORD + crc32(text.encode("utf-8", "surrogatepass")) % (vocab_size - _FIRST_WORD)
        token = token * _BASE + _SYLLABLES.index(syllable)
    return token if _FIRST_WORD <= token < vocab_size else _FIRST_WORD + token % (vocab_size - _FIRST_WORD)


def logprob(state: int, token: int, rank: int = 1) -> float:
    """Return the log probability of ``token`` after ``state``; lower for a higher rank. Exact as a 32-bit
    float.
    """
    return -((state ^ token * 2654435761) & 0x3FFF) / 65536 - 0.25 * rank


def ranked(state: int, token: int, top: int, vocab_size: int) -> list[tuple[int, float]]:
    """Return ``top`` ids with log probabilities, the likeliest first, which is ``token``."""
    others = ((token + rank * 7919) % vocab_size for rank in range(1, top + 1))
    ids = [token, *(other for other in others if other != token)][:top]
    return [(other, logprob(state, token, rank)) for rank, other in enumerate(ids, 1)]


class Chooser:
    """The choice of the next token of one sample. ``draw`` is 0 for greedy sampling, else it makes this
    sample differ.
    """

    __slots__ = ("_allowed", "_eos", "_eos_below", "_size", "draw", "state")

    def __init__(self, prompt: bytes, *, vocab_size: int, eos: int, eos_rate: float, draw: int) -> None:
        self.state = crc32(prompt)
        self.draw = draw
        self._size = vocab_size - _FIRST_WORD
        self._eos = eos
        self._eos_below = int(eos_rate * 0x10000)
        self._allowed: Sequence[int] | None = None

    def restrict(self, allowed: Sequence[int] | None, bias: dict[int, float] | None) -> None:
        """Allow only the ids ``allowed`` from now on; with a strong bias only that id."""
        certain = [token for token, value in (bias or {}).items() if value >= _CERTAIN]
        self._allowed = certain or allowed or None

    def next(self, *, may_end: bool, never: frozenset[int]) -> tuple[int, int]:
        """Return the next token, and the state on which its log probability depends."""
        mixed = self.state if not self.draw else crc32(self.draw.to_bytes(8, "little"), self.state)
        token = self._pick(mixed, may_end)
        for attempt in range(len(never) + 1):
            if token not in never:
                break
            token = self._pick(mixed + attempt + 1, may_end)
        self.state = crc32(token.to_bytes(WIDTH, sys.byteorder), self.state)
        return token, mixed

    def _pick(self, mixed: int, may_end: bool) -> int:
        if self._allowed is not None:
            return self._allowed[mixed % len(self._allowed)]
        if may_end and (mixed >> 8 & 0xFFFF) < self._eos_below:
            return self._eos
        return _FIRST_WORD + mixed % self._size
