"""Reading: from a text and its passages to log-probabilities, or to generated text.

plan.py            the rows of a text: targets, query and context of each stride (In-Context RALM, Eq. 3 and 4)
tokens.py          texts and passages as token ids
sources.py         where passages come from: a retriever, or a file
in_context.py      the best passage before the context (In-Context RALM, Eq. 2)
concatenation.py   several passages in one context
ensemble.py        each passage alone
mixture.py         weights, average and shares of predictions as arrays (REPLUG, Eq. 2 and 3)
mixers.py          weights of an ensemble: by similarity, uniform, or by evidence
contrast.py        the distribution of the next token contrasted with that without a passage (CAD)
parts.py           reranker, reader and mixer where they are used, with checks of what they give
bounds.py          the same if only the top tokens of each prediction are known
rows.py            what rerankers see of a text or of unfinished prompts
score.py           scores a text; lists the files from `ralm eval` to a log-probability
sampling.py        options of generation; draws the next token
generate.py        continues prompts
pieces.py          generated tokens as text, up to a stop string
provenance.py      the gain from passages, token by token

This file has the options that select a reader and a reranker.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from ralm.errors import UsageError
from ralm.options import Needs, Option, check_options
from ralm.protocols import Reader, Reranker
from ralm.reading.concatenation import Concatenation
from ralm.reading.ensemble import Ensemble
from ralm.reading.in_context import InContext
from ralm.reading.mixers import MixerOptions, SimilarityWeights
from ralm.reading.parts import Parts
from ralm.reranking import RerankOptions

ReaderName = Literal["in-context", "ensemble", "concatenation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingOptions:
    """How the passages of a row are read: chosen as `reranking` says, and put before the text as `reader` says.

    `rerank_lm` names the language model that ranks for zero-shot reranking; None is the reading model. `ensemble` and
    `concatenation` are the options of these readers; `mixing` selects the mixer of an ensemble. Raises UsageError if a
    reranker chooses from fewer passages than are read, or if a temperature has no effect.
    """

    reranking: Annotated[RerankOptions, Option("How passages are chosen from those that were retrieved.")] = field(
        default_factory=RerankOptions
    )
    rerank_lm: Annotated[
        str | None,
        Option(
            "Model to rank with (zero-shot).",
            default_text="the reading model",
            needs=Needs('`rerank="zero-shot"`', lambda reading: reading.reranking.method == "zero-shot"),
        ),
    ] = None
    reader: Annotated[
        ReaderName,
        Option(
            "Read the best passage (in-context), each of several alone and average the predictions (ensemble: "
            "REPLUG), or several in one context (concatenation)."
        ),
    ] = "in-context"
    ensemble: Annotated[
        Ensemble,
        Option("How an ensemble reads.", needs=Needs.value("reader", "ensemble")),
    ] = field(default_factory=Ensemble)
    mixing: Annotated[
        MixerOptions,
        Option(
            "How the predictions of an ensemble are weighed.",
            needs=Needs.value("reader", "ensemble"),
        ),
    ] = field(default_factory=MixerOptions)
    concatenation: Annotated[
        Concatenation,
        Option(
            "How several passages are put into one context.",
            needs=Needs.value("reader", "concatenation"),
        ),
    ] = field(default_factory=Concatenation)

    def __post_init__(self) -> None:
        check_options(self)
        if self.mixing.mixer == "uniform" and self.ensemble.temperature != Ensemble().temperature:
            raise UsageError('the temperature of the weights has no effect with `mixer="uniform"`: leave it out.')
        candidates, documents = self.reranking.candidates, self.chosen_reader.hits
        if self.reranks and candidates < documents:
            raise UsageError(
                f"`candidates` {candidates} are fewer than the {documents} passages that are read: raise them, or "
                "lower `documents`."
            )

    @property
    def reranks(self) -> bool:
        """Whether passages are reranked."""
        return self.reranking.method != "none"

    @property
    def chosen_reader(self) -> Reader:
        """The selected reader."""
        match self.reader:
            case "in-context":
                return InContext()
            case "ensemble":
                return self.ensemble
            case "concatenation":
                return self.concatenation

    def parts(self, reranker: Reranker | None = None) -> Parts:
        """The selected reader and mixer, with a reranker."""
        mixer = self.mixing.chosen if self.reader == "ensemble" else SimilarityWeights()
        return Parts(reader=self.chosen_reader, mixer=mixer, reranker=reranker)

    @property
    def ranks_with(self) -> str | None:
        """The name of the ranking model, or None if the reading model ranks."""
        return self.rerank_lm if self.reranking.method == "zero-shot" else None
