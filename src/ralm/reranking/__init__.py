"""Rerankers, which choose among the hits of a row.

oracle.py          the best passage for the text to come (In-Context RALM, Eq. 5); a random one: the control
zero_shot.py       the best passage for the end of the prefix, by a language model (In-Context RALM, Eq. 6)
lexical.py         the passage that shares most with the end of the prefix
predictive.py      the best passage by a trained cross-encoder (In-Context RALM, Eq. 7 and 8)
cross_encoder.py   cross-encoders through sentence-transformers

A new reranker is a module with a class that keeps the protocol `Reranker` (`ralm.protocols`), and a line in `RERANKERS`
below. One with a model has a record of keys of its own, a case in `open_reranker`, and a line in `_SCORES_BY` of
`ralm.runs.resume`.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final

from ralm.grammar import Catalogue, OwnPart
from ralm.options import Checked, Option
from ralm.protocols import LanguageModel, Reranker
from ralm.reranking.lexical import Lexical
from ralm.reranking.oracle import CANDIDATES_KEY, Oracle, RandomChoice
from ralm.reranking.predictive import CrossEncoder, Predictive, load_cross_encoder
from ralm.reranking.zero_shot import Ranking, ZeroShot


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrieverOrder:
    """Keep the order of the retriever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroShotOptions(Ranking):
    """Choose the passage after which the end of the prefix is most likely (In-Context RALM, Eq. 6)."""

    lm: Annotated[str | None, Option("Model to rank with.", default_text="the reading model", private=True)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictiveOptions(Checked):
    """Choose the passage that a trained cross-encoder scores highest (In-Context RALM, Eq. 7 and 8)."""

    cross_encoder: Annotated[
        str, Option("A folder that `ralm train reranker` made, or a hub name of a cross-encoder.", private=True)
    ]
    candidates: Annotated[int, CANDIDATES_KEY] = 16
    tokens: Annotated[
        int | None, Option("Last tokens of the prefix that it reads.", default_text="as in its training")
    ] = None

    def load(self) -> CrossEncoder:
        """Load the cross-encoder; raises what `load_cross_encoder` raises."""
        return load_cross_encoder(self.cross_encoder, self.tokens)


RERANKERS: Final = Catalogue(
    "rerank",
    {
        "none": RetrieverOrder,
        "lexical": Lexical,
        "zero-shot": ZeroShotOptions,
        "predictive": PredictiveOptions,
        "oracle": Oracle,
        "random": RandomChoice,
    },
    ("config", "candidates", "choose"),
)
"""How the passages that are read are chosen among those that were retrieved."""


def open_reranker(
    text: str,
    load_model: Callable[[str], LanguageModel],
    load_pairs: "Callable[[PredictiveOptions], CrossEncoder]" = PredictiveOptions.load,
) -> Reranker | None:
    """Return the reranker that a text names, whose models are loaded, or None to keep the order of the retriever."""
    part: Any = RERANKERS.parse(text)
    reranker: Reranker | None = part
    match part:
        case RetrieverOrder():
            reranker = None
        case ZeroShotOptions():
            keys = asdict(part)
            name = keys.pop("lm")
            reranker = ZeroShot(model=None if name is None else load_model(name), **keys)
        case PredictiveOptions():
            reranker = Predictive(cross_encoder=load_pairs(part), candidates=part.candidates)
        case OwnPart():
            reranker = part.shared()
    return reranker
