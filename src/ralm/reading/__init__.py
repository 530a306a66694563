"""Reading: from a text and its passages to log-probabilities, or to generated text.

plan.py            the rows of a text: targets, query and context of each stride (In-Context RALM, Eq. 3 and 4)
tokens.py          texts and passages as token ids
sources.py         where passages come from: a retriever, or a file
readers.py         the best passage before the context (In-Context RALM, Eq. 2), several, or each alone
mixture.py         average and shares of predictions as arrays (REPLUG, Eq. 2 and 3), and mixers, which weigh them
parts.py           reranker, reader and mixer where they are used, with checks of what they give
rows.py            what rerankers see of a text or of unfinished prompts
score.py           scores a text
sampling.py        options of generation; draws the next token
generate.py        continues prompts
pieces.py          generated tokens as text, up to a stop string
provenance.py      the gain from passages, token by token

This file has the catalogue of readers, and the options that name a reader, a mixer and a reranker.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Final

from ralm.errors import UsageError
from ralm.grammar import Catalogue, OwnPart
from ralm.options import Option, check_options
from ralm.protocols import Reader
from ralm.reading.mixture import MIXERS, UniformWeights
from ralm.reading.parts import Parts
from ralm.reading.readers import Concatenation, Ensemble, InContext
from ralm.reranking import RERANKERS

READERS: Final = Catalogue(
    "reader",
    {"in-context": InContext, "ensemble": Ensemble, "concatenation": Concatenation},
    ("config", "hits", "prompt_prefixes"),
)
"""How the passages of a row are put before its text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingOptions:
    """How the passages of a row are read: each option names a part with its keys (`ralm.grammar`).

    `documents` is the key of that name of the reader; without a reader, several passages are concatenated. Raises
    UsageError if there is no such part or key, if a reranker chooses from fewer passages than are read, or if a part
    has no effect.
    """

    rerank: Annotated[
        str,
        Option(
            "Choose among candidates: by shared words (lexical), a language model (zero-shot), a cross-encoder "
            "(predictive), the targets (oracle), or at random.",
            part="rerank",
        ),
    ] = "none"
    reader: Annotated[
        str,
        Option(
            "Read the best passage (in-context), each of several alone and average the predictions (ensemble: "
            "REPLUG), or several in one context (concatenation).",
            part="reader",
            default_text="in-context; with several documents concatenation",
        ),
    ] = ""
    documents: Annotated[
        int | None, Option("Passages that are read together.", default_text="ensemble: 10; concatenation: 2; else 1")
    ] = None
    mixer: Annotated[
        str,
        Option(
            "Weights of several readings: softmax of the scores of retrieval (similarity: REPLUG), all the same "
            "(uniform), or by how well each passage predicted the tokens before (posterior). To generate text also "
            "contrast: the average contrasted with the prediction without passages (CAD).",
            part="mixer",
        ),
    ] = "similarity"

    def __post_init__(self) -> None:
        check_options(self)
        reader, mixer = self._reader(), MIXERS.parse(self.mixer)
        tempered = isinstance(reader, Ensemble) and reader.temperature != Ensemble().temperature
        if tempered and isinstance(mixer, UniformWeights):
            raise UsageError('the key `temperature` has no effect with `mixer="uniform"`: leave it out.')
        candidates = getattr(RERANKERS.parse(self.rerank), "candidates", None)
        documents = getattr(reader, "hits", None)
        if candidates is not None and documents is not None and candidates < documents:
            raise UsageError(
                f"`rerank` chooses among {candidates} candidates, and {documents} documents are read: raise the key "
                "`candidates`, or lower `documents`."
            )

    @property
    def reader_name(self) -> str:
        """The name of the reader."""
        if self.reader:
            return READERS.name_of(self.reader)
        return "in-context" if self.documents in (None, 1) else "concatenation"

    @property
    def full_reader(self) -> str:
        """The text of the reader, with `documents` as its key."""
        name = self.reader or self.reader_name
        if self.documents is None or (self.documents == 1 and name == "in-context"):
            return name
        return READERS.onto(f"{self.reader_name}:documents={self.documents}", name)

    @property
    def mixes(self) -> bool:
        """Whether several readings may become one."""
        return self.reader_name not in ("in-context", "concatenation")

    def check_mixer(self) -> None:
        """Raise UsageError if there is a mixer, and no readings for it to weigh."""
        if self.mixer != ReadingOptions().mixer and not self.mixes:
            raise UsageError('`mixer` has no effect without `reader="ensemble"`.')

    @property
    def reranks(self) -> bool:
        """Whether passages are reranked."""
        return self.reranker_name != "none"

    @property
    def reranker_name(self) -> str:
        """The name of the reranker."""
        return RERANKERS.name_of(self.rerank)

    @property
    def ranker(self) -> str | None:
        """The name of the language model of the reranker, if it names one."""
        name: str | None = getattr(RERANKERS.parse(self.rerank), "lm", None)
        return name

    @property
    def candidates(self) -> int:
        """The passages to choose from; 0 if the reranker does not say."""
        count: int = getattr(RERANKERS.parse(self.rerank), "candidates", 0)
        return count

    @property
    def chosen_reader(self) -> Reader:
        """The reader."""
        reader = self._reader()
        return reader.shared() if isinstance(reader, OwnPart) else reader

    def parts(self) -> Parts:
        """Return the reader and the mixer."""
        mixer = MIXERS.parse(self.mixer if self.mixes else "similarity")
        return Parts(reader=self.chosen_reader, mixer=mixer.shared() if isinstance(mixer, OwnPart) else mixer)

    def _reader(self) -> Any:
        if self.documents is not None and "documents" in READERS.written_keys(self.reader):
            raise UsageError("`documents` and the key of that name of `reader` are the same: give one of them.")
        return READERS.parse(self.full_reader)
