"""Requests of lm-evaluation-harness: their questions, contexts and endings as token ids, and how they are generated.

Text becomes tokens as in the harness's `hf`, so that the same tokens are scored. The retriever's query is the question
of the task's document, else the end of the context.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from ralm.errors import RalmWarning, TextError, UsageError
from ralm.lm.tokenizer import full_tokenizer
from ralm.protocols import LanguageModel
from ralm.reading import sampling, score, sources
from ralm.reading.parts import Parts
from ralm.reading.plan import PlanOptions
from ralm.reading.rows import PromptRows, PromptState
from ralm.reading.tokens import PassageDocuments, without_first
from ralm.records import NO_READINGS, IntArray

QUESTION_FIELDS: Final = (
    "question query question_stem Question QUESTION problem Problem goal qtext input_question input".split()
)
"""Names of the question in tasks of the harness, the commonest first."""
_DEFAULT_TOKENS: Final = 256
"""Tokens that the harness generates if a task gives no number."""
_LENGTHS: Final = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
_WITHOUT_EFFECT: Final[Mapping[str, Any]] = {"num_beams": 1, "num_return_sequences": 1, "repetition_penalty": 1.0}
"""Values of arguments that change nothing."""
_NOTHING: Final[IntArray] = np.zeros(0, dtype=np.int64)


def question_of(document: object, field: str | None = None) -> str | None:
    """Return the text in `field` of a task's document, else in the first of `QUESTION_FIELDS` that has some."""
    fields: Mapping[str, Any] = document if isinstance(document, Mapping) else {}
    if field is None:
        return next((fields[name] for name in QUESTION_FIELDS if _is_text(fields.get(name))), None)
    if not _is_text(fields.get(field)):
        names = ", ".join(map(str, fields)) or "none"
        raise UsageError(f'`question_field="{field}"` has no text in a document of this task; its fields are {names}.')
    return str(fields[field])


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


class Contexts:
    """The contexts of requests (`lm_eval.api.instance.Instance`) as token ids, after passages of `source`."""

    def __init__(
        self,
        model: LanguageModel,
        plan: PlanOptions,
        source: sources.FromRetriever | None,
        parts: Parts,
        question_field: str | None,
    ) -> None:
        self._model = model
        self._tokenizer = full_tokenizer(model.tokenizer)
        self._plan = plan
        self._source = source
        self._parts = parts
        self._question_field = question_field
        special = self._tokenizer.special_tokens
        # passages begin with the special tokens themselves, as the plan says
        self._around = (special.before if source is None else _NOTHING, special.after)
        self.prefix = self._tokenizer.end_token if special.begin is None else special.begin
        passages, bos = ((), "never") if source is None else (source.passages, plan.bos)
        self._documents = PassageDocuments(passages, model.tokenizer, plan.document_tokens, bos)

    def encode(self, text: str) -> IntArray:
        """Return the token ids (int64) of a text with the special tokens around it, unless it begins with them."""
        tokens = self._tokenizer.encode(text)
        begins = self.prefix is not None and text.startswith(self._tokenizer.decode(np.array([self.prefix])))
        return tokens if begins else np.concatenate([self._around[0], tokens, self._around[1]])

    def prompt(self, request: Any, room: int) -> tuple[IntArray, bool]:
        """Return a context (int64), the BOS if it is empty, with room for `room` more; and whether it was cut."""
        whole = self.encode(request.args[0])
        tokens = whole[-(self._plan.max_length - room) :]
        if not len(tokens) and self.prefix is not None:
            tokens = np.array([self.prefix], dtype=np.int64)
        return tokens, len(tokens) < len(whole)

    def warn_of_cuts(self, cut: int, contexts: int) -> None:
        """Warn (RalmWarning) if contexts were cut."""
        if cut:
            warnings.warn(
                f"{cut:,} of {contexts:,} contexts are too long for the {self._plan.max_length} tokens that the model "
                "reads, and lose their oldest tokens",
                RalmWarning,
                stacklevel=3,
            )

    def question(self, request: Any) -> str | None:
        """Return a request's question, if it has one and passages are read."""
        return None if self._source is None else question_of(request.doc, self._question_field)

    def endings(self, requests: Sequence[Any]) -> list[score.Ending]:
        """Return the contexts and endings of requests, after their passages.

        Warns (RalmWarning) if contexts are too long and lose their oldest tokens. Raises UsageError if an ending and
        the passages do not fit into the model, TextError if an ending has no tokens.
        """
        texts = [self._split(*request.args) for request in requests]
        contexts = [without_first(context, self._documents.first) for context, _ in texts]
        queries = [
            self._tokenizer.decode(context[-self._plan.query_tokens :]) if question is None else question
            for context, question in zip(contexts, map(self.question, requests), strict=True)
        ]
        hits, evidence = self._hits(queries, contexts), self._parts.evidence
        endings = []
        for row_hits, context, (_, targets) in zip(hits, contexts, texts, strict=True):
            readings = self._parts.readings(row_hits, self._documents)
            endings.append(score.Ending.after(readings, context, targets, self._plan.max_length, self.prefix, evidence))
        self.warn_of_cuts(sum(ending.dropped > 0 for ending in endings), len(endings))
        return endings

    def _hits(self, queries: Sequence[str], contexts: Sequence[IntArray]) -> Sequence[Sequence[tuple[int, float]]]:
        """Return the hits that are read before each context, those of its query; none for an empty query."""
        keys = [(query, context.tobytes()) for query, context in zip(queries, contexts, strict=True)]
        distinct = {key: context for key, context in zip(keys, contexts, strict=True) if key[0].strip()}
        if self._source is None or not distinct:
            return [[] for _ in keys]
        searched = [query for query, _ in distinct]
        hits, prompts = self._source.search(searched, self._parts.hits), [*distinct.values()]
        states = [PromptState(prompt, None, NO_READINGS) for prompt in prompts]
        options = sampling.GenerationOptions.of(self._plan)
        rows = PromptRows(states, searched, self._model, self._documents, self._source.passages, options)
        chosen = self._parts.choose(rows, hits, self._source.passages)
        hits_of = {key: chosen.of(row) for row, key in enumerate(distinct)}
        return [hits_of.get(key, []) for key in keys]

    def _split(self, context: str, ending: str) -> tuple[IntArray, IntArray]:
        """Return the tokens of a context and of its ending.

        As in the harness, spaces between them belong to the ending, and its tokens are those of the whole text without
        as many as the context has. An ending that has none of these is encoded apart. Without a context, the ending's
        first token is the context if it is the BOS or end-of-text token and others follow.
        """
        if context:
            stripped = context.rstrip()
            before = self.encode(stripped)
            targets = self.encode(context + ending)[len(before) :]
            if len(targets) == 0:
                targets = self._tokenizer.encode(context[len(stripped) :] + ending)
        else:
            targets = self._tokenizer.encode(ending)
            begins = len(targets) > 1 and targets[0] == self.prefix
            before, targets = (targets[:1], targets[1:]) if begins else (_NOTHING, targets)
        if len(targets) == 0:
            raise TextError(f"the ending {ending!r} of a context has no tokens of its own, so it has no probability.")
        return before, targets


def parse_generation_kwargs(
    kwargs: Mapping[str, Any], plan: PlanOptions, seed: int, *, bos: bool
) -> sampling.GenerationOptions:
    """Return the options of a task's `generation_kwargs`, as `hf` reads them; without `bos`, nothing comes first."""
    remaining = dict(kwargs)
    lengths = [value for name in _LENGTHS if (value := remaining.pop(name, None)) is not None]
    stop = remaining.pop("until", None) or ()
    do_sample, temperature = remaining.pop("do_sample", None), float(remaining.pop("temperature", None) or 0)
    if do_sample and not temperature:
        raise UsageError("`do_sample=True` needs a `temperature` above 0 in `generation_kwargs`.")
    if do_sample is False:
        temperature = 0.0
    top_k, top_p = remaining.pop("top_k", None), remaining.pop("top_p", None)
    for name, value in remaining.items():
        if _WITHOUT_EFFECT.get(name) != value:
            raise UsageError(f"`generation_kwargs` has `{name}={value!r}`, which ralm does not have: leave it out.")
    new_tokens = int(lengths[0]) if lengths else _DEFAULT_TOKENS
    if new_tokens >= plan.max_length:
        raise UsageError(
            f"`max_gen_toks` {new_tokens} leaves no room for a context in the {plan.max_length} tokens that the model "
            "reads: lower it in `generation_kwargs`."
        )
    stops = tuple(text for text in ([stop] if isinstance(stop, str) else stop) if text)
    options: dict[str, Any] = {"new_tokens": new_tokens, "temperature": temperature, "stop": stops}
    if temperature > 0:
        options |= {"top_k": top_k if top_k and top_k > 0 else None, "top_p": top_p or 1.0, "seed": seed}
    if not bos:
        options["bos"] = "never"
    return sampling.GenerationOptions.of(plan, **options)
