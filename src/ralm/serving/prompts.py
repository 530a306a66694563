"""The prompts of requests, text or token ids: their limits and their scores.

The tokens of a prompt are scored as `ralm eval` scores a text, with the top log-probabilities of each place.

    p(y | x) = sum over prompt prefixes d of  weight_d  p(y | [d; x])             (REPLUG, Eq. 2)

Shapes: K prompt prefixes, T targets of a row, N tokens, P targets of a sequence, V vocabulary.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, TypeAlias

import numpy as np

from ralm.errors import ModelError
from ralm.evaluation.perplexity import check_plan
from ralm.lm.scoring import Scorer, merge_requests, split_by_tokens
from ralm.lm.tokenizer import full_tokenizer
from ralm.protocols import Tokenizer
from ralm.reading import plan, score
from ralm.reading.mixture import mix, shares
from ralm.reading.pieces import GeneratedText, GeneratedToken, StoppedText
from ralm.reading.sampling import top_tokens
from ralm.reading.tokens import PreparedText, first_tokens, prepare_text
from ralm.records import NO_PASSAGE, FloatArray, IntArray, Request
from ralm.serving import errors, indexes
from ralm.serving.model import SharedModel
from ralm.serving.options import Settings

_LONGEST_TOKEN: Final = 128
"""Bytes that a token can have: more than any token of a real text."""
_MOST_IDS: Final = 2**31 - 1
_LONG: Final = 10**18
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
    sent_text: str | None
    tokenizer: Tokenizer

    @cached_property
    def text(self) -> str:
        """The text."""
        return self.tokenizer.decode(self.tokens) if self.sent_text is None else self.sent_text

    def settings(self, settings: Settings) -> Settings:
        """Return the settings for this prompt: token ids without an index are read as they are, without a BOS."""
        if self.sent_text is None and settings.index is None:
            return replace(settings, plan=replace(settings.plan, bos="never"))
        return settings

    def beginning(self, settings: Settings) -> int:
        """Return the number of leading special tokens, which token ids with an index may have."""
        if self.sent_text is not None or settings.index is None:
            return 0
        first = first_tokens(self.tokenizer, settings.plan.bos)
        if len(first) and np.array_equal(self.tokens[: len(first)], first):
            return len(first)
        full = full_tokenizer(self.tokenizer)
        return int(len(self.tokens) > 1 and int(self.tokens[0]) in (full.special_tokens.begin, full.end_token))


def most_bytes(tokens: int) -> int:
    """Return the maximum number of bytes of a text of so many tokens."""
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


def read_prompt(prompt: str | Sequence[int], model: SharedModel, most: int) -> ServedPrompt:
    """Return the prompt of a request; RequestError if it is empty, unknown to the model, or too long to tokenise."""
    if isinstance(prompt, str):
        check_size([prompt], most, "prompt")
        tokens = model.tokenizer.encode(prompt)
    else:
        vocabulary = model.vocabulary or _MOST_IDS
        for token in prompt:
            if not 0 <= token < vocabulary:
                shown = f"{token:,}" if abs(token) < _LONG else "of more than 18 digits"
                raise errors.RequestError(
                    f"`prompt` has the token {shown}, and the model knows 0 to {vocabulary - 1:,}.", param="prompt"
                )
        tokens = np.array(prompt, dtype=np.int64)
    if len(tokens) == 0:
        raise errors.RequestError("`prompt` is empty: give at least one word or token.", param="prompt")
    return ServedPrompt(tokens, prompt if isinstance(prompt, str) else None, model.tokenizer)


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


@dataclass(frozen=True, slots=True, eq=False)
class ScoredToken(GeneratedToken):
    """A token of a prompt; its log-probability is NaN with nothing before it. `gain` is that from passages, in nats."""

    gain: float | None = None


def score_prompt(
    prompt: ServedPrompt,
    model: SharedModel,
    options: plan.PlanOptions,
    reads: indexes.ReadConfig,
    *,
    top_logprobs: int = 0,
    gain: bool = False,
) -> list[GeneratedText]:
    """Return the text of a prompt with a scored token for each token after its leading special ones.

    They are scored as by `evaluate_text`, with `top_logprobs` top ones. Raises RequestError if the model cannot return
    these.
    """
    scorer = Scorer(model, progress=False)
    reads.parts.require_average("`echo` with `logprobs`")
    check_plan(scorer, options)
    scored = [ScoredToken(token, math.nan, _NO_PASSAGES, _WHOLE_SHARE) for token in prompt.tokens.tolist()]
    begin = prompt.beginning(reads.settings)
    if begin:  # the first token after the special ones, without a passage
        request = Request(_NO_TOKENS, prompt.tokens[:begin], prompt.tokens[begin : begin + 1])
        [(log_probs_1, distributions_1)] = _read([(request, 1)], model, scorer, top_logprobs)
        top = _top(distributions_1[0], top_logprobs)
        scored[begin] = replace(scored[begin], log_prob=float(log_probs_1[0]), top_logprobs=top)
    tokens = prompt.tokens[begin:]
    if len(tokens) > 1:
        prepared = _prepare(prompt, tokens, options)
        for place, token in _targets(prepared, model, scorer, reads, top_logprobs):
            scored[begin + place] = token
        if gain:
            baseline = score.score_text(prepared, scorer)
            for place, log_prob in zip(baseline.positions_T.tolist(), baseline.log_probs_T.tolist(), strict=True):
                token = scored[begin + place]
                scored[begin + place] = replace(token, gain=token.log_prob - log_prob)
    ends = [0, *np.maximum.accumulate(_spans(prompt)[:-1, 1]).tolist(), len(prompt.text)]
    return [  # the tokens of one character share a text
        GeneratedText(prompt.text[first:end], NO_PASSAGE, (token,))
        for token, first, end in zip(scored, ends[:-1], ends[1:], strict=True)
    ]


def _spans(prompt: ServedPrompt) -> IntArray:
    """Return the first and one past the last character of each token in the text of the prompt (int64, N x 2)."""
    if prompt.sent_text is not None:
        return full_tokenizer(prompt.tokenizer).encode_with_spans(prompt.sent_text)[1]
    pieces, spans, at = StoppedText(_NO_TOKENS, prompt.tokenizer), list[tuple[int, int]](), 0
    tokens = [GeneratedToken(token, 0.0, _NO_PASSAGES, _WHOLE_SHARE) for token in prompt.tokens.tolist()]
    for piece in [piece for token in tokens for piece in pieces.add(token)] + pieces.rest():
        spans += [(at, at + len(piece.text))] * len(piece.tokens)
        at += len(piece.text)
    return np.array(spans, dtype=np.int64).reshape(-1, 2)


def _prepare(prompt: ServedPrompt, tokens: IntArray, options: plan.PlanOptions) -> PreparedText:
    """Return the text of a prompt with its plan."""
    if prompt.sent_text is not None:
        return prepare_text(prompt.sent_text, prompt.tokenizer, options)
    text = replace(prompt, tokens=tokens)
    return PreparedText(
        [text.text], np.zeros(1, dtype=np.int64), tokens, _spans(text), plan.make_plan(len(tokens), options)
    )


def _targets(
    prepared: PreparedText, model: SharedModel, scorer: Scorer, reads: indexes.ReadConfig, top_logprobs: int
) -> Iterator[tuple[int, ScoredToken]]:
    """Yield the targets of a text with their places, scored as by `score_text`, with the top log-probabilities."""
    text_plan, parts, hits = prepared.plan, reads.parts, None
    if reads.source is not None:
        hits, _ = reads.source.find(prepared, model.tokenizer, parts.hits)
    _, readings_R = score.rows_and_readings(prepared, scorer, hits, reads.passages, parts)
    places_R = [
        range(int(text_plan.target_begin_R[row]), int(text_plan.end_R[row]))
        for row in plan.rows_with_targets(text_plan)
    ]
    rows = [*zip(plan.rows_with_targets(text_plan), places_R, readings_R, strict=True)]
    numbers = model.vocabulary or 1 if top_logprobs else 1
    for group in split_by_tokens(rows, _NUMBERS_AT_ONCE, lambda row: len(row[1]) * len(row[2]) * numbers):
        requests = list[tuple[Request, int]]()
        for row, places, readings in group:
            before = parts.evidence * (len(readings) > 1)
            for prefix in readings:
                request = plan.stride_request(prepared.tokens, text_plan, row, prefix.tokens, before)
                requests.append((request, len(places)))
        read = iter(_read(requests, model, scorer, top_logprobs))
        for _, places, readings in group:
            log_probs_K, distributions_K = zip(*(next(read) for _ in readings), strict=True)
            log_probs_KN = np.stack(log_probs_K)
            log_weights_KT = parts.log_weights(readings, log_probs_KN, len(places))
            log_probs_KT = log_probs_KN[:, -len(places) :]
            log_probs_T = mix(log_probs_KT, log_weights_KT).astype(np.float32)
            shares_TK = shares(log_probs_KT, log_weights_KT).astype(np.float32)
            for column, place in enumerate(places):
                log_probs_KV = np.stack([log_probs_TV[column] for log_probs_TV in distributions_K])
                top = _top(mix(log_probs_KV, log_weights_KT[:, column]).astype(np.float32), top_logprobs)
                token, log_prob = int(prepared.tokens[place]), float(log_probs_T[column])
                yield place, ScoredToken(token, log_prob, readings.passages_K, shares_TK[column], top_logprobs=top)


def _read(
    requests: Sequence[tuple[Request, int]], model: SharedModel, scorer: Scorer, top_logprobs: int
) -> list[tuple[FloatArray, FloatArray]]:
    """Return the scores of each request, and the distributions (float32, T x V) at its last T targets.

    Without `top_logprobs` these are empty. RequestError if the model has no distributions.
    """
    if not top_logprobs:
        scores = scorer.log_probs([request for request, _ in requests])
        empty = [np.zeros((last, 0), dtype=np.float32) for _, last in requests]
        return [*zip(scores, empty, strict=True)]
    try:
        distributions = model.distributions
    except AttributeError:
        raise errors.RequestError(
            f"{model.name} does not return the top log-probabilities of a given text: with `echo`, set `logprobs` to 0 "
            "or leave it out.",
            param="logprobs",
        ) from None
    named = {number.to_bytes(4, "big"): request for number, (request, _) in enumerate(requests)}
    merged = merge_requests(named, prefixes=model.merges_prefixes)
    merged.sort(key=lambda pair: -len(pair[0]))
    results: dict[bytes, tuple[FloatArray, FloatArray]] = {}
    read = distributions([sequence for sequence, _ in merged])
    for (sequence, keys), log_probs_PV in zip(merged, read, strict=True):
        for key in keys:
            request, last = requests[int.from_bytes(key, "big")]
            first = np.searchsorted(sequence.targets_P, len(request) - len(request.targets))
            log_probs_NV = log_probs_PV[first : first + len(request.targets)]
            target_N = log_probs_NV[np.arange(len(request.targets)), request.targets]
            results[key] = target_N, log_probs_NV[-last:].copy()  # a view would keep the distributions of the evidence
    return [results[key] for key in named]


def _top(log_probs_V: FloatArray, count: int) -> _TopLogprobs:
    """Return the `count` most likely tokens, equal ones in the order of ids."""
    top = top_tokens(log_probs_V, count)
    if count and not top:
        raise ModelError("the model gives no log-probability that is a number.")
    return top
