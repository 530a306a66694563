"""The model and the indexes of a server, and how a request reads with them; safe for many threads."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from ralm.errors import UsageError
from ralm.protocols import LanguageModel, WritingModel
from ralm.retrieval.retriever import RetrieverName, RetrieverOptions
from ralm.serving.chat import open_chat_prompt
from ralm.serving.completion import write
from ralm.serving.errors import RequestError, model_not_found
from ralm.serving.indexes import Indexes, ReadConfig, Rerankers
from ralm.serving.middleware import BATCH_FIGURES, SEARCH_FIGURES, Metrics
from ralm.serving.model import SharedModel
from ralm.serving.options import (
    PLAIN,
    ServeOptions,
    Settings,
    check_documents,
    check_stride_fits,
    continuation_options,
    indexes_by_model,
    with_choices,
    with_length,
)
from ralm.serving.prompts import TokenLabels

_LOG: Final = logging.getLogger("ralm.serving")
_LOGGED: Final = 200
"""Maximum number of characters, or tokens, of a prompt in the log."""


class Service:
    """A model that reads passages of the indexes in `folders` (by name, the first by default) according to `settings`.

    `ranker` is the model of `rerank_lm`; clients must send `key`, if given. `max_length` is the number of tokens that
    the model reads at once, by default its own. Raises the errors of opening the indexes, their retrievers and the
    prompt of chats, and UsageError if lengths do not fit into the model.
    """

    def __init__(
        self,
        model: WritingModel,
        options: ServeOptions | None = None,
        settings: Settings | None = None,
        folders: Mapping[str, Path] | None = None,
        *,
        ranker: LanguageModel | None = None,
        key: str | None = None,
        max_length: int | None = None,
    ) -> None:
        self.options = options or ServeOptions()
        self.key = key
        self.created = int(time.time())
        self.name = self.options.name or _last_part(model.name)
        self.model = SharedModel(model, self.options.batch)
        self.indexes = Indexes(folders or {})
        default = next(iter(self.indexes.names), None)
        if PLAIN in self.indexes.names:
            raise UsageError(f"no index can be called {PLAIN}, which is the model without passages: give NAME=DIR.")
        self.settings = with_length(replace(settings or Settings(), index=default), model, max_length)
        self.models = indexes_by_model(self.name, self.settings, self.options, self.indexes.names)
        check_documents(self.settings.reading, self.options.limits)
        self._rerankers = Rerankers(self.settings.reading, ranker)
        self.prompt = open_chat_prompt(self.options.prompt)
        self.names = TokenLabels(self.model.tokenizer)
        self.metrics = Metrics()
        self._watch_counts()
        self.reads({})  # fail at startup if a retriever cannot be opened

    @property
    def max_length(self) -> int:
        """The number of tokens that the model reads at once."""
        return self.settings.plan.max_length

    def warm_up(self) -> None:
        """Generate a token, so that the first request does not wait for compiling."""
        if self.model.tier != "all":
            return  # every request to an API costs
        reads = self.reads({})
        options = continuation_options(self.settings, new_tokens=1)
        prompt = self.model.tokenizer.encode("The first request must not wait.")
        for _ in write([prompt], self.model, options, reads):
            pass

    def close(self) -> None:
        """End the batcher of the model, and the requests that wait for it."""
        self.model.close()

    @property
    def failed(self) -> bool:
        """Whether the batcher of the model has failed."""
        return self.model.failed is not None

    def _watch_counts(self) -> None:
        self.metrics.watch_each("search", SEARCH_FIGURES, self.indexes.searches)
        if self.model.counts is not None:
            self.metrics.watch_each("batch", BATCH_FIGURES, self.model.counts)

    def check_model(self, name: str | None) -> None:
        """Raise RequestError if a model is given that is not served."""
        if name is not None and name not in self.models:
            raise model_not_found(f"the model {name!r} is not served; there is: {', '.join(self.models)}.")

    def chosen(self, model: str, choice: Mapping[str, Any]) -> dict[str, Any]:
        """The choices of a request by the name of the model and in its field `ralm` together.

        Raises RequestError if the model is not served, or if the two contradict each other.
        """
        self.check_model(model)
        if model == self.name:
            return {**choice}
        index = self.models[model]
        if choice.get("index", index) != index:
            raise RequestError(
                f"the model {model} reads {'no index' if index is None else f'the index {index!r}'}: leave out "
                f"`ralm.index`, or use {self.name}.",
                param="ralm.index",
            )
        return {**choice, "index": index}

    def log_prompts(self, prompts: Sequence[str | Sequence[int]]) -> None:
        """Log the beginning of each prompt, with the option `log_prompts`."""
        for prompt in prompts if self.options.log_prompts else ():
            _LOG.info("prompt: %s", repr(prompt[:_LOGGED]))

    def count_tokens(self, read: int, written: int) -> None:
        """Add prompt tokens and generated tokens to the metrics."""
        self.metrics.tokens.labels("prompt").inc(read)
        self.metrics.tokens.labels("written").inc(written)

    def reads(self, choice: Mapping[str, Any], *, in_strides: bool = True) -> ReadConfig:
        """The configuration of a request with these choices; RequestError if a choice is not possible.

        With `in_strides`, a stride must fit beside its passages; a chat has no strides.
        """
        try:
            settings = with_choices(self.settings, choice, self.options, self.indexes.names)
            if in_strides and settings.index is not None:
                check_stride_fits(settings)
            if settings.index is None:
                return ReadConfig(settings)
            reranker = self._rerankers.of(settings.reading.reranking)
        except RequestError:
            raise
        except UsageError as error:
            raise RequestError(str(error), param=_first_named(str(error), choice)) from None
        source = self.indexes.source(settings.index, self._checked(settings.index, settings.retrieval))
        return ReadConfig(settings, source, settings.reading.chosen_reader, reranker)

    def _checked(self, name: str, options: RetrieverOptions) -> RetrieverOptions:
        """The options; RequestError if the index of this name was not built for them."""
        lacking = self._lacking(name, options)
        if lacking is not None:
            raise RequestError(
                f"the index {name!r} has no {lacking}, which `retriever` {options.retriever} searches: choose "
                "another one.",
                param="ralm.retriever",
            )
        return options

    def can_search(self, retriever: RetrieverName) -> bool:
        """Whether every index was built for a retriever."""
        options = replace(self.settings.retrieval, retriever=retriever)
        return all(self._lacking(name, options) is None for name in self.indexes.names)

    def _lacking(self, name: str, options: RetrieverOptions) -> str | None:
        """The part that an index lacks for these options; None if it has all."""
        index = self.indexes.index(name)
        if options.retriever in ("bm25", "hybrid") and index.bm25_options is None:
            return "words"
        return "vectors" if options.is_dense and not index.vectors else None


def _first_named(message: str, choice: Mapping[str, Any]) -> str | None:
    """The field of the choice that a message names first."""
    places = {message.find(f"`{name}"): name for name in choice if f"`{name}" in message}
    return f"ralm.{places[min(places)]}" if places else None


def _last_part(name: str) -> str:
    return name.rpartition("#")[2].rstrip("/").rpartition("/")[2] or name
