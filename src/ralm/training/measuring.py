"""Measuring examples: candidate passages from a retriever, and how likely each makes the continuation.

Knows examples, retrievers and language models; knows nothing of files. Letters of shapes: E examples, K candidates, T
tokens of a continuation.
"""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

from ralm.corpus.decontamination import NGRAM, run_hash, words_of
from ralm.errors import UsageError
from ralm.lm.scoring import Scorer
from ralm.protocols import LanguageModel, Retriever, Tokenizer
from ralm.reading.tokens import PassageDocuments, first_tokens
from ralm.records import NO_PASSAGE, FloatArray, Hits, Passage, Passages, Request
from ralm.training.examples import Example
from ralm.training.signal_options import CandidateOptions
from ralm.validation import ask

_MORE: Final = 8
"""How many more hits are asked for at first, since some may be left out."""


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

    Hits that are left out are replaced by further hits of the retriever, until there are k or it has no more. Raises
    RetrieverError if it does not give valid hits, UsageError if a passage has no document id, so that nobody can tell
    whether it is of the example's own document.
    """
    if not exclude:
        return ask(retriever, queries, k, len(passages))
    gives_away = _GivesAway(passages)
    found: dict[int, list[tuple[int, float]]] = {}
    asked, wanted = list(range(len(examples))), k + _MORE
    while asked:
        hits = ask(retriever, [queries[i] for i in asked], wanted, len(passages))
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
                f"passage {number} has no document id, so passages of an example's own document cannot be left out: "
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
    """For each example, the log-probabilities (float32, T) of its continuation behind each of its hits; with `baseline`
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
    """The same behind the passages that are listed for each example, `NO_PASSAGE` for none."""
    requests = [
        Request(document=documents[number], context=one.prefix, targets=one.continuation)
        for one, numbers in zip(examples, numbers_of, strict=True)
        for number in numbers
    ]
    scored = iter(scorer.log_probs(requests))
    return [[next(scored) for _ in numbers] for numbers in numbers_of]


def reader_of(passages: Passages, tokenizer: Tokenizer, options: CandidateOptions) -> Callable[[], PassageDocuments]:
    """Makes an empty store of passages as token ids; a new one now and then bounds its memory."""
    first = first_tokens(tokenizer, options.bos)
    return lambda: PassageDocuments(passages, tokenizer, options.document_tokens, first)


def check_fits(model: LanguageModel, sequence_tokens: int, document_tokens: int) -> None:
    """Raise UsageError if the model cannot read a passage and a sequence at once."""
    if document_tokens + sequence_tokens > model.max_length:
        raise UsageError(
            f"`document_tokens` {document_tokens} and `sequence_tokens` {sequence_tokens} do not fit together into the "
            f"{model.max_length} tokens that {model.name} can read: lower one of them."
        )
