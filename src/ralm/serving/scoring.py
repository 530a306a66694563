"""The tokens of a prompt, scored as `ralm eval` scores a text, with the likeliest tokens in each place if asked.

    p(y | x) = sum over prompt prefixes d of  weight_d  p(y | [d; x])             (REPLUG, Eq. 2)

Works on token ids; knows nothing of HTTP. Shapes: K prompt prefixes, T targets, N tokens of a prompt, P targets of a
pass, V vocabulary.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from ralm.errors import ModelError
from ralm.evaluation.perplexity import check_plan
from ralm.lm.scoring import Scorer
from ralm.lm.tokenizer import full_tokenizer
from ralm.protocols import LanguageModel, Reader, Reranker, WritingModel
from ralm.reading.ensemble import mixture, posterior
from ralm.reading.in_context import InContext, rows_with_targets
from ralm.reading.pieces import GeneratedToken, Pieces
from ralm.reading.plan import PlanOptions, make_plan
from ralm.reading.provenance import provenance_of
from ralm.reading.score import hits_wanted, read, rows_and_prompt_prefixes
from ralm.reading.sources import FromRetriever
from ralm.reading.tokens import PreparedText, prepare_text
from ralm.records import (
    NO_PASSAGE,
    FloatArray,
    Hits,
    IntArray,
    Passages,
    PromptPrefix,
    Request,
    ScoredTokens,
    ScoringSequence,
)
from ralm.serving.errors import RequestError
from ralm.serving.prompts import ServedPrompt
from ralm.validation import scores_given_texts

Likeliest: TypeAlias = tuple[tuple[int, float], ...]
"""Token ids with their log-probabilities, the likeliest first."""
_NUMBERS_AT_ONCE: Final = 1 << 24
"""Log-probabilities of whole vocabularies that are held at once: 64 MiB of them."""
_NOTHING: Final[IntArray] = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class ScoredToken:
    """A token of a prompt, and the text that it adds.

    `log_prob` is natural; None for a token with nothing before it. `passages_K`, `posteriors_K`, `likeliest` and `gain`
    are as for generated tokens.
    """

    token: int
    text: str
    log_prob: float | None
    passages_K: IntArray
    posteriors_K: FloatArray
    likeliest: Likeliest = ()
    gain: float | None = None


def score_prompt(
    prompt: ServedPrompt,
    begin: int,
    model: WritingModel,
    options: PlanOptions,
    source: FromRetriever | None = None,
    *,
    reader: Reader | None = None,
    reranker: Reranker | None = None,
    likeliest: int = 0,
    gain: bool = False,
) -> list[ScoredToken]:
    """Every token of a prompt, the text behind its first `begin` tokens scored as `evaluate_text` does.

    With `likeliest`, the model must tell `distributions`. Raises RequestError if it does not, and what `evaluate_text`
    raises.
    """
    scorer, reader = Scorer(model, progress=False), reader or InContext()
    check_scores(model)
    check_plan(scorer, options)
    tokens = prompt.tokens[begin:]
    found = _Places(len(prompt.tokens))
    if begin:
        found.fill(begin, _first(prompt.tokens[: begin + 1], model, scorer, likeliest))
    if len(tokens) > 1:
        prepared = _prepared(prompt, tokens, options)
        hits, passages = _hits(prepared, model, source, hits_wanted(reader, reranker))
        if likeliest:
            for place, one in _listed(prepared, model, hits, passages, reader, reranker, likeliest):
                found.fill(begin + place, one)
        else:
            found.read(begin, read(prepared, scorer, hits, passages, reader, reranker))
        if gain:
            found.baseline(begin, read(prepared, scorer))
    return found.tokens(prompt)


class _Found(NamedTuple):
    """What is known of a token that has something before it."""

    log_prob: float
    passages_K: IntArray = np.array([NO_PASSAGE], dtype=np.int64)
    posteriors_K: FloatArray = np.ones(1, dtype=np.float32)
    likeliest: Likeliest = ()


class _Places:
    """What is known of each token of a prompt so far."""

    def __init__(self, count: int) -> None:
        self._found: list[_Found | None] = [None] * count
        self._gains: list[float | None] = [None] * count

    def read(self, begin: int, scored: ScoredTokens) -> None:
        """Note what was scored of the text that begins at a token."""
        provenance = provenance_of(scored)
        for row, place in enumerate(scored.positions_T.tolist()):
            self._found[begin + place] = _Found(
                float(scored.log_probs_T[row]), provenance.passages_TK[row], provenance.posteriors_TK[row]
            )

    def fill(self, place: int, found: _Found) -> None:
        """Note what is known of a token."""
        self._found[place] = found

    def baseline(self, begin: int, scored: ScoredTokens) -> None:
        """Note what the same text has without passages."""
        for place, log_prob in zip(scored.positions_T.tolist(), scored.log_probs_T.tolist(), strict=True):
            own = self._found[begin + place]
            self._gains[begin + place] = None if own is None else own.log_prob - log_prob

    def tokens(self, prompt: ServedPrompt) -> list[ScoredToken]:
        """The tokens of the prompt with what is known of each."""
        nothing = _Found(float("nan"))
        return [
            ScoredToken(
                token=int(token),
                text=text,
                log_prob=None if found is None else found.log_prob,
                passages_K=(found or nothing).passages_K,
                posteriors_K=(found or nothing).posteriors_K,
                likeliest=(found or nothing).likeliest,
                gain=gain,
            )
            for token, text, found, gain in zip(
                prompt.tokens, token_texts(prompt), self._found, self._gains, strict=True
            )
        ]


def token_texts(prompt: ServedPrompt) -> list[str]:
    """What each token of a prompt adds to its text; a character of several tokens comes with the last."""
    spans_N2 = _spans(prompt.tokens, prompt)
    ends = np.concatenate([[0], np.maximum.accumulate(spans_N2[:, 1])]).tolist()
    ends[-1] = len(prompt.text)
    return [prompt.text[ends[at] : ends[at + 1]] for at in range(len(prompt.tokens))]


def _spans(tokens: IntArray, prompt: ServedPrompt) -> IntArray:
    """The first and one past the last character of each token in the text of the prompt (int64, N x 2)."""
    if prompt.given is not None:
        return full_tokenizer(prompt.tokenizer).encode_with_spans(prompt.given)[1]
    pieces, spans, at = Pieces(_NOTHING, prompt.tokenizer), [], 0
    made = [piece for token in tokens.tolist() for piece in pieces.add(_bare(token))] + pieces.rest()
    for piece in made:
        spans += [(at, at + len(piece.text))] * len(piece.tokens)
        at += len(piece.text)
    return np.array(spans, dtype=np.int64).reshape(-1, 2)


def _bare(token: int) -> GeneratedToken:
    return GeneratedToken(token, 0.0, np.array([NO_PASSAGE], dtype=np.int64), np.ones(1, dtype=np.float32))


def _prepared(prompt: ServedPrompt, tokens: IntArray, options: PlanOptions) -> PreparedText:
    """The text of a prompt with its plan."""
    if prompt.given is not None:
        return prepare_text(prompt.given, prompt.tokenizer, options)
    text = ServedPrompt(tokens, None, prompt.tokenizer)
    return PreparedText(text.text, tokens, _spans(tokens, text), make_plan(len(tokens), options))


def _hits(
    prepared: PreparedText, model: LanguageModel, source: FromRetriever | None, count: int
) -> tuple[Hits | None, Passages]:
    return (None, ()) if source is None else source.find(prepared, model.tokenizer, count)


def _first(tokens: IntArray, model: WritingModel, scorer: Scorer, likeliest: int) -> _Found:
    """The first token of a text behind the special tokens that begin it, without a passage."""
    if not likeliest:
        [[log_prob]] = scorer.log_probs([Request(_NOTHING, tokens[:-1], tokens[-1:])])
        return _Found(float(log_prob))
    [log_probs_PV] = distributions_of(model)([ScoringSequence(tokens, np.array([len(tokens) - 1]))])
    return _Found(float(log_probs_PV[0, tokens[-1]]), likeliest=_likeliest(log_probs_PV[0], likeliest))


def _listed(
    prepared: PreparedText,
    model: WritingModel,
    hits: Hits | None,
    passages: Passages,
    reader: Reader,
    reranker: Reranker | None,
    likeliest: int,
) -> Iterator[tuple[int, _Found]]:
    """Each target by its place: its log-probability, passages and their shares, and the likeliest tokens there."""
    scorer = Scorer(model, progress=False)
    distributions = distributions_of(model)
    _, prefixes_R = rows_and_prompt_prefixes(prepared, scorer, hits, passages, reader, reranker)
    rows = [*zip(rows_with_targets(prepared.plan), prefixes_R, strict=True)]
    for some in _chunks(rows, prepared, getattr(model, "vocabulary", 1)):
        by_front = _read(some, prepared, distributions, merges=getattr(model, "merges_prefixes", True))
        for row, prompt_prefixes in some:
            log_weights_K = np.array([prompt_prefix.log_weight for prompt_prefix in prompt_prefixes], dtype=np.float64)
            passages_K = np.array([prompt_prefix.passage for prompt_prefix in prompt_prefixes], dtype=np.int64)
            for place in _targets(prepared, row):
                log_probs_KV = np.stack([by_front[row, number][place] for number in range(len(prompt_prefixes))])
                token = int(prepared.tokens[place])
                log_probs_V = mixture(log_probs_KV, log_weights_K)
                posteriors_K = posterior(log_probs_KV[:, [token]], log_weights_K)[0]
                listed = _likeliest(log_probs_V, likeliest)
                yield place, _Found(float(log_probs_V[token]), passages_K, posteriors_K, listed)


_Rows: TypeAlias = Sequence[tuple[int, Sequence[PromptPrefix]]]


def _chunks(rows: _Rows, prepared: PreparedText, vocabulary: int) -> Iterator[_Rows]:
    """Rows in order, as many at a time as there is room for their distributions, at least one."""
    some: list[tuple[int, Sequence[PromptPrefix]]] = []
    held = 0
    for row, prompt_prefixes in rows:
        needed = len(_targets(prepared, row)) * len(prompt_prefixes) * vocabulary
        if some and held + needed > _NUMBERS_AT_ONCE:
            yield some
            some, held = [], 0
        some.append((row, prompt_prefixes))
        held += needed
    yield some


def _targets(prepared: PreparedText, row: int) -> range:
    return range(int(prepared.plan.target_begin_R[row]), int(prepared.plan.end_R[row]))


def _read(
    rows: _Rows,
    prepared: PreparedText,
    distributions: Callable[[Sequence[ScoringSequence]], Iterable[FloatArray]],
    *,
    merges: bool,
) -> dict[tuple[int, int], dict[int, FloatArray]]:
    """The distributions (float32, V) at the targets of each row behind each of its prompt prefixes, by row and prompt
    prefix, and place.

    Where the model `merges` prefixes, rows that read the same prompt prefix and the same context share a pass: the
    shorter one is the beginning of the longer.
    """
    passes: dict[tuple[bytes, int, int], list[tuple[int, int, int]]] = {}
    tokens_of: dict[tuple[bytes, int, int], IntArray] = {}
    for row, prompt_prefixes in rows:
        for number, prompt_prefix in enumerate(prompt_prefixes):
            begin = prepared.plan.context_begins(row, len(prompt_prefix.tokens))
            key = prompt_prefix.tokens.tobytes(), begin, -1 if merges else row
            tokens_of[key] = prompt_prefix.tokens
            passes.setdefault(key, []).extend((row, number, place) for place in _targets(prepared, row))
    keys = sorted(passes, key=lambda key: -(len(tokens_of[key]) + passes[key][-1][2] - key[1]))  # the longest first
    asked = []
    for key in keys:
        places = sorted({place for *_, place in passes[key]})
        text = np.concatenate([tokens_of[key], prepared.tokens[key[1] : places[-1] + 1]])
        asked.append(ScoringSequence(text, np.array(places, dtype=np.int64) + len(tokens_of[key]) - key[1]))
    found: dict[tuple[int, int], dict[int, FloatArray]] = {}
    for key, one, log_probs_PV in zip(keys, asked, distributions(asked), strict=True):
        rows_of = {int(target): log_probs_PV[at] for at, target in enumerate(one.targets_P)}
        shift = len(tokens_of[key]) - key[1]
        for row, number, place in passes[key]:
            found.setdefault((row, number), {})[place] = rows_of[place + shift]
    return found


def check_scores(model: LanguageModel) -> None:
    """Raise RequestError if a model does not tell the log-probabilities of given texts."""
    if not scores_given_texts(model):
        raise RequestError(
            f"{model.name} is behind an API that does not tell the log-probabilities of given texts: leave out `echo` "
            "with `logprobs`, and `ralm.gain`."
        )


def distributions_of(model: WritingModel) -> Callable[[Sequence[ScoringSequence]], Iterable[FloatArray]]:
    """What tells the log-probabilities (float32, P x V) of all tokens at the targets of passes; RequestError if the
    model does not."""
    found: Callable[[Sequence[ScoringSequence]], Iterable[FloatArray]] | None = getattr(model, "distributions", None)
    if found is None:
        raise RequestError(
            f"{model.name} does not tell the likeliest tokens of a text that is given: with `echo`, set `logprobs` to "
            "0 or leave it out.",
            param="logprobs",
        )
    return found


def _likeliest(log_probs_V: FloatArray, count: int) -> Likeliest:
    """The `count` likeliest tokens, equal ones in the order of ids."""
    count = min(count, len(log_probs_V))
    some = np.argpartition(-log_probs_V, count - 1)[:count]
    least = log_probs_V[some].min()
    some = np.flatnonzero(log_probs_V >= least)
    order = some[np.argsort(-log_probs_V[some], kind="stable")][:count]
    if not len(order):
        raise ModelError("the model gives no log-probability that is a number.")
    return tuple((int(token), float(log_probs_V[token])) for token in order)
