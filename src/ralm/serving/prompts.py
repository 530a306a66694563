"""The prompts of requests, text or token ids: their limits, the names of their tokens, and their scores.

The tokens of a prompt are scored as `ralm eval` scores a text, with the top log-probabilities of each place.

    p(y | x) = sum over prompt prefixes d of  weight_d  p(y | [d; x])             (REPLUG, Eq. 2)

Shapes: K prompt prefixes, T targets of a row, N tokens, P targets of a sequence, V vocabulary.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, TypeAlias

import numpy as np

from ralm.errors import ModelError
from ralm.evaluation.perplexity import check_plan
from ralm.lm.scoring import Scorer, merge_requests, split_by_tokens
from ralm.lm.tokenizer import full_tokenizer
from ralm.protocols import Tokenizer
from ralm.reading import in_context, plan, score
from ralm.reading.mixture import mix, shares
from ralm.reading.pieces import GeneratedToken, StoppedText
from ralm.reading.sampling import top_tokens
from ralm.reading.tokens import PreparedText, first_tokens, prepare_text
from ralm.records import NO_PASSAGE, FloatArray, Hits, IntArray, Request, ScoringSequence
from ralm.serving import errors, indexes
from ralm.serving.model import SharedModel
from ralm.serving.options import Settings

_LONGEST_TOKEN: Final = 128
"""Bytes that a token can have: more than any token of a real text."""
_MOST_IDS: Final = 2**31 - 1
_LONG: Final = 10**18
_BEFORE: Final = "a"
"""Text that is decoded before a token: some tokenizers write the space of a token only after other text."""
_TopLogprobs: TypeAlias = tuple[tuple[int, float], ...]
_NUMBERS_AT_ONCE: Final = 1 << 24
"""Log-probabilities of whole vocabularies that are held at once: 64 MiB of them."""
_NO_TOKENS: Final[IntArray] = np.zeros(0, dtype=np.int64)
_NO_PASSAGES: Final[IntArray] = np.array([NO_PASSAGE], dtype=np.int64)
_WHOLE_SHARE: Final[FloatArray] = np.ones(1, dtype=np.float32)


@dataclass(frozen=True, eq=False)
class ServedPrompt:
    """A prompt: its tokens (int64, N) as the client counts them, and its text if it was given as text."""

    tokens: IntArray
    given: str | None
    tokenizer: Tokenizer

    @cached_property
    def text(self) -> str:
        """The text."""
        return self.tokenizer.decode(self.tokens) if self.given is None else self.given

    def settings(self, settings: Settings) -> Settings:
        """The settings for this prompt: token ids without an index are read as they are, without a BOS."""
        if self.given is None and settings.index is None:
            return replace(settings, plan=replace(settings.plan, bos="never"))
        return settings

    def beginning(self, settings: Settings) -> int:
        """Return the number of leading special tokens: with an index, token ids may begin with those that the tokenizer
        puts first, or with one BOS or end-of-text token."""
        if self.given is not None or settings.index is None:
            return 0
        first = first_tokens(self.tokenizer, settings.plan.bos)
        if len(first) and np.array_equal(self.tokens[: len(first)], first):
            return len(first)
        full = full_tokenizer(self.tokenizer)
        return int(len(self.tokens) > 1 and int(self.tokens[0]) in (full.special_tokens.begin, full.end_token))


def most_bytes(tokens: int) -> int:
    """The maximum number of bytes of a text of so many tokens."""
    return tokens * _LONGEST_TOKEN


def check_size(texts: Iterable[str], most: int, param: str) -> None:
    """Raise RequestError if texts have more bytes than `most` tokens stand for, so that they need not be tokenised."""
    size = sum(len(text.encode()) for text in texts)
    if size > most_bytes(most):
        least = -(-size // _LONGEST_TOKEN)
        raise errors.RequestError(
            f"the text of `{param}` has at least {least:,} tokens, and the limit is {most:,}: send less.",
            param=param,
            code=errors.TOO_LONG,
        )


def read_prompt(given: str | Sequence[int], model: SharedModel, most: int) -> ServedPrompt:
    """The prompt that a request gives; RequestError if it is empty, unknown to the model, or too long to tokenise."""
    if isinstance(given, str):
        check_size([given], most, "prompt")
        tokens = model.tokenizer.encode(given)
    else:
        vocabulary = model.vocabulary or _MOST_IDS
        for token in given:
            if not 0 <= token < vocabulary:
                shown = f"{token:,}" if abs(token) < _LONG else "of more than 18 digits"
                raise errors.RequestError(
                    f"`prompt` has the token {shown}, and the model knows 0 to {vocabulary - 1:,}.", param="prompt"
                )
        tokens = np.array(given, dtype=np.int64)
    if len(tokens) == 0:
        raise errors.RequestError("`prompt` is empty: give at least one word or token.", param="prompt")
    return ServedPrompt(tokens, given if isinstance(given, str) else None, model.tokenizer)


def check_room(prompt: ServedPrompt, new_tokens: int, most: int) -> None:
    """Raise RequestError if a prompt and its continuation have more than `most` tokens."""
    length = len(prompt.tokens)
    if length + new_tokens > most:
        raise errors.RequestError(
            f"the prompt has {length:,} tokens and `max_tokens` is {new_tokens:,}, together {length + new_tokens:,}; "
            f"the limit is {most:,}: send a prompt of at most {max(0, most - new_tokens):,} tokens, or lower "
            "`max_tokens`.",
            param="prompt",
            code=errors.TOO_LONG,
        )


class TokenLabels:
    """The names of tokens in responses: their text, or `token_id:17` where the text does not identify the token."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, str] = {}

    @cached_property
    def _before(self) -> IntArray:
        return self._tokenizer.encode(_BEFORE)

    def of(self, token: int, *, as_id: bool = False) -> str:
        """The name of a token; with `as_id` always by its id."""
        if as_id:
            return f"token_id:{token}"
        if token not in self._known:
            ids = np.concatenate([self._before, np.array([token], dtype=np.int64)])
            text = self._tokenizer.decode(ids)[len(self._tokenizer.decode(self._before)) :]
            unclear = not text or "\N{REPLACEMENT CHARACTER}" in text
            self._known[token] = f"token_id:{token}" if unclear else text
        return self._known[token]


@dataclass(slots=True, eq=False)
class ScoredToken:
    """A token of a prompt, and the text that it adds. `log_prob` is natural; None with nothing before it. All else is
    as for generated tokens."""

    token: int
    text: str
    log_prob: float | None = None
    passages_K: IntArray = field(default_factory=lambda: _NO_PASSAGES)
    posteriors_K: FloatArray = field(default_factory=lambda: _WHOLE_SHARE)
    top_logprobs: _TopLogprobs = ()
    gain: float | None = None


def score_prompt(
    prompt: ServedPrompt,
    model: SharedModel,
    options: plan.PlanOptions,
    reads: indexes.ReadConfig,
    *,
    top_logprobs: int = 0,
    gain: bool = False,
) -> list[ScoredToken]:
    """Score every token of a prompt after its leading special tokens as `evaluate_text` does, with `top_logprobs` top
    ones. Raises RequestError if the model cannot return them, and what `evaluate_text` raises."""
    scorer = Scorer(model, progress=False)
    reads.parts.require_average("`echo` with `logprobs`")
    check_plan(scorer, options)
    spans_N2 = _spans(prompt)
    ends = [0, *np.maximum.accumulate(spans_N2[:-1, 1]).tolist(), len(prompt.text)]
    scored = [  # the tokens of one character share a text
        ScoredToken(int(token), prompt.text[begin:end])
        for token, begin, end in zip(prompt.tokens, ends[:-1], ends[1:], strict=True)
    ]
    begin = prompt.beginning(reads.settings)
    if begin:
        _score_first(scored[begin], prompt.tokens[: begin + 1], model, scorer, top_logprobs)
    tokens, own = prompt.tokens[begin:], scored[begin:]
    if len(tokens) < 2:
        return scored
    prepared = _prepare(prompt, tokens, options)
    hits: Hits | None = None
    if reads.source is not None:
        hits, _ = reads.source.find(prepared, model.tokenizer, reads.parts.hits)
    if top_logprobs:
        _score_with_top(own, prepared, model, hits, reads, top_logprobs)
    else:
        read_with = score.score_text(prepared, scorer, hits, reads.passages, reads.parts)
        for row, place in enumerate(read_with.positions_T.tolist()):
            own[place].log_prob = float(read_with.log_probs_T[row])
            own[place].passages_K = read_with.provenance.passages_TK[row]
            own[place].posteriors_K = read_with.provenance.posteriors_TK[row]
    if gain:
        baseline = score.score_text(prepared, scorer)
        for place, log_prob in zip(baseline.positions_T.tolist(), baseline.log_probs_T.tolist(), strict=True):
            with_passages = own[place].log_prob
            own[place].gain = None if with_passages is None else with_passages - log_prob
    return scored


def _spans(prompt: ServedPrompt) -> IntArray:
    """The first and one past the last character of each token in the text of the prompt (int64, N x 2)."""
    if prompt.given is not None:
        return full_tokenizer(prompt.tokenizer).encode_with_spans(prompt.given)[1]
    pieces, spans, at = StoppedText(_NO_TOKENS, prompt.tokenizer), list[tuple[int, int]](), 0
    tokens = [GeneratedToken(token, 0.0, _NO_PASSAGES, _WHOLE_SHARE) for token in prompt.tokens.tolist()]
    for piece in [piece for token in tokens for piece in pieces.add(token)] + pieces.rest():
        spans += [(at, at + len(piece.text))] * len(piece.tokens)
        at += len(piece.text)
    return np.array(spans, dtype=np.int64).reshape(-1, 2)


def _prepare(prompt: ServedPrompt, tokens: IntArray, options: plan.PlanOptions) -> PreparedText:
    """The text of a prompt with its plan."""
    if prompt.given is not None:
        return prepare_text(prompt.given, prompt.tokenizer, options)
    text = replace(prompt, tokens=tokens)
    return PreparedText(
        [text.text], np.zeros(1, dtype=np.int64), tokens, _spans(text), plan.make_plan(len(tokens), options)
    )


def _score_first(token: ScoredToken, tokens: IntArray, model: SharedModel, scorer: Scorer, top_logprobs: int) -> None:
    """Score the first token of a text after the special tokens that begin it, without a passage."""
    if not top_logprobs:
        [[log_prob]] = scorer.log_probs([Request(_NO_TOKENS, tokens[:-1], tokens[-1:])])
        token.log_prob = float(log_prob)
        return
    [log_probs_PV] = _read_distributions(model, [ScoringSequence(tokens, np.array([len(tokens) - 1]))])
    token.log_prob = float(log_probs_PV[0, tokens[-1]])
    token.top_logprobs = _top(log_probs_PV[0], top_logprobs)


def _score_with_top(
    scored: Sequence[ScoredToken],
    prepared: PreparedText,
    model: SharedModel,
    hits: Hits | None,
    reads: indexes.ReadConfig,
    top_logprobs: int,
) -> None:
    """Score the targets of a text, with the top log-probabilities of each place."""
    parts, begin_R, end_R = reads.parts, prepared.plan.target_begin_R.tolist(), prepared.plan.end_R.tolist()
    _, readings_R = score.rows_and_readings(prepared, Scorer(model, progress=False), hits, reads.passages, parts)
    rows = [
        (range(begin_R[row], end_R[row]), row, readings)
        for row, readings in zip(in_context.rows_with_targets(prepared.plan), readings_R, strict=True)
    ]
    vocabulary = model.vocabulary or 1
    for some in split_by_tokens(rows, _NUMBERS_AT_ONCE, lambda one: len(one[0]) * len(one[2]) * vocabulary):
        requests = list[tuple[Request, int]]()
        for targets, row, readings in some:
            before = parts.evidence * (len(readings) > 1)
            for prefix in readings:
                request = in_context.stride_request(prepared.tokens, prepared.plan, row, prefix.tokens, before)
                requests.append((request, len(targets)))
        read = iter(_read_requests(requests, model))
        for targets, _, readings in some:
            own_K, log_probs_KTV = zip(*(next(read) for _ in readings), strict=True)
            log_weights_KT = parts.log_weights(readings, np.stack(own_K), len(targets))
            for column, place in enumerate(targets):
                token, log_weights_K = scored[place], log_weights_KT[:, column]
                log_probs_KV = np.stack([log_probs_TV[column] for log_probs_TV in log_probs_KTV])
                log_probs_V = mix(log_probs_KV, log_weights_K).astype(np.float32)
                token.log_prob = float(log_probs_V[token.token])
                token.passages_K = readings.passages_K
                token.posteriors_K = shares(log_probs_KV[:, [token.token]], log_weights_K)[0].astype(np.float32)
                token.top_logprobs = _top(log_probs_V, top_logprobs)


def _read_requests(requests: Sequence[tuple[Request, int]], model: SharedModel) -> list[tuple[FloatArray, FloatArray]]:
    """Return the scores of each request, and the distributions (float32, T x V) at its last T targets."""
    named = {number.to_bytes(4, "big"): request for number, (request, _) in enumerate(requests)}
    merged = merge_requests(named, prefixes=model.merges_prefixes)
    merged.sort(key=lambda one: -len(one[0]))
    found: dict[bytes, tuple[FloatArray, FloatArray]] = {}
    distributions = _read_distributions(model, [sequence for sequence, _ in merged])
    for (sequence, keys), log_probs_PV in zip(merged, distributions, strict=True):
        for key in keys:
            request, last = requests[int.from_bytes(key, "big")]
            first = np.searchsorted(sequence.targets_P, len(request) - len(request.targets))
            log_probs_NV = log_probs_PV[first : first + len(request.targets)]
            own_N = log_probs_NV[np.arange(len(request.targets)), request.targets]
            found[key] = own_N, log_probs_NV[-last:].copy()  # a view would keep the distributions of the evidence
    return [found[key] for key in named]


def _read_distributions(model: SharedModel, sequences: Sequence[ScoringSequence]) -> Iterator[FloatArray]:
    """The log-probabilities (float32, P x V) of all tokens at the targets; RequestError if the model has none."""
    try:
        distributions = model.distributions
    except AttributeError:
        raise errors.RequestError(
            f"{model.name} does not return the top log-probabilities of a given text: with `echo`, set `logprobs` to 0 "
            "or leave it out.",
            param="logprobs",
        ) from None
    return distributions(sequences)


def _top(log_probs_V: FloatArray, count: int) -> _TopLogprobs:
    """Return the `count` most likely tokens, equal ones in the order of ids."""
    if not (top := top_tokens(log_probs_V, count)):
        raise ModelError("the model gives no log-probability that is a number.")
    return top
