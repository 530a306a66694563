"""The model and the indexes of a server, and how a request reads with them; safe for many threads."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ralm.errors import UsageError
from ralm.lm.tokenizer import has_chat_template
from ralm.protocols import UNLIMITED, LanguageModel, WritingModel, traits_of
from ralm.reading.sampling import GenerationOptions
from ralm.serving import chat, completion, errors, indexes
from ralm.serving.audit import AuditLog
from ralm.serving.model import SharedModel
from ralm.serving.options import (
    CHOICES,
    PASSED_ON,
    PLAIN,
    ServeOptions,
    Settings,
    check_documents,
    check_stride_fits,
    with_length,
)
from ralm.serving.prompts import TokenLabels
from ralm.serving.search_service import SearchService, choice_error
from ralm.validation import scores_given_texts

if TYPE_CHECKING:
    from ralm.lm.api.http import Upstream

_BLOCK_FIGURES: Final = {
    "found": "Tokens of prompts whose keys and values were kept.",
    "read": "Tokens of prompts that were read.",
    "held": "Bytes of keys and values that are held.",
}
_BATCH_FIGURES: Final = {
    "steps": "Steps in which texts were read together.",
    "texts": "Texts in these steps.",
    "seconds": "Seconds of these steps.",
    "passes": "Prompts, or parts of them, that were scored.",
}
"""The attributes of the batcher, with descriptions."""


class Service(SearchService):
    """A model that reads passages of indexes according to `settings`; `ranker` is the model that the reranker names.
    Raises the errors of opening indexes, retrievers and the prompt of chats, and UsageError if lengths do not fit."""

    def __init__(
        self,
        model: WritingModel,
        options: ServeOptions | None = None,
        settings: Settings | None = None,
        folders: Mapping[str, Path] | None = None,
        *,
        ranker: LanguageModel | None = None,
        key: str | None = None,
        audit: AuditLog | None = None,
        max_length: int | None = None,
    ) -> None:
        super().__init__(options, settings, folders, key=key, audit=audit)
        self.created = int(time.time())
        self.open_upstream: Callable[[], Upstream] | None = getattr(model, "upstream", None)
        self.passes_on = self.open_upstream is not None and (self.options.proxy or traits_of(model).answers_only)
        full_name = model.name.rpartition("#")[2]
        last_part = full_name.rstrip("/").rpartition("/")[2]
        self.name = self.options.name or (full_name if self.passes_on else last_part) or model.name
        self.model = SharedModel(model, cached_tokens=self.options.limits.cached_tokens)
        if not self.passes_on:
            self.settings = with_length(self.settings, model, max_length)
        if self.passes_on and (self.settings.reading.mixes or self.settings.reading.reranks):
            raise UsageError(
                f"requests to {model.name} are passed on, with passages as they are found in one context: leave out "
                "`reader` ensemble and `rerank`."
            )
        self.models = self._models()
        check_documents(self.settings.reading, self.options.limits)
        self._rerankers = indexes.Rerankers(self.settings.reading, ranker)
        self.prompt = chat.open_chat_prompt(self.options.prompt or "chat")
        self.passed_on_prompt = chat.open_chat_prompt(self.options.prompt or "numbered")
        self.names = TokenLabels(self.model.tokenizer)
        if self.model.batcher is not None:
            for name, description in _BATCH_FIGURES.items():
                self.metrics.watch(f"batch_{name}", description, partial(getattr, self.model.batcher, name))
        if (blocks := getattr(model, "blocks", None)) is not None:
            for name, description in _BLOCK_FIGURES.items():
                self.metrics.watch(f"passage_cache_{name}", description, partial(getattr, blocks, name))
        self.reads({})  # fail at startup if a retriever cannot be opened

    @property
    def max_length(self) -> int | None:
        """The number of tokens that the model reads at once; None if requests are passed on and it is not known."""
        if self.passes_on:
            return self.model.max_length if self.model.max_length < UNLIMITED else None
        return self.settings.plan.max_length

    @property
    def choices(self) -> Sequence[str]:
        """The choices that requests have here."""
        possible = PASSED_ON if self.passes_on else CHOICES
        unscored = () if self.abilities["gain"] else ("gain",)
        return [name for name in self.options.allow if name in possible and name not in unscored]

    @property
    def abilities(self) -> dict[str, bool]:
        """What requests may ask for: chats, chats of several turns, completions, log-probabilities, gains."""
        own = not self.passes_on
        return {
            "chat": not (own and self.prompt.chat) or has_chat_template(self.model.tokenizer),
            "turns": self.passes_on or self.prompt.chat,
            "completions": own,
            "logprobs": own and self.model.tier != "text",
            "gain": own and scores_given_texts(self.model),
        }

    def warm_up(self) -> None:
        """Generate a token, so that the first request does not wait for compiling."""
        if self.model.tier != "all":
            return  # every request to an API costs
        reads = self.reads({})
        options = GenerationOptions.of(self.settings.plan, new_tokens=1)
        prompt = self.model.tokenizer.encode("The first request must not wait.")
        for _ in completion.write([prompt], self.model, options, reads):
            pass

    def check_health(self) -> None:
        """Raise RequestError if the model has failed."""
        if self.model.batcher is not None and self.model.batcher.failed is not None:
            message = "the language model has failed: see the log, and restart the server."
            raise errors.RequestError(message, status=503)

    def close(self) -> None:
        """End the thread that reads for requests."""
        self.model.close()

    def _models(self) -> dict[str, str | None]:
        """Return the index of each name of the model: NAME, and NAME:INDEX and NAME:plain if requests may choose it."""
        found = {self.name: self.settings.index}
        if self.indexes.names and "index" in self.options.allow:
            found |= {f"{self.name}:{index}": index for index in self.indexes.names} | {f"{self.name}:{PLAIN}": None}
        return found

    def check_model(self, name: str) -> None:
        """Raise RequestError if no model of this name is served."""
        if name not in self.models:
            message = f"the model {name!r} is not served; the models are: {', '.join(self.models)}."
            raise errors.RequestError(message, param="model", code="model_not_found", status=404)

    def chosen(self, model: str, choice: Mapping[str, Any]) -> dict[str, Any]:
        """The choices of a request by the name of the model and in its field `ralm`, which must not contradict it."""
        self.check_model(model)
        if model == self.name:
            return {**choice}
        index = self.models[model]
        if choice.get("index", index) != index:
            raise errors.RequestError(
                f"the model {model} reads {'no index' if index is None else f'the index {index!r}'}: leave out "
                f"`ralm.index`, or use {self.name}.",
                param="ralm.index",
            )
        return {**choice, "index": index}

    def reads(self, choice: Mapping[str, Any], *, in_strides: bool = True) -> indexes.ReadConfig:
        """Return the configuration of a request with these choices; RequestError if a choice is not possible. With
        `in_strides`, a stride must fit beside its passages; a chat has no strides."""
        settings = self._chosen(choice)
        try:
            if in_strides and settings.index is not None and not self.passes_on:
                check_stride_fits(settings)
            if settings.index is None:
                return indexes.ReadConfig(settings)
            source = self._source(settings)
            return indexes.ReadConfig(settings, source, self._rerankers.parts(self.model, settings, source))
        except UsageError as error:
            raise choice_error(error, choice) from None
