"""Rerankers, which choose among the hits of a row.

oracle.py          the best passage for the text to come (In-Context RALM, Eq. 5)
zero_shot.py       the best passage for the end of the prefix, by a language model (In-Context RALM, Eq. 6)
lexical.py         the passage that shares most with the end of the prefix
predictive.py      the best passage by a trained cross-encoder (In-Context RALM, Eq. 7 and 8)
cross_encoder.py   cross-encoders through sentence-transformers
random.py          a random passage: the control

This file has the options that select a reranker, and the check of any reranker.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from ralm.errors import UsageError
from ralm.options import Needs, Option, check_options, seed_option
from ralm.protocols import LanguageModel, Reranker
from ralm.reranking.lexical import Lexical
from ralm.reranking.oracle import Oracle
from ralm.reranking.predictive import CrossEncoder, Predictive, load_cross_encoder
from ralm.reranking.random import RandomChoice
from ralm.reranking.zero_shot import ZeroShot

Method = Literal["none", "lexical", "zero-shot", "predictive", "oracle", "random"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankOptions:
    """Which reranker to use: `Lexical`, `ZeroShot`, `Predictive`, `Oracle` or `RandomChoice` among `candidates`
    passages, or none.

    `cross_encoder` is the hub name or folder of the cross-encoder of `predictive`. `tokens` is the number of tokens of
    the prefix that `zero-shot` ranks by (16 if None) and that `predictive` reads (if None, as in its training). `decay`
    and `rank_weight` are those of `ZeroShot`, `seed` that of `random`. Raises UsageError if a value is out of range, or
    if `predictive` has no cross-encoder.
    """

    method: Annotated[
        Method,
        Option(
            "Choose among candidates: by shared words, a language model, a cross-encoder, the targets, or at random.",
            flag="rerank",
        ),
    ] = "none"
    cross_encoder: Annotated[
        str | None,
        Option(
            "Cross-encoder to choose with (predictive): a folder that `ralm train reranker` made, or any hub name.",
            flag="reranker",
            needs=Needs.value("method", "predictive"),
        ),
    ] = None
    candidates: Annotated[
        int,
        Option(
            "Passages to choose from.",
            needs=Needs(
                '`method="lexical"`, `"zero-shot"`, `"predictive"`, `"oracle"` or `"random"`',
                lambda reranking: reranking.method != "none",
            ),
        ),
    ] = 16
    tokens: Annotated[
        int | None,
        Option(
            "Number of last tokens of the prefix to rank by (zero-shot, predictive).",
            flag="rerank-tokens",
            default_text=f"zero-shot: {ZeroShot().tokens}; predictive: as the cross-encoder was trained",
            needs=Needs.value("method", "zero-shot", "predictive"),
        ),
    ] = None
    decay: Annotated[
        float | None,
        Option(
            "Zero-shot: a token j places before the end of the prefix has the weight exp(-j / this).",
            flag="rerank-decay",
            above=True,
            default_text="all the same",
            needs=Needs.value("method", "zero-shot"),
        ),
    ] = None
    rank_weight: Annotated[
        float,
        Option(
            "Zero-shot: subtract this times the logarithm of the retriever's rank, in nats.",
            flag="rerank-rank-weight",
            minimum=0,
            needs=Needs.value("method", "zero-shot"),
        ),
    ] = 0.0
    seed: Annotated[
        int,
        seed_option(Needs.value("method", "random")),
    ] = 0

    def __post_init__(self) -> None:
        check_options(self)
        if self.method == "predictive" and self.cross_encoder is None:
            raise UsageError(
                '`method="predictive"` needs a `cross_encoder`: a folder that `ralm train reranker` made, or a hub '
                "name."
            )

    def reranker(
        self, model: LanguageModel | None = None, cross_encoder: CrossEncoder | None = None
    ) -> Reranker | None:
        """The reranker, or None to keep the retriever's order.

        `model` ranks for `zero-shot`, by default the reading model. `cross_encoder` is that of `predictive` if it is
        loaded already.
        """
        match self.method:
            case "none":
                return None
            case "lexical":
                return Lexical(candidates=self.candidates)
            case "zero-shot":
                tokens = ZeroShot().tokens if self.tokens is None else self.tokens
                return ZeroShot(
                    candidates=self.candidates,
                    tokens=tokens,
                    decay=self.decay,
                    rank_weight=self.rank_weight,
                    model=model,
                )
            case "predictive":
                return Predictive(cross_encoder=cross_encoder or self.load(), candidates=self.candidates)
            case "oracle":
                return Oracle(candidates=self.candidates)
            case "random":
                return RandomChoice(candidates=self.candidates, seed=self.seed)

    def load(self) -> CrossEncoder:
        """The cross-encoder of `predictive`; raises what `load_cross_encoder` raises."""
        assert self.cross_encoder is not None, "checked when the record was made"
        return load_cross_encoder(self.cross_encoder, self.tokens)
