"""What a server was found to be able to do, as data: a record that is kept, shown, and part of every figure."""

from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from pydantic import JsonValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """How a server is asked: by the way of this name, for the `likeliest` tokens (0: it gives text alone).

    `as_ids`: prompts are token ids, not text; `begin` is the token that the server puts before a text.
    """

    way: str
    likeliest: int = 0
    as_ids: bool = True
    begin: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a server can do, asked in the best way that works.

    `max_length` is the most tokens that it reads at once, None if it does not say. `greedy` are the tokens that it
    writes behind the probe's text, which tell one model from another. `identity` is a hash of all that tells answers
    apart. `ruled_out` are better ways that do not work, with the reason.
    """

    asking: Asking
    max_length: int | None
    greedy: tuple[int, ...]
    identity: str
    ruled_out: tuple[tuple[str, str], ...] = ()

    @property
    def tier(self) -> str:
        """What is exact, in words."""
        return _TIERS[0 if self.asking.way in _EXACT else 1 if self.asking.likeliest else 2]

    def as_json(self) -> dict[str, JsonValue]:
        """The same as JSON."""
        return asdict(self)

    @classmethod
    def of_json(cls, kept: Any) -> Self:
        """Capabilities that were kept. Raises KeyError, TypeError or ValueError if they are of another kind."""
        return cls(
            asking=Asking(**kept["asking"]),
            max_length=kept["max_length"],
            greedy=tuple(int(token) for token in kept["greedy"]),
            identity=str(kept["identity"]),
            ruled_out=tuple((str(way), str(reason)) for way, reason in kept["ruled_out"]),
        )


_EXACT: Final = ("echo", "vllm", "sglang", "llama.cpp", "bias", "tgi")
_TIERS: Final = (
    "1: log-probabilities of given texts (scoring, reranking, ensembles and signals are exact)",
    "2: the likeliest next tokens (greedy answers and ensembles with certified tokens; scores as bounds)",
    "3: text alone (generation with passages in one context; answers that add up over passages)",
)
