"""The services with a language model: one that runs here, or a server that requests are passed on to.

Both have a model that clients know by its name, or by that of the model with one of the indexes. Safe for many threads.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from ralm.errors import UsageError
from ralm.lm.tokenizer import has_chat_template
from ralm.protocols import LanguageModel, WritingModel
from ralm.reading.sampling import GenerationOptions
from ralm.serving import chat, completion, errors, indexes
from ralm.serving.audit import AuditLog
from ralm.serving.model import SharedModel
from ralm.serving.options import (
    CHOICES,
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


class ModelService(SearchService, ABC):
    """Indexes and a model, which is called `name` unless the options say otherwise; with an index it is NAME:INDEX, and
    without any NAME:plain. `may_choose` are the choices that requests may have."""

    may_choose: Sequence[str]

    def __init__(
        self,
        name: str,
        options: ServeOptions | None = None,
        settings: Settings | None = None,
        folders: Mapping[str, Path] | None = None,
        *,
        key: str | None = None,
        audit: AuditLog | None = None,
    ) -> None:
        super().__init__(options, settings, folders, key=key, audit=audit)
        self.created = int(time.time())
        self.name = self.options.name or name
        self.models: dict[str, str | None] = {self.name: self.settings.index}
        """The index of each name."""
        if self.indexes.names and "index" in self.options.allow:
            self.models |= {f"{self.name}:{index}": index for index in self.indexes.names}
            self.models[f"{self.name}:{PLAIN}"] = None
        check_documents(self.settings.reading, self.options.limits)

    @property
    @abstractmethod
    def description(self) -> dict[str, Any]:
        """What clients learn of the model and the choices of requests, besides its name and the settings."""

    @property
    def choices(self) -> Sequence[str]:
        """Return the choices that requests have here."""
        return [name for name in self.options.allow if name in self.may_choose]

    def check_model(self, name: str) -> None:
        """Raise RequestError if no model of this name is served."""
        if name not in self.models:
            message = f"the model {name!r} is not served; the models are: {', '.join(self.models)}."
            raise errors.RequestError(message, param="model", code="model_not_found", status=404)

    def chosen(self, model: str, choice: Mapping[str, Any]) -> dict[str, Any]:
        """Return the choices of a request by the name of the model and in its field `ralm`, which must not contradict
        it."""
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


class LocalService(ModelService):
    """A model that runs here, and reads passages of indexes according to `settings`; `ranker` is the model that the
    reranker names. Raises the errors of opening indexes, retrievers and the prompt of chats, and UsageError if lengths
    do not fit."""

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
        name = model.name.rstrip("/").rpartition("/")[2] or model.name
        super().__init__(name, options, settings, folders, key=key, audit=audit)
        self.model = SharedModel(model, cached_tokens=self.options.limits.cached_tokens)
        self.settings = with_length(self.settings, model, max_length)
        self.scores = scores_given_texts(self.model)
        self.may_choose = CHOICES if self.scores else [name for name in CHOICES if name != "gain"]
        self._rerankers = indexes.Rerankers(self.settings.reading, ranker)
        self.prompt = chat.open_chat_prompt(self.options.prompt or "chat")
        self.names = TokenLabels(self.model.tokenizer)
        if self.model.batcher is not None:
            for name, description in _BATCH_FIGURES.items():
                self.metrics.watch(f"batch_{name}", description, partial(getattr, self.model.batcher, name))
        if (blocks := getattr(model, "blocks", None)) is not None:
            for name, description in _BLOCK_FIGURES.items():
                self.metrics.watch(f"passage_cache_{name}", description, partial(getattr, blocks, name))
        self.reads({})  # fail at startup if a retriever cannot be opened

    @property
    def description(self) -> dict[str, Any]:
        """Return the length of the model, the maximum of new tokens, and what requests may ask for."""
        new_tokens = self.options.limits.new_tokens
        can = {
            "chat": not self.prompt.chat or has_chat_template(self.model.tokenizer),
            "turns": self.prompt.chat,
            "completions": True,
            "logprobs": self.model.tier != "text",
            "gain": self.scores,
        }
        return {
            "max_model_len": self.max_length,
            "most_new_tokens": self.max_length if new_tokens is None else new_tokens,
            "passes_on": False,
            "can": can,
        }

    @property
    def max_length(self) -> int:
        """Return the number of tokens that the model reads at once."""
        return self.settings.plan.max_length

    def warm_up(self) -> None:
        """Generate a token, so that the first request does not wait for compiling."""
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

    def reads(self, choice: Mapping[str, Any], *, in_strides: bool = True) -> indexes.ReadConfig:
        """Return the configuration of a request with these choices; RequestError if a choice is not possible. With
        `in_strides`, a stride must fit beside its passages; a chat has no strides."""
        settings = self._chosen(choice)
        try:
            if in_strides and settings.index is not None:
                check_stride_fits(settings)
            if settings.index is None:
                return indexes.ReadConfig(settings)
            source = self._source(settings)
            return indexes.ReadConfig(settings, source, self._rerankers.parts(self.model, settings, source))
        except UsageError as error:
            raise choice_error(error, choice) from None
