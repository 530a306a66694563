"""ralm as a model of lm-evaluation-harness: importing this module registers it there under the name `ralm`.

The harness sends a model three kinds of requests, each with the task's document:

    loglikelihood           how likely an ending is after a context, and whether greedy decoding would write it
    loglikelihood_rolling   how likely a whole text is
    generate_until          what the model writes after a context

Without passages the answers are those of the harness's own `hf`. With passages, a passage stands before the context
([d; x], In-Context RALM, Eq. 3), or each of several does and the distributions are averaged (REPLUG, Eq. 2).
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from typing import Annotated, Any, Final, Self, cast

import numpy as np
from pydantic import JsonValue

from ralm import __version__
from ralm.errors import ModelError, UsageError
from ralm.evaluation.perplexity import evaluate_text
from ralm.grammar import as_text, parse_pairs
from ralm.harness import harness_extra
from ralm.harness.requests import Contexts, parse_generation_kwargs
from ralm.lm.scoring import Scorer, groups_that_fit
from ralm.options import Option, check_options
from ralm.pipeline import open_pipeline
from ralm.protocols import WritingModel, traits_of
from ralm.reading import generate, pieces, sampling, score, sources
from ralm.reading.parts import IN_CONTEXT, Parts
from ralm.reading.plan import PlanOptions
from ralm.records import IntArray, Request
from ralm.settings import PlannedOptions, read_settings
from ralm.terminal import progress_bar, track
from ralm.validation import MAX_COUNT, MAX_SEED, check_length, config_of

with harness_extra():
    import lm_eval.models  # noqa: F401  # first, since the harness registers its own models only in an empty registry
    import torch
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import LM, CacheHook
    from lm_eval.api.registry import register_model
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

    from ralm.protocols import UNLIMITED

_DEFAULT_DEVICE: Final = "cuda:0"
"""What the harness's command line asks for without `--device`: the device that `auto` finds if there is one."""
_NO_KEYS: Final = ("max_length", "semantics", "windows", "block")
"""Keys of a plan that are no arguments here: the first has another default, the others are for whole texts alone."""
_SIZES: Final = ("batch_size", "max_batch_size")
"""Arguments of the harness that have no effect here."""
_UNKNOWN_LENGTH: Final = 2048
"""How many tokens `hf` reads at once if a model has no limit."""
_WITHOUT_PASSAGES: Final[Mapping[str, Any]] = {"stride": 1, "document_tokens": 1}
"""Lengths that leave all room to the context."""
_NOTHING: Final[IntArray] = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessOptions(PlannedOptions):
    """The language model that the harness evaluates, and its passages; UsageError if options do not go together."""

    plan: Annotated[PlanOptions, Option("What is read.", without=_NO_KEYS)] = field(
        default_factory=lambda: PlanOptions(max_length=MAX_COUNT)
    )
    max_length: Annotated[
        int | None,
        Option("Maximum number of tokens that the model reads at once, passage included.", default_text="the model's"),
    ] = None
    question_field: Annotated[
        str | None,
        Option("Field of a task's documents that holds the question.", default_text="the usual names"),
    ] = None

    def __post_init__(self) -> None:
        check_options(self)
        self.check_source()
        self.reading.parts().require_average("a task of the harness")
        self.model.check_effect(self.lm)


def parse_arguments(arguments: Mapping[str, Any]) -> HarnessOptions:
    """Return the options of the harness's arguments, whose sizes of batches do not count; None is the default."""
    texts = {name: as_text(value) for name, value in arguments.items() if value is not None and name not in _SIZES}
    device = texts.pop("device", None)
    options = read_settings(HarnessOptions, texts, "the model ralm")
    if device is None:
        return options
    if options.model.device != "auto":
        raise UsageError("`device` stands in `lm_args`, too: give one of them.")
    return replace(options, model=replace(options.model, device=device))


@register_model("ralm")
class RalmLM(LM):  # type: ignore[misc]  # the harness is not typed
    """A language model of the harness that reads passages of `source`; without one, the plain model.

    The query is the question of a task's document, in `question_field` or one of the usual names, else the end of the
    context; for a whole text the queries are those of `evaluate_text`. `plan` is by default the papers' with the
    model's own length. As many contexts are continued together as the memory of the model holds.
    """

    def __init__(
        self,
        model: WritingModel,
        source: sources.FromRetriever | None = None,
        *,
        parts: Parts = IN_CONTEXT,
        plan: PlanOptions | None = None,
        question_field: str | None = None,
    ) -> None:
        super().__init__()
        self._model = model
        self._scorer = Scorer(model)
        self._source = source
        self._parts = parts
        parts.check_scoring(model, "a task of the harness")
        self._plan = _plan_of(model, plan, None if plan is None else plan.max_length, passages=source is not None)
        self._plan.check_documents(parts.joined)
        self._question_field = question_field
        self._contexts = Contexts(model, self._plan, source, parts, question_field)
        self._template: str | None = None

    @classmethod
    def of(cls, options: HarnessOptions) -> Self:
        """Return the model that options describe; raises what loading it and opening the index raise."""
        opened = open_pipeline(options)
        source = cast("sources.FromRetriever | None", opened.source)
        return cls(
            opened.model,
            source,
            parts=opened.parts,
            plan=_plan_of(opened.model, options.plan, options.max_length, passages=source is not None),
            question_field=options.question_field,
        )

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: Mapping[str, Any], additional_config: Mapping[str, Any] | None = None
    ) -> Self:
        """Return the model of `model_args` and of the harness's own arguments (`device`, `batch_size`)."""
        more = {**(additional_config or {})}
        if more.get("device") == _DEFAULT_DEVICE or "device" in arg_dict:
            more.pop("device", None)
        return cls.of(parse_arguments({**arg_dict, **more}))

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: Mapping[str, Any] | None = None) -> Self:
        """Return the model of `model_args` as one text, `name=value,name=value`; a value with a comma is in quotes."""
        return cls.create_from_arg_obj(parse_pairs(arg_string, "the model ralm"), additional_config)

    @cached_property
    def settings(self) -> dict[str, JsonValue]:
        """Everything that decides the answers."""
        return {
            "ralm": __version__,
            "model": config_of(self._model, "language model"),
            "passages": None if self._source is None else self._source.config,
            **({"reader": None} if self._source is None else self._parts.config),
            "plan": asdict(self._plan),
            "question_field": self._question_field,
        }

    def get_model_info(self) -> dict[str, JsonValue]:
        """Return the settings, which the harness records with its results."""
        return {"ralm": self.settings}

    # Private: lm-eval's hook of `LM` for its cache.
    def set_cache_hook(self, cache_hook: CacheHook) -> None:
        """Raise UsageError for a cache of the harness (`use_cache`).

        It finds an answer by the text of its request alone, so it would mix up answers of several models, indexes and
        questions.
        """
        if cache_hook.dbdict is not None:
            raise UsageError("`use_cache` would mix up the answers of several models and indexes: leave it out.")
        super().set_cache_hook(cache_hook)

    def loglikelihood(
        self,
        requests: Sequence[Instance],
        disable_tqdm: bool = False,  # noqa: ARG002  # RALM_PROGRESS=0 turns our progress off
    ) -> list[tuple[float, bool]]:
        """Return the log-probability of each ending after its context, and whether greedy decoding writes it."""
        endings = self._contexts.endings(requests)
        read = score.read_endings(endings, self._parts, self._model)
        return [
            (float(log_probs.sum(dtype=np.float64)), greedy)
            for log_probs, greedy in track(read, "Endings", len(endings))
        ]

    def loglikelihood_rolling(
        self,
        requests: Sequence[Instance],
        disable_tqdm: bool = False,  # noqa: ARG002
    ) -> list[float]:
        """Return the natural log-probability of each whole text; without passages that of the harness's own windows."""
        read = self._rolling if self._source is None else self._evaluated
        return [read(request.args[0]) for request in track(requests, "Texts", len(requests))]

    def _evaluated(self, text: str) -> float:
        evaluation = evaluate_text(text, self._scorer, self._plan, source=self._source, parts=self._parts)
        return -evaluation.reading.scored.nll

    def _rolling(self, text: str) -> float:
        """Score windows of the model's length one after the other, from the BOS or end-of-text token on."""
        prefix = self._contexts.prefix
        if prefix is None:
            raise ModelError("the tokenizer has neither a BOS nor an EOS to begin a text with.")
        tokens = self._contexts.encode(text).tolist()
        windows = get_rolling_token_windows(tokens, prefix, self._plan.max_length, context_len=1)
        requests = [
            Request(document=_NOTHING, context=np.array(context), targets=np.array(targets))
            for context, targets in map(make_disjoint_window, windows)
        ]
        return float(sum(log_probs.sum(dtype=np.float64) for log_probs in self._scorer.log_probs(requests)))

    def generate_until(
        self,
        requests: Sequence[Instance],
        disable_tqdm: bool = False,  # noqa: ARG002
    ) -> list[str]:
        """Return the text that the model writes after each context, up to the first stop string."""
        answers: dict[int, str] = {}
        with progress_bar("Generating", len(requests)) as advance:
            for options, numbers in self._by_options(requests).items():
                for number, text in self._written(requests, numbers, options):
                    answers[number] = text
                    advance()
        return [answers[number] for number in range(len(requests))]

    def _by_options(self, requests: Sequence[Instance]) -> dict[sampling.GenerationOptions, list[int]]:
        """Return the numbers of requests by their options; a repeat of a request gets the next seed."""
        repeats: Counter[int] = Counter()
        grouped: dict[sampling.GenerationOptions, list[int]] = {}
        for number, request in enumerate(requests):
            seed = (torch.initial_seed() + repeats[id(request)]) % MAX_SEED
            repeats[id(request)] += 1
            options = parse_generation_kwargs(request.args[1], self._plan, seed, bos=self._source is not None)
            grouped.setdefault(options, []).append(number)
        return grouped

    def _written(
        self, requests: Sequence[Instance], numbers: Sequence[int], options: sampling.GenerationOptions
    ) -> Iterator[tuple[int, str]]:
        """Yield the numbers of requests that are written with the same options, each with its text."""
        writer = generate.TokenWriter(self._model, options, self._source, self._parts)
        prompts = {number: self._contexts.prompt(requests[number], options.new_tokens) for number in numbers}
        for batch in self._batches([prompt for prompt, _ in prompts.values()], options):
            group = numbers[batch.start : batch.stop]
            texts: dict[int, pieces.StoppedText] = {}
            tokens: dict[int, list[int]] = {}
            for number in group:
                prompt, _ = prompts[number]
                question = self._contexts.question(requests[number])
                added = writer.add(prompt, question)
                texts[added], tokens[added] = pieces.StoppedText(prompt, self._model.tokenizer, options.stop), []
            while written := writer.step():
                for added, token in written:
                    tokens[added].append(token.token)
                    texts[added].add(token)
                    if texts[added].found:
                        writer.end(added)
            answers = (self._text_before(options.stop, of_text) for of_text in tokens.values())
            yield from zip(group, answers, strict=True)
        self._contexts.warn_of_cuts(sum(is_cut for _, is_cut in prompts.values()), len(numbers))

    def _batches(self, prompts: Sequence[IntArray], options: sampling.GenerationOptions) -> Iterator[range]:
        """Yield the numbers of contexts that are continued together."""
        more = options.document_tokens * self._parts.joined + options.new_tokens if self._source else options.new_tokens
        lengths = [[len(prompt) + more] * self._parts.reader.hits for prompt in prompts]
        return groups_that_fit(lengths, traits_of(self._model).tokens_at_once)

    def _text_before(self, stop: Sequence[str], tokens: Sequence[int]) -> str:
        """Return the text before the first stop string; tokens are decoded without special tokens, as in `hf`."""
        tokenizer = self._model.tokenizer
        text = str(getattr(tokenizer, "decode_words", tokenizer.decode)(np.array(tokens, dtype=np.int64)))
        return text[: min((at for string in stop if (at := text.find(string)) >= 0), default=len(text))]

    @property
    def tokenizer_name(self) -> str:
        """The name of the tokenizer and its chat templates in the harness's cache of requests."""
        fingerprint = getattr(self._model.tokenizer, "fingerprint", "")
        return f"{self._model.name}-{fingerprint}".replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """Return the chat template, or the one of this name, which is then used; None if it is false."""
        if not chat_template:
            return None
        self._template = chat_template if isinstance(chat_template, str) else None
        return str(self._chatting.chat_template(self._template))

    def apply_chat_template(self, chat_history: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> str:
        """Return messages in the tokenizer's chat template, as in `hf` without system messages that it rejects."""
        chat = partial(self._chatting.chat, template=self._template, continue_final=not add_generation_prompt)
        try:
            return str(chat(chat_history))
        except ModelError:
            dialogue = [message for message in chat_history if message["role"] != "system"]
            if len(dialogue) == len(chat_history):
                raise
            return str(chat(dialogue))

    @property
    def _chatting(self) -> Any:
        """The tokenizer; raises ModelError if it has no chat template."""
        if not hasattr(self._model.tokenizer, "chat"):
            raise ModelError(f"the tokenizer of {self._model.name} has no chat template.")
        return self._model.tokenizer


def _plan_of(model: WritingModel, plan: PlanOptions | None, max_length: int | None, *, passages: bool) -> PlanOptions:
    """Return a plan for a model, by default the papers', with the model's own length if none is given."""
    unknown = model.max_length >= UNLIMITED
    length = max_length or (_UNKNOWN_LENGTH if unknown else model.max_length)
    check_length(model, length)
    lengths = {"max_length": length, **({} if passages else _WITHOUT_PASSAGES)}
    return PlanOptions(**lengths) if plan is None else replace(plan, **lengths)
