"""Completions: scores echoed prompts and continues prompts, and makes the response."""

from collections.abc import Iterator, Sequence
from copy import copy

import numpy as np
from pydantic import JsonValue

from ralm.lm.scoring import Scorer
from ralm.reading import generate, pieces, provenance
from ralm.reading.sampling import GenerationOptions
from ralm.records import NO_PASSAGE, DoubleArray, IntArray, Provenance
from ralm.serving import answers, errors
from ralm.serving.model import label_by_id
from ralm.serving.options import Settings
from ralm.serving.prompts import ScoredToken, ServedPrompt, check_room, read_prompt, score_prompt
from ralm.serving.requests import CompletionRequest
from ralm.validation import MAX_SEED


class CompletionAnswer(answers.ServedAnswer[CompletionRequest]):
    """Makes the response to a request for completions."""

    kind = piece_kind = "text_completion"
    id_prefix = "cmpl"

    def _write(self) -> Iterator[answers.WrittenText]:
        """Write the choices; RequestError for a wrong value or prompt, or if the model cannot return the scores."""
        body, reads, gain = self._body, self._reads, self._body.chosen.get("gain")
        body.check(self._limits)
        if gain and reads.source is None:
            raise errors.RequestError("`ralm.gain` is the gain from passages: it needs an index.", param="ralm.gain")
        most = self._limits.prompt_tokens or reads.settings.plan.max_length
        new_tokens = min(body.max_tokens, self._limits.new_tokens or body.max_tokens)
        prompts = [read_prompt(prompt, self._model, most) for prompt in body.prompt]
        for prompt in prompts:
            check_room(prompt, new_tokens, most)
        settings = prompts[0].settings(reads.settings)  # the same for all: they are all text, or all token ids
        prompts_C = [prompt for prompt in prompts for _ in range(body.n)]
        self.prompt_tokens = sum(len(prompt.tokens) for prompt in prompts)
        self._choices = [
            answers.WrittenText(number, 0 if body.echo else len(prompt.text)) for number, prompt in enumerate(prompts_C)
        ]
        for number, prompt in enumerate(prompts if body.echo else ()):
            text = [pieces.GeneratedText(prompt.text, NO_PASSAGE)]
            if body.logprobs is not None or gain:
                top = body.logprobs or 0
                text = score_prompt(prompt, self._model, settings.plan, reads, top_logprobs=top, gain=bool(gain))
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
        texts_C = [pieces.StoppedText(tokens, model.tokenizer, options.stop) for tokens in tokens_C]
        for number, tokens in enumerate(tokens_C):
            writer.add(tokens, body.chosen.get("query"), (options.seed + number % body.n) % (MAX_SEED + 1))
        while written := writer.step():
            for number, token in written:
                choice, text = self._choices[number], texts_C[number]
                choice.drawn += 1
                is_end = token.token in end_tokens
                end = pieces.GeneratedText("", token.passage, (token,))
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
        if not (tokens := _generated(choice)):
            return None
        scorer = Scorer(self._model, progress=False)
        baseline_T = provenance.without_passages(prompt, tokens, scorer, options.max_length, options.bos)
        return provenance.gains(np.array([token.log_prob for token in tokens], dtype=np.float32), baseline_T)

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

    def _top(self, token: pieces.GeneratedToken) -> JsonValue:
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
            written = [(token.passages_K, token.posteriors_K) for token in _generated(choice)]
            sources |= answers.gain_json(Provenance.of_rows(written), choice.gain_T)
        return sources


def _generated(choice: answers.WrittenText) -> list[pieces.GeneratedToken]:
    """Return the tokens behind an echoed prompt."""
    return [token for token in choice.tokens if not isinstance(token, ScoredToken)]
