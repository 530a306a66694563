"""Examples that a language model scores on the way, for a training whose candidates change.

Joins sampling and measuring to what `measured.Examples` asks for; knows nothing of what is trained.
"""

from collections.abc import Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from ralm.corpus.documents import Fields
from ralm.corpus.sources import read_documents
from ralm.protocols import LanguageModel, Retriever
from ralm.records import Hits, IntArray
from ralm.retrieval.index import Index, open_index
from ralm.terminal import track
from ralm.training.examples import Example, sample_examples
from ralm.training.making import begins_with_source, text_config
from ralm.training.measuring import check_fits, find_candidates, queries_of, reader_of, score_candidates
from ralm.training.signal_options import CandidateOptions, ExampleOptions
from ralm.validation import config_of


class SampledExamples:
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
            self._sources, fields, skip_bad=skip_bad, named=begins_with_source(index, self._sources)
        )
        self._examples = sample_examples(track(documents, "Reading"), model.tokenizer, self.options)
        self._documents = reader_of(index.passages, model.tokenizer, self.reading)

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
        """The mean log-probability of a token of each continuation behind each hit (float64, B x K), padded with
        -inf."""
        some = self._chosen(examples_B)
        scored = score_candidates(some, hits, self._documents(), self._model, baseline=False)
        means_BK = np.full(hits.numbers_QK.shape, -np.inf)
        for row, behind in enumerate(scored):
            means_BK[row, : len(behind)] = [one.mean(dtype=np.float64) for one in behind]
        return means_BK

    def _chosen(self, examples_B: IntArray) -> list[Example]:
        return [self._examples[number] for number in examples_B.tolist()]
