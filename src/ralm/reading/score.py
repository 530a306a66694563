"""Reading a prepared text: each row after the prompt prefixes of its reader, and the average of the predictions.

    p(y | x) = sum over prompt prefixes d of  weight_d  p(y | [d; x])              (REPLUG, Eq. 2)

With one prompt prefix this is In-Context RALM, without passages the plain model. Letters of shapes: R rows, K prompt
prefixes of a row, T targets.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ralm.errors import ReaderError, RerankerError, UsageError
from ralm.lm.scoring import Scorer
from ralm.protocols import Continuations, Documents, LanguageModel, Reader, Reranker, Rows, WritingModel
from ralm.reading.bounds import bounds_of
from ralm.reading.ensemble import mixture, posterior
from ralm.reading.in_context import InContext, rows_with_targets, stride_request
from ralm.reading.rows import StrideRows
from ralm.reading.tokens import PassageDocuments, PreparedText
from ralm.records import (
    NO_PASSAGE,
    DoubleArray,
    FloatArray,
    Hits,
    IntArray,
    NextTokens,
    Passages,
    PromptPrefix,
    Provenance,
    Request,
    ScoredTokens,
)
from ralm.validation import check_count, fault_of_hits

_ROUNDING: Final = 1e-5


def hits_wanted(reader: Reader, reranker: Reranker | None) -> int:
    """How many passages must be retrieved for a row.

    Raises UsageError if a reranker has fewer candidates than the reader reads.
    """
    check_count("hits", reader.hits)
    if reranker is None:
        return reader.hits
    check_count("candidates", reranker.candidates)
    if reranker.candidates < reader.hits:
        raise UsageError(
            f"the reader reads {reader.hits} passages and the reranker chooses from {reranker.candidates} "
            "`candidates`: raise them."
        )
    return reranker.candidates


def read(
    prepared: PreparedText,
    model: LanguageModel,
    hits: Hits | None = None,
    passages: Passages = (),
    reader: Reader | None = None,
    reranker: Reranker | None = None,
) -> ScoredTokens:
    """Score every target, each row read by `reader` with its hits, or with those that `reranker` chooses from them.

    The default reader reads the best passage alone. Without `hits` no passage is read.

    Raises ReaderError or RerankerError if one of them breaks its contract, UsageError if lengths do not fit.
    """
    scorer = Scorer.of(model)
    rows, prefixes_R = rows_and_prompt_prefixes(prepared, scorer, hits, passages, reader, reranker)
    return _scored(prepared, scorer, rows, prefixes_R)


def rows_and_prompt_prefixes(
    prepared: PreparedText,
    model: LanguageModel,
    hits: Hits | None = None,
    passages: Passages = (),
    reader: Reader | None = None,
    reranker: Reranker | None = None,
) -> tuple[StrideRows, list[Sequence[PromptPrefix]]]:
    """The rows of a text, and the prompt prefixes of each row that has targets; arguments and errors are those of
    `read`."""
    scorer, reader = Scorer.of(model), reader or InContext()
    options = prepared.plan.options
    documents = PassageDocuments.planned(passages, scorer.tokenizer, options)
    hits = Hits.none(len(prepared.plan), 1) if hits is None else hits
    rows = StrideRows(prepared, scorer, documents, hits, passages)
    if reranker is not None:
        hits = chosen(reranker, rows, hits, passages, reader.hits)
    prefixes_R = [prompt_prefixes_of(reader, hits.of(row), documents) for row in rows_with_targets(prepared.plan)]
    check_room(
        reader,
        [prompt_prefix for prompt_prefixes in prefixes_R for prompt_prefix in prompt_prefixes],
        options.after_document,
        options.max_length,
    )
    return rows, prefixes_R


def chosen(reranker: Reranker, rows: Rows, hits: Hits, passages: Passages, k: int) -> Hits:
    """The hits that a reranker chooses, checked.

    Raises RerankerError if it does not return hits, or returns passages that are not among those of the row.
    """
    hits = hits.first(reranker.candidates)
    best = reranker.choose(rows, hits, passages, k)
    fault = fault_of_hits(best, len(hits), k, None) or _fault_of_choice(best, hits)
    if fault:
        raise RerankerError(f"the reranker {type(reranker).__name__} {fault}; see `Reranker` for what it should give.")
    return Hits(best.numbers_QK.astype(np.int64, copy=False), best.scores_QK.astype(np.float32, copy=False))


def _fault_of_choice(best: Hits, hits: Hits) -> str:
    found_QK = best.numbers_QK != NO_PASSAGE
    among_QK = (best.numbers_QK[:, :, None] == hits.numbers_QK[:, None, :]).any(axis=2)
    foreign_QK = found_QK & ~among_QK
    if foreign_QK.any():
        return f"gives passage {best.numbers_QK[foreign_QK][0]}, which is not among the hits of its row"
    return ""


def prompt_prefixes_of(
    reader: Reader, hits: Sequence[tuple[int, float]], documents: Documents
) -> Sequence[PromptPrefix]:
    """The prompt prefixes of one row, checked; without hits, the prompt prefix without a passage.

    Raises ReaderError if the reader does not return prompt prefixes of these hits, or the weights do not sum to 1.
    """
    if not hits:
        return [PromptPrefix(documents[NO_PASSAGE])]
    prompt_prefixes = reader.prompt_prefixes(hits, documents)
    if fault := _fault_of_prompt_prefixes(prompt_prefixes, hits):
        raise ReaderError(f"the reader {type(reader).__name__} {fault}; see `Reader` for what it should give.")
    return prompt_prefixes


def _fault_of_prompt_prefixes(prompt_prefixes: Sequence[PromptPrefix], hits: Sequence[tuple[int, float]]) -> str:
    if not isinstance(prompt_prefixes, Sequence):
        return f"gives {type(prompt_prefixes).__name__} instead of prompt prefixes"
    found = {number for number, _ in hits}
    if faults := [
        fault for prompt_prefix in prompt_prefixes if (fault := _fault_of_prompt_prefix(prompt_prefix, found))
    ]:
        return faults[0]
    total = float(
        np.exp(np.array([prompt_prefix.log_weight for prompt_prefix in prompt_prefixes], dtype=np.float64)).sum()
    )
    if not abs(total - 1) < _ROUNDING:
        several = "prompt_prefix" if len(prompt_prefixes) == 1 else "prompt_prefixes"
        return f"gives {len(prompt_prefixes)} {several} whose weights sum to {total:g}, not 1"
    return ""


def _fault_of_prompt_prefix(prompt_prefix: PromptPrefix, found: set[int]) -> str:
    if not isinstance(prompt_prefix, PromptPrefix):
        return f"gives {type(prompt_prefix).__name__} instead of a PromptPrefix"
    tokens = prompt_prefix.tokens
    if not isinstance(tokens, np.ndarray) or tokens.ndim != 1 or tokens.dtype != np.int64:
        return "gives a prompt prefix whose tokens are not an int64 vector"
    if foreign := [number for number in prompt_prefix.passages if number not in found]:
        return f"gives a prompt prefix of passage {foreign[0]}, which is not among the hits of its row"
    return ""


def check_room(reader: Reader, prompt_prefixes: Sequence[PromptPrefix], after: int, max_length: int) -> None:
    """Raise UsageError if the longest prompt prefix leaves no room for the `after` tokens that must follow it."""
    longest = max((len(prompt_prefix.tokens) for prompt_prefix in prompt_prefixes), default=0)
    if longest + after > max_length:
        raise UsageError(
            f"the reader {type(reader).__name__} puts {longest} tokens in front, and the {after} that must follow them "
            f"do not fit into `max_length` {max_length} as well: lower `document_tokens` or raise `max_length`."
        )


def _scored(
    prepared: PreparedText, scorer: Scorer, seen: StrideRows, prefixes_R: Sequence[Sequence[PromptPrefix]]
) -> ScoredTokens:
    """Score the targets of rows after each of their prompt prefixes, except those that ranking has scored, and
    average."""
    plan, rows = prepared.plan, rows_with_targets(prepared.plan)
    readings = [
        (row, prompt_prefix)
        for row, prompt_prefixes in zip(rows, prefixes_R, strict=True)
        for prompt_prefix in prompt_prefixes
    ]
    known = [seen.ranked(row, prompt_prefix) for row, prompt_prefix in readings]
    requests = [
        stride_request(prepared.tokens, plan, row, prompt_prefix.tokens)
        for (row, prompt_prefix), found in zip(readings, known, strict=True)
        if found is None
    ]
    new = iter(scorer.log_probs(requests))
    scored = iter([next(new) if found is None else found for found in known])
    log_probs: list[FloatArray] = []
    sources: list[tuple[IntArray, FloatArray]] = []
    for prompt_prefixes in prefixes_R:
        log_probs_KT = np.stack([next(scored) for _ in prompt_prefixes])
        log_weights_K = np.array([prompt_prefix.log_weight for prompt_prefix in prompt_prefixes], dtype=np.float64)
        passages_K = np.array([prompt_prefix.passage for prompt_prefix in prompt_prefixes], dtype=np.int64)
        log_probs.append(mixture(log_probs_KT, log_weights_K))
        sources += [(passages_K, posteriors_K) for posteriors_K in posterior(log_probs_KT, log_weights_K)]
    provenance = Provenance.of_rows(sources)
    most_T = provenance.posteriors_TK.argmax(axis=1)
    positions_T = np.arange(plan.target_begin_R[rows[0]], plan.end_R[rows[-1]], dtype=np.int64)
    return ScoredTokens(
        positions_T=positions_T,
        tokens_T=prepared.tokens[positions_T],
        log_probs_T=np.concatenate(log_probs).astype(np.float32, copy=False),
        passages_T=provenance.passages_TK[np.arange(len(most_T)), most_T],
        provenance=provenance,
    )


_TEXTS_AT_ONCE: Final = 32
"""Texts of which the next token is predicted together."""


@dataclass(frozen=True, slots=True, eq=False)
class Ending:
    """An ending as it is read: a request for each of its K prompt prefixes, and the logarithms of their weights
    (float64, K).

    `dropped` is how many tokens of the context the longest prompt prefix pushed out.
    """

    requests: Sequence[Request]
    log_weights_K: DoubleArray
    dropped: int

    @property
    def targets(self) -> IntArray:
        """The token ids of the ending."""
        return self.requests[0].targets

    @classmethod
    def after(
        cls,
        prompt_prefixes: Sequence[PromptPrefix],
        context: IntArray,
        targets: IntArray,
        max_length: int,
        prefix: int | None,
    ) -> "Ending":
        """The ending `targets` (int64, not empty) of a context (int64) that stands behind each of the prompt prefixes.

        Of a context that is too long for a model that reads `max_length` tokens, the oldest tokens are dropped, never
        those of a prompt prefix. If nothing stands before the targets, the token `prefix` does. Raises UsageError if a
        prompt prefix and the targets do not fit, or if there is no `prefix` and one is needed.
        """
        rooms = [
            max_length + 1 - len(targets) - len(prompt_prefix.tokens) for prompt_prefix in prompt_prefixes
        ]  # the last target is not read
        begins = [max(0, len(context) - room) for room in rooms]
        requests = []
        for prompt_prefix, room, begin in zip(prompt_prefixes, rooms, begins, strict=True):
            before = context if len(context) + len(prompt_prefix.tokens) else _prefix(prefix)
            if room < 0 or room + len(prompt_prefix.tokens) < 1:
                raise UsageError(
                    f"an ending of {len(targets)} tokens and the {len(prompt_prefix.tokens)} in front of it do not fit "
                    f"into `max_length` {max_length}: lower `document_tokens` or raise `max_length`."
                )
            requests.append(Request(document=prompt_prefix.tokens, context=before[begin:], targets=targets))
        return cls(
            requests,
            np.array([prompt_prefix.log_weight for prompt_prefix in prompt_prefixes], dtype=np.float64),
            max(begins),
        )


def _prefix(token: int | None) -> IntArray:
    if token is None:
        raise UsageError("nothing stands before an ending, and the tokenizer has neither a BOS nor an EOS.")
    return np.array([token], dtype=np.int64)


def ending_log_probs(endings: Sequence[Ending], scorer: Scorer) -> list[FloatArray]:
    """The natural log-probability (float32, T) of each target of each ending."""
    scored = iter(scorer.log_probs([request for one in endings for request in one.requests]))
    return [mixture(np.stack([next(scored) for _ in one.requests]), one.log_weights_K) for one in endings]


def are_greedy(endings: Sequence[Ending], model: WritingModel) -> list[bool]:
    """Whether each ending is what greedy decoding writes: all its targets are the likeliest tokens.

    An ending is read up to its first target that is not. Those with the same context share its reading. Raises
    UsageError if the model lists only its likeliest tokens, and they do not decide.
    """
    reader = model.continuations()
    return [greedy for group in _groups(endings) for greedy in _greedy(group, reader)]


def _groups(endings: Sequence[Ending]) -> Iterator[Sequence[Ending]]:
    """Endings in order, of about `_TEXTS_AT_ONCE` texts together."""
    begin, texts = 0, 0
    for number, one in enumerate(endings):
        if number > begin and texts + len(one.requests) > _TEXTS_AT_ONCE:
            yield endings[begin:number]
            begin, texts = number, 0
        texts += len(one.requests)
    if begin < len(endings):
        yield endings[begin:]


def _greedy(group: Sequence[Ending], reader: Continuations) -> list[bool]:
    held = [True] * len(group)
    for place in range(max(len(one.targets) for one in group)):
        going_on = [number for number, one in enumerate(group) if held[number] and place < len(one.targets)]
        if not going_on:
            break
        likeliest = _likeliest([group[number] for number in going_on], place, reader)
        for number, token in zip(going_on, likeliest, strict=True):
            held[number] = token == int(group[number].targets[place])
    return held


def _likeliest(group: Sequence[Ending], place: int, reader: Continuations) -> list[int]:
    """The likeliest token of each ending in the place of one of its targets."""
    texts_K = [[_text(request, place) for request in one.requests] for one in group]
    different = {text.tobytes(): text for texts in texts_K for text in texts}
    given = reader.next_tokens([*different.values()])
    rows = {text: row for row, text in enumerate(different)}
    return [
        _likeliest_of(given.of([rows[text.tobytes()] for text in texts]), one.log_weights_K)
        for one, texts in zip(group, texts_K, strict=True)
    ]


def _text(request: Request, place: int) -> IntArray:
    return np.concatenate([request.document, request.context, request.targets[:place]])


def _likeliest_of(given: NextTokens, log_weights_K: DoubleArray) -> int:
    if given.tokens_BC is None:
        return int(mixture(given.log_probs_BC, log_weights_K).argmax())
    bounds = bounds_of(given, log_weights_K)
    if not bounds.certified:
        raise UsageError(
            f"the model lists only its {given.tokens_BC.shape[1]} likeliest next tokens, which does not decide the "
            f"likeliest of the average over {len(log_weights_K)} passages: read one passage."
        )
    return int(bounds.tokens_Y[bounds.best])
