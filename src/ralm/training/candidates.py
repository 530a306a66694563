"""Finds candidate passages for examples and scores them: how likely each makes the continuation.

`OnlineExamples` does both during a training whose candidates change. Letters of shapes: E examples, B those of a batch,
K candidates, T tokens of a continuation.
"""

import io
import logging
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from ralm.corpus.decontamination import NGRAM, run_hash, words_of
from ralm.corpus.documents import Fields
from ralm.corpus.sources import read_documents
from ralm.errors import UsageError
from ralm.lm.scoring import Scorer
from ralm.protocols import LanguageModel, Retriever, Tokenizer
from ralm.reading.tokens import PassageDocuments
from ralm.records import NO_PASSAGE, FloatArray, Hits, IntArray, Passage, Passages, Request
from ralm.retrieval.index import Index, open_index
from ralm.storage.atomic import storage_errors, write_atomically
from ralm.terminal import track
from ralm.training.examples import Example, begins_with_source, sample_examples, text_config
from ralm.training.options import CandidateOptions, ExampleOptions
from ralm.validation import config_of, retrieve_checked

_MORE: Final = 8
"""How many more hits are asked for at first, since some may be skipped."""


def queries_of(examples: Sequence[Example], tokenizer: Tokenizer, query_tokens: int) -> list[str]:
    """The end of each prefix as text."""
    return [tokenizer.decode(one.prefix[-query_tokens:]) for one in examples]


def find_candidates(
    examples: Sequence[Example],
    queries: Sequence[str],
    retriever: Retriever,
    passages: Passages,
    k: int,
    *,
    exclude: bool,
) -> Hits:
    """The k best passages for each example; with `exclude`, only those that do not give its continuation away.

    Hits that are skipped are replaced by further hits of the retriever, until there are k or it has no more. Raises
    RetrieverError if it does not give valid hits, UsageError if a passage has no document id, so that nobody can tell
    whether it is of the example's own document.
    """
    if not exclude:
        return retrieve_checked(retriever, queries, k, len(passages))
    gives_away = _GivesAway(passages)
    found: dict[int, list[tuple[int, float]]] = {}
    asked, wanted = list(range(len(examples))), k + _MORE
    while asked:
        hits = retrieve_checked(retriever, [queries[i] for i in asked], wanted, len(passages))
        for row, i in enumerate(asked):
            found[i] = list(islice((hit for hit in hits.of(row) if not gives_away(examples[i], hit[0])), k))
        exhausted = wanted >= len(passages)
        asked = [
            i for row, i in enumerate(asked) if len(found[i]) < k and len(hits.of(row)) == wanted and not exhausted
        ]
        wanted *= 2
    return Hits.from_pairs([found[i] for i in range(len(examples))])


class _GivesAway:
    """Whether a passage gives the continuation of an example away; each passage is read once."""

    def __init__(self, passages: Passages) -> None:
        self._passages = passages
        self._read: dict[int, Passage] = {}
        self._runs: dict[int, frozenset[int]] = {}

    def __call__(self, example: Example, number: int) -> bool:
        if number not in self._read:
            self._read[number] = self._passages[number]
        passage = self._read[number]
        if not passage.document_id:
            raise UsageError(
                f"passage {number} has no document id, so passages of an example's own document cannot be skipped: "
                "build the index with ids, or give `exclude=False` if the training text is not in the index."
            )
        if passage.document_id == example.document_id:
            return True
        if number not in self._runs:
            words = words_of(passage.contents)
            self._runs[number] = frozenset(run_hash(words[i : i + NGRAM]) for i in range(len(words) - NGRAM + 1))
        return not self._runs[number].isdisjoint(example.runs)


def score_candidates(
    examples: Sequence[Example],
    hits: Hits,
    documents: PassageDocuments,
    model: LanguageModel,
    *,
    baseline: bool = True,
) -> list[list[FloatArray]]:
    """For each example, the log-probabilities (float32, T) of its continuation after each of its hits; with `baseline`
    those without a passage come first.

    The model reads [passage; prefix; continuation]. Examples of one sequence share passes. Raises ModelError if the
    model does not give log-probabilities.
    """
    before = [NO_PASSAGE] if baseline else []
    numbers_of = [[*before, *(number for number, _ in hits.of(row))] for row in range(len(examples))]
    return score_passages(examples, numbers_of, documents, Scorer(Scorer.of(model).model, progress=False))


def score_passages(
    examples: Sequence[Example], numbers_of: Sequence[Sequence[int]], documents: PassageDocuments, scorer: Scorer
) -> list[list[FloatArray]]:
    """The same after the passages that are listed for each example, `NO_PASSAGE` for none."""
    requests = [
        Request(document=documents[number], context=one.prefix, targets=one.continuation)
        for one, numbers in zip(examples, numbers_of, strict=True)
        for number in numbers
    ]
    scored = iter(scorer.log_probs(requests))
    return [[next(scored) for _ in numbers] for numbers in numbers_of]


def document_store_factory(
    passages: Passages, tokenizer: Tokenizer, options: CandidateOptions
) -> Callable[[], PassageDocuments]:
    """Makes an empty store of passages as token ids; a new one now and then bounds its memory."""
    return lambda: PassageDocuments(passages, tokenizer, options.document_tokens, options.bos)


def check_fits(model: LanguageModel, sequence_tokens: int, document_tokens: int) -> None:
    """Raise UsageError if the model cannot read a passage and a sequence at once."""
    if document_tokens + sequence_tokens > model.max_length:
        raise UsageError(
            f"`document_tokens` {document_tokens} and `sequence_tokens` {sequence_tokens} do not fit together into the "
            f"{model.max_length} tokens that {model.name} can read: lower one of them."
        )


_LOG: Final = logging.getLogger(__name__)
_DAMAGED: Final = (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile)


class Examples(Protocol):
    """Prefixes with continuations, and a language model that says which passages help.

    Examples are given by number (int64, B), from 0.
    """

    @property
    def config(self) -> dict[str, JsonValue]:
        """Everything that decides the examples, and their scores with given passages."""

    @property
    def documents_E(self) -> Sequence[str]:
        """The ids of the documents that the examples are from."""

    def queries(self, examples_B: IntArray) -> Sequence[str]:
        """What the retriever reads of examples."""

    def candidates(self, examples_B: IntArray, retriever: Retriever, k: int) -> Hits:
        """The k best passages for each example among those that it may be shown."""

    def score(self, examples_B: IntArray, hits: Hits) -> NDArray[np.float64]:
        """The mean log-probability of a token of each continuation after each hit (float64, B x K), padded with
        -inf."""


@dataclass(frozen=True, slots=True, eq=False)
class CandidateScores:
    """The candidates of examples (int64, padded with `NO_PASSAGE`), and how likely a token of the continuation is
    after each (float32, padded with -inf)."""

    examples_B: IntArray
    passages_BK: IntArray
    lm_scores_BK: FloatArray

    def of(self, example: int) -> tuple[IntArray, FloatArray]:
        """The candidates of one of the examples, and their scores."""
        place = int(np.flatnonzero(self.examples_B == example)[0])
        return self.passages_BK[place], self.lm_scores_BK[place]


def score_examples(examples: Examples, examples_B: IntArray, retriever: Retriever, k: int) -> CandidateScores:
    """Retrieve candidates of examples, and score them."""
    hits = examples.candidates(examples_B, retriever, k)
    return CandidateScores(examples_B, hits.numbers_QK, examples.score(examples_B, hits).astype(np.float32))


def load_or_score(
    file: Path, examples: Examples, examples_B: IntArray, retriever: Retriever, k: int
) -> CandidateScores:
    """The scores that an earlier call wrote to a file, or else those of `score_examples`, written there."""
    try:
        with np.load(file, allow_pickle=False) as kept:
            return CandidateScores(**{one.name: kept[one.name] for one in fields(CandidateScores)})
    except FileNotFoundError:
        pass
    except _DAMAGED as error:
        _LOG.warning("%s is damaged (%s): its scores are computed again.", file, error)
    scores = score_examples(examples, examples_B, retriever, k)
    content = io.BytesIO()
    np.savez(content, **{one.name: getattr(scores, one.name) for one in fields(CandidateScores)})
    with storage_errors(file):
        write_atomically(file, content.getvalue())
    return scores


class OnlineExamples:
    """Examples sampled from training text, with the passages of an index as candidates, scored by `model`.

    Each example is scored when it is asked for, and nothing is kept. Raises UsageError if the options do not fit the
    model, TextError if the text has no examples, and what `read_documents` and `open_index` raise.
    """

    def __init__(
        self,
        sources: str | Sequence[str],
        index: Index | Path | str,
        model: LanguageModel,
        options: ExampleOptions | None = None,
        candidates: CandidateOptions | None = None,
        *,
        fields: Fields | None = None,
        skip_bad: bool = False,
    ) -> None:
        self.options, self.reading = options or ExampleOptions(), candidates or CandidateOptions()
        check_fits(model, self.options.sequence_tokens, self.reading.document_tokens)
        index = index if isinstance(index, Index) else open_index(index)
        self._sources = [sources] if isinstance(sources, str) else list(sources)
        self._passages, self._model = index.passages, model
        self._text = text_config(self._sources, fields, skip_bad=skip_bad)
        documents = read_documents(
            self._sources, fields, skip_bad=skip_bad, source_in_ids=begins_with_source(index, self._sources)
        )
        self._examples = sample_examples(track(documents, "Reading"), model.tokenizer, self.options)
        self._documents = document_store_factory(index.passages, model.tokenizer, self.reading)

    @property
    def config(self) -> dict[str, JsonValue]:
        """The text, the language model and the options."""
        return {
            "model": config_of(self._model, "language model"),
            "examples": asdict(self.options),
            "candidates": asdict(self.reading),
            "text": self._text,
        }

    @cached_property
    def documents_E(self) -> Sequence[str]:
        """The ids of the documents that the examples are from."""
        return [one.document_id for one in self._examples]

    def queries(self, examples_B: IntArray) -> Sequence[str]:
        """The end of each prefix."""
        return queries_of(self._chosen(examples_B), self._model.tokenizer, self.options.query_tokens)

    def candidates(self, examples_B: IntArray, retriever: Retriever, k: int) -> Hits:
        """The k best passages for each example, without those that give its continuation away."""
        some, exclude = self._chosen(examples_B), self.reading.exclude
        return find_candidates(some, self.queries(examples_B), retriever, self._passages, k, exclude=exclude)

    def score(self, examples_B: IntArray, hits: Hits) -> NDArray[np.float64]:
        """The mean log-probability of a token of each continuation after each hit (float64, B x K), padded with
        -inf."""
        some = self._chosen(examples_B)
        scored = score_candidates(some, hits, self._documents(), self._model, baseline=False)
        means_BK = np.full(hits.numbers_QK.shape, -np.inf)
        for row, after in enumerate(scored):
            means_BK[row, : len(after)] = [one.mean(dtype=np.float64) for one in after]
        return means_BK

    def _chosen(self, examples_B: IntArray) -> list[Example]:
        return [self._examples[number] for number in examples_B.tolist()]
