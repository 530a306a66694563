"""Completions: scores echoed prompts and continues prompts, as events, and makes the response of them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from pydantic import JsonValue

from ralm.lm.scoring import Scorer
from ralm.reading import generate, pieces, provenance
from ralm.reading.sampling import GenerationOptions
from ralm.records import IntArray, Provenance
from ralm.serving import answers
from ralm.serving.errors import RequestError
from ralm.serving.indexes import ReadConfig
from ralm.serving.model import SharedModel
from ralm.serving.options import Limits, Settings
from ralm.serving.prompts import ScoredToken, ServedPrompt, TokenLabels, check_room, read_prompt, score_prompt
from ralm.validation import MAX_SEED


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Completion:
    """A request: each prompt (text or token ids) is continued `times` times by at most `new_tokens` tokens. `logprobs`
    is the number of top log-probabilities of each token (None: not even its own). `sampling` holds the options of
    `Sampling` and `stop`; `query` replaces the text as the query."""

    prompts: Sequence[str | Sequence[int]]
    new_tokens: int
    times: int
    echo: bool
    logprobs: int | None
    as_ids: bool
    query: str | None
    gain: bool
    sampling: dict[str, Any]


def complete(completion: Completion, model: SharedModel, reads: ReadConfig, limits: Limits) -> Iterator[answers.Event]:
    """Yield the events of a completion. RequestError if a query or a gain has no meaning, a prompt is empty, too long
    or has unknown tokens, or the model cannot return the scores."""
    if completion.echo and completion.query is not None:
        raise RequestError(
            "`ralm.query` has no effect with `echo`: the passages of an echoed prompt are those of its strides.",
            param="ralm.query",
        )
    if completion.gain and reads.source is None:
        raise RequestError("`ralm.gain` is the gain from passages: it needs an index.", param="ralm.gain")
    most = limits.prompt_tokens or reads.settings.plan.max_length
    prompts = [read_prompt(given, model, most) for given in completion.prompts]
    for prompt in prompts:
        check_room(prompt, completion.new_tokens, most)
    settings = prompts[0].settings(reads.settings)  # the same for all: they are all text, or all token ids
    offsets = [0 if completion.echo else len(prompt.text) for prompt in prompts for _ in range(completion.times)]
    yield answers.Began(offsets, sum(len(prompt.tokens) for prompt in prompts))
    is_scored = completion.logprobs is not None or completion.gain
    for number, prompt in enumerate(prompts if completion.echo else ()):
        tokens: Sequence[ScoredToken] = ()
        if is_scored:
            top_logprobs = completion.logprobs or 0
            tokens = score_prompt(prompt, model, settings.plan, reads, top_logprobs=top_logprobs, gain=completion.gain)
        for time in range(completion.times):
            yield answers.Echoed(number * completion.times + time, prompt.text, tokens)
    if completion.new_tokens:
        yield from _continue(completion, prompts, settings, model, reads)
    else:
        for choice in range(len(prompts) * completion.times):
            yield answers.Ended(choice, "length", 0)


def _continue(
    completion: Completion, prompts: Sequence[ServedPrompt], settings: Settings, model: SharedModel, reads: ReadConfig
) -> Iterator[answers.Wrote | answers.Ended]:
    """Yield the continuations; after an echoed prompt with the end-of-text token, as clients count on one more."""
    options = GenerationOptions.of(
        settings.plan, new_tokens=completion.new_tokens, top_logprobs=completion.logprobs or 0, **completion.sampling
    )
    texts = [prompt.tokens[prompt.beginning(settings) :] for prompt in prompts]
    scorer = Scorer(model, progress=False)
    tokens: dict[int, list[pieces.GeneratedToken]] = {}
    for event in write(
        texts, model, options, reads, query=completion.query, times=completion.times, show_end=completion.echo
    ):
        if isinstance(event, answers.Wrote):
            tokens.setdefault(event.choice, []).extend(event.piece.tokens)
        elif completion.gain and event.choice in tokens:
            own = tokens[event.choice]
            text = texts[event.choice // completion.times]
            baseline_T = provenance.without_passages(text, own, scorer, options.max_length, options.bos)
            log_probs_T = np.array([token.log_prob for token in own], dtype=np.float32)
            event = replace(event, gain_T=provenance.gains(log_probs_T, baseline_T))
        yield event


def write(
    prompts: Sequence[IntArray],
    model: SharedModel,
    options: GenerationOptions,
    reads: ReadConfig,
    *,
    query: str | None = None,
    times: int = 1,
    show_end: bool = False,
) -> Iterator[answers.Wrote | answers.Ended]:
    """Continue each prompt (int64, not empty) `times` times, as `generate` does for it alone: the first with the seed
    of `options`, the others with the seeds after it. With `show_end`, the end-of-text token is a token without text."""
    end_tokens = model.end_tokens
    if show_end:
        model = copy(model)
        model.end_tokens = frozenset()
    writer = generate.TokenWriter(model, options, reads.source, reads.parts)
    texts, ended, tokens = list[pieces.StoppedText](), set[int](), Counter[int]()
    for prompt in prompts:
        for time in range(times):
            writer.add(prompt, query, (options.seed + time) % (MAX_SEED + 1))
            texts.append(pieces.StoppedText(prompt, model.tokenizer, options.stop))
    while written := writer.step():
        for choice, token in written:
            tokens[choice] += 1
            if show_end and token.token in end_tokens:
                ended.add(choice)
                added = [*texts[choice].rest(), pieces.GeneratedText("", token.passage, (token,))]
            else:
                added = texts[choice].add(token)
            yield from (answers.Wrote(choice, piece) for piece in added)
            if choice in ended or texts[choice].found:
                writer.end(choice)
    for choice, text in enumerate(texts):
        yield from (answers.Wrote(choice, piece) for piece in text.rest())
    for choice, text in enumerate(texts):
        is_cut = tokens[choice] == options.new_tokens and not text.found and choice not in ended
        yield answers.Ended(choice, "length" if is_cut else "stop", tokens[choice])


class CompletionAnswer(answers.ServedAnswer):
    """Makes the response to a request for completions."""

    kind = piece_kind = "text_completion"
    id_prefix = "cmpl"

    def __init__(
        self,
        completion: Completion,
        events: Iterator[answers.Event],
        reads: ReadConfig,
        names: TokenLabels,
        *,
        model: str,
    ) -> None:
        super().__init__(events, reads, names, model=model, as_ids=completion.as_ids)
        self._logprobs = completion.logprobs

    def _choice_json(self, number: int, choice: answers.ResponseChoice) -> answers.ResponseJson:
        logprobs = None if self._logprobs is None else self._logprobs_json(choice, self._choices[number])
        return {"index": number, "text": choice.text, "logprobs": logprobs, "finish_reason": choice.reason}

    def _piece_json(self, number: int, added: answers.ResponseChoice) -> answers.ResponseJson:
        return self._choice_json(number, added)

    def _end_json(self, number: int, choice: answers.ResponseChoice) -> Sequence[answers.ResponseJson]:
        return [{"index": number, "text": "", "logprobs": None, "finish_reason": choice.reason}]

    def _logprobs_json(self, shown: answers.ResponseChoice, choice: answers.ResponseChoice) -> answers.ResponseJson:
        offsets: list[JsonValue] = []
        for text in shown.texts:
            offsets.append(choice.listed)
            choice.listed += len(text)
        return {
            "tokens": [self._name(token.token) for token in shown.tokens],
            "token_logprobs": [answers.log_prob_json(token.log_prob) for token in shown.tokens],
            "top_logprobs": [self._top(token) for token in shown.tokens],
            "text_offset": offsets,
        }

    def _top(self, token: answers.Token) -> JsonValue:
        """The top log-probabilities and that of the token itself; null without a token before it."""
        if token.log_prob is None:
            return None
        named: dict[str, JsonValue] = {}
        for number, log_prob in token.top_logprobs[: self._logprobs]:
            named.setdefault(self._name(number), answers.log_prob_json(log_prob))
        named.setdefault(self._name(token.token), answers.log_prob_json(token.log_prob))
        return named

    def _choice_sources(self, choice: answers.ResponseChoice, *, with_tokens: bool) -> answers.ResponseJson:
        listed = with_tokens and bool(choice.text or choice.tokens)
        found: answers.ResponseJson = {"tokens": self._tokens_json(choice.tokens)} if listed else {}
        if choice.end is not None and choice.end.gain_T is not None:
            written = [
                (one.passages_K, one.posteriors_K) for one in choice.tokens if isinstance(one, pieces.GeneratedToken)
            ]
            found |= answers.gain_json(Provenance.of_rows(written), choice.end.gain_T)
        return found
