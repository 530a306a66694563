"""Completions: continues prompts, text or token ids, scores those that are echoed, and makes the response.

The tokens of a prompt are scored as `ralm eval` scores a text, with the top log-probabilities of each place.

    p(y | x) = sum over prompt prefixes d of  weight_d  p(y | [d; x])             (REPLUG, Eq. 2)

Shapes: K prompt prefixes, T targets of a row, N tokens, P targets of a sequence, V vocabulary.
"""

import math
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, TypeAlias

import numpy as np
from pydantic import JsonValue

from ralm.errors import ModelError
from ralm.evaluation.perplexity import check_plan
from ralm.lm.scoring import Scorer, merge_requests, split_by_tokens
from ralm.lm.tokenizer import full_tokenizer
from ralm.protocols import Tokenizer
from ralm.reading import generate, plan, provenance, score
from ralm.reading.mixture import mix, shares
from ralm.reading.pieces import GeneratedText, GeneratedToken, StoppedText
from ralm.reading.sampling import GenerationOptions, top_tokens
from ralm.reading.tokens import PreparedText, first_tokens, prepare_text
from ralm.records import NO_PASSAGE, DoubleArray, FloatArray, IntArray, Provenance, Request
from ralm.serving import answers, errors, state
from ralm.serving.model import SharedModel, label_by_id
from ralm.serving.options import Settings
from ralm.serving.requests import CompletionRequest
from ralm.validation import MAX_SEED

_MOST_IDS: Final = 2**31 - 1
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


def read_prompt(prompt: str | Sequence[int], model: SharedModel, most: int) -> ServedPrompt:
    """Return the prompt of a request; RequestError if it is empty, unknown to the model, or too long to tokenise."""
    if isinstance(prompt, str):
        errors.check_bytes([prompt], errors.most_bytes(most), "prompt")
        tokens = model.tokenizer.encode(prompt)
    else:
        vocabulary = model.vocabulary or _MOST_IDS
        for token in prompt:
            if not 0 <= token < vocabulary:
                message = f"`prompt` has the token {token:,}, and the model knows 0 to {vocabulary - 1:,}."
                raise errors.RequestError(message, param="prompt")
        tokens = np.array(prompt, dtype=np.int64)
    if len(tokens) == 0:
        raise errors.RequestError("`prompt` is empty: give at least one word or token.", param="prompt")
    return ServedPrompt(tokens, prompt if isinstance(prompt, str) else None, model.tokenizer)


def score_prompt(
    prompt: ServedPrompt,
    model: SharedModel,
    options: plan.PlanOptions,
    reads: state.ReadConfig,
    top_logprobs: int,
) -> list[GeneratedText]:
    """Return the text of a prompt with a scored token for each token after its leading special ones.

    They are scored as by `evaluate_text`, with `top_logprobs` top ones; with nothing before it the log-probability of a
    token is NaN. Raises RequestError if the model cannot return these.
    """
    scorer = Scorer(model, progress=False)
    reads.parts.require_average("`echo` with `logprobs`")
    check_plan(scorer, options)
    scored = [GeneratedToken(token, math.nan, _NO_PASSAGES, _WHOLE_SHARE) for token in prompt.tokens.tolist()]
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
    if prompt.sent_text is not None:
        return prepare_text(prompt.sent_text, prompt.tokenizer, options)
    text = replace(prompt, tokens=tokens)
    return PreparedText(
        [text.text], np.zeros(1, dtype=np.int64), tokens, _spans(text), plan.make_plan(len(tokens), options)
    )


def _targets(
    prepared: PreparedText, model: SharedModel, scorer: Scorer, reads: state.ReadConfig, top_logprobs: int
) -> Iterator[tuple[int, GeneratedToken]]:
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
                yield place, GeneratedToken(token, log_prob, readings.passages_K, shares_TK[column], top_logprobs=top)


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


class CompletionAnswer(answers.ServedAnswer[CompletionRequest]):
    """Makes the response to a request for completions."""

    kind = piece_kind = "text_completion"
    id_prefix = "cmpl"

    def _write(self) -> Iterator[answers.WrittenText]:
        """Write the choices; RequestError for a wrong value or prompt, or if the model cannot return the scores."""
        body, reads = self._body, self._reads
        body.check(self._limits)
        most = reads.settings.plan.max_length
        new_tokens = min(body.max_tokens, self._limits.new_tokens or body.max_tokens)
        prompts = [read_prompt(prompt, self._model, most) for prompt in body.prompt]
        for prompt in prompts:
            errors.check_room("prompt", len(prompt.tokens), new_tokens, most)
        settings = prompts[0].settings(reads.settings)  # the same for all: they are all text, or all token ids
        prompts_C = [prompt for prompt in prompts for _ in range(body.n)]
        self.prompt_tokens = sum(len(prompt.tokens) for prompt in prompts)
        self._choices = [
            answers.WrittenText(number, 0 if body.echo else len(prompt.text)) for number, prompt in enumerate(prompts_C)
        ]
        for number, prompt in enumerate(prompts if body.echo else ()):
            text = [GeneratedText(prompt.text, NO_PASSAGE)]
            if body.logprobs is not None:
                text = score_prompt(prompt, self._model, settings.plan, reads, body.logprobs)
            for choice in self._choices[number * body.n : (number + 1) * body.n]:
                yield from choice.add(text)
        if new_tokens:
            yield from self._continue(prompts_C, settings, new_tokens)
        else:
            for choice in self._choices:
                choice.reason = "length"

    def _continue(
        self, prompts_C: Sequence[ServedPrompt], settings: Settings, new_tokens: int
    ) -> Iterator[answers.WrittenText]:
        """Continue the prompt of each choice as `generate` does alone; seeds count up from that of the request."""
        body, model, reads = self._body, self._model, self._reads
        top_logprobs = body.logprobs or 0
        options = GenerationOptions.of(
            settings.plan, new_tokens=new_tokens, top_logprobs=top_logprobs, **body.sampling()
        )
        end_tokens = model.end_tokens
        if body.echo:  # clients count on one more token then: the end-of-text token is one without text
            model = copy(model)
            model.end_tokens = frozenset()
        writer = generate.TokenWriter(model, options, reads.source, reads.parts)
        tokens_C = [prompt.tokens[prompt.beginning(settings) :] for prompt in prompts_C]
        texts_C = [StoppedText(tokens, model.tokenizer, options.stop) for tokens in tokens_C]
        for number, tokens in enumerate(tokens_C):
            writer.add(tokens, body.chosen.get("query"), (options.seed + number % body.n) % (MAX_SEED + 1))
        while written := writer.step():
            for number, token in written:
                choice, text = self._choices[number], texts_C[number]
                choice.drawn += 1
                is_end = token.token in end_tokens
                end = GeneratedText("", token.passage, (token,))
                added = [*text.rest(), end] if is_end else text.add(token)
                if is_end or text.found:
                    choice.reason = "stop"
                    writer.end(number)
                yield from choice.add(added)
        for choice, text in zip(self._choices, texts_C, strict=True):
            yield from choice.add(text.rest())
        for choice, tokens in zip(self._choices, tokens_C, strict=True):
            choice.reason = choice.reason or ("length" if choice.drawn == options.new_tokens else "stop")
            if body.chosen.get("gain"):
                choice.gain_T = self._gain(choice, tokens, options)

    def _gain(self, choice: answers.WrittenText, prompt: IntArray, options: GenerationOptions) -> DoubleArray | None:
        """Return the gain of each token behind a prompt (int64); None without any."""
        if not choice.tokens:
            return None
        scorer = Scorer(self._model, progress=False)
        baseline_T = provenance.without_passages(prompt, choice.tokens, scorer, options.max_length, options.bos)
        return provenance.gains(np.array([token.log_prob for token in choice.tokens], dtype=np.float32), baseline_T)

    def _choice_json(self, choice: answers.WrittenText) -> answers.ResponseJson:
        logprobs = None if self._body.logprobs is None else self._logprobs_json(choice)
        return {"index": choice.number, "text": choice.text, "logprobs": logprobs, "finish_reason": choice.reason}

    def _label(self, token: int) -> str:
        return label_by_id(token) if self._body.return_tokens_as_token_ids else self._model.label(token)

    def _piece_json(self, added: answers.WrittenText) -> answers.ResponseJson:
        return self._choice_json(added)

    def _end_json(self, choice: answers.WrittenText) -> Sequence[answers.ResponseJson]:
        return [{"index": choice.number, "text": "", "logprobs": None, "finish_reason": choice.reason}]

    def _logprobs_json(self, choice: answers.WrittenText) -> answers.ResponseJson:
        return {
            "tokens": [self._label(token.token) for token in choice.tokens],
            "token_logprobs": [answers.log_prob_json(token.log_prob) for token in choice.tokens],
            "top_logprobs": [self._top(token) for token in choice.tokens],
            "text_offset": [*choice.offsets],
        }

    def _top(self, token: GeneratedToken) -> JsonValue:
        """Return the top log-probabilities and that of the token itself; null without a token before it."""
        if np.isnan(token.log_prob):
            return None
        named: dict[str, JsonValue] = {}
        for number, log_prob in (*token.top_logprobs, (token.token, token.log_prob)):
            named.setdefault(self._label(number), answers.log_prob_json(log_prob))
        return named

    def _choice_sources(self, choice: answers.WrittenText, *, with_tokens: bool) -> answers.ResponseJson:
        listed = with_tokens and bool(choice.text or choice.tokens)
        sources: answers.ResponseJson = {"tokens": self._tokens_json(choice.tokens)} if listed else {}
        if choice.gain_T is not None:
            written = [(token.passages_K, token.posteriors_K) for token in choice.tokens]
            sources |= answers.gain_json(Provenance.of_rows(written), choice.gain_T)
        return sources
