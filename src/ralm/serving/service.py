"""What a server serves: one model, its indexes, and how requests read with them.

Knows the parts; knows nothing of HTTP. Everything here may be called by many threads.
"""

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
    changed,
    check_documents,
    check_room,
    fitted,
    generation_options,
    indexes_by_model,
)
from ralm.serving.prompts import TokenNames

_LOG: Final = logging.getLogger("ralm.serving")
_LOGGED: Final = 200
"""Characters, or tokens, of a prompt that the log holds at most."""


class Service:
    """A model that reads passages of `folders` (by name, the first by default) as `settings` say.

    `ranker` is the model of `rerank_lm`; `key` is what clients must send, if anything. `max_length` is how many tokens
    the model reads at once, by default as many as it can. Raises what opening the indexes, their retrievers and the
    prompt of chats raises, and UsageError if lengths do not fit into the model.
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
        self.settings = fitted(replace(settings or Settings(), index=default), model, max_length)
        self.models = indexes_by_model(self.name, self.settings, self.options, self.indexes.names)
        check_documents(self.settings.reading, self.options.limits)
        self._rerankers = Rerankers(self.settings.reading, ranker)
        self.prompt = open_chat_prompt(self.options.prompt)
        self.names = TokenNames(self.model.tokenizer)
        self.metrics = Metrics()
        self._watch_counts()
        self.reads({})  # what cannot be opened is said now

    @property
    def max_length(self) -> int:
        """How many tokens the model reads at once."""
        return self.settings.plan.max_length

    def warm_up(self) -> None:
        """Do once what only a first request would wait for: compiling, probing, opening."""
        if self.model.tier != "all":
            return  # it is behind an API, and every request costs
        reads = self.reads({})
        options = generation_options(self.settings, new_tokens=1)
        prompt = self.model.tokenizer.encode("The first request must not wait.")
        for _ in write([prompt], self.model, options, reads):
            pass

    def close(self) -> None:
        """End the thread that reads for all requests; whoever waits for it ends too."""
        self.model.close()

    @property
    def failed(self) -> bool:
        """Whether the model can read nothing any more."""
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
        """What a request chooses by the name of the model and in its field `ralm` together.

        Raises RequestError if the model is not served, or if the two differ.
        """
        self.check_model(model)
        if model == self.name:
            return {**choice}
        index = self.models[model]
        if choice.get("index", index) != index:
            raise RequestError(
                f"the model {model} reads {'no index' if index is None else f'the index {index!r}'}: leave out "
                f"`ralm.index`, or ask {self.name}.",
                param="ralm.index",
            )
        return {**choice, "index": index}

    def log_prompts(self, prompts: Sequence[str | Sequence[int]]) -> None:
        """Log the beginning of each prompt, if the operator wants that."""
        for prompt in prompts if self.options.log_prompts else ():
            _LOG.info("prompt: %s", repr(prompt[:_LOGGED]))

    def count_tokens(self, read: int, written: int) -> None:
        """Add tokens of prompts, and tokens that were written, to the figures."""
        self.metrics.tokens.labels("prompt").inc(read)
        self.metrics.tokens.labels("written").inc(written)

    def reads(self, choice: Mapping[str, Any], *, in_strides: bool = True) -> ReadConfig:
        """How a request reads that chooses this; RequestError if it may not, or if there is no such thing.

        A text is read in strides, of which each has to fit beside its passages; a chat is not.
        """
        try:
            settings = changed(self.settings, choice, self.options, self.indexes.names)
            if in_strides and settings.index is not None:
                check_room(settings)
            if settings.index is None:
                return ReadConfig(settings)
            reranker = self._rerankers.of(settings.reading.reranking)
        except RequestError:
            raise
        except UsageError as error:
            raise RequestError(str(error), param=_first_named(str(error), choice)) from None
        source = self.indexes.source(settings.index, self._possible(settings.index, settings.retrieval))
        return ReadConfig(settings, source, settings.reading.chosen_reader, reranker)

    def _possible(self, name: str, options: RetrieverOptions) -> RetrieverOptions:
        """The options, if the index of a name was built for them; else RequestError."""
        lacking = self._lacking(name, options)
        if lacking is not None:
            raise RequestError(
                f"the index {name!r} has no {lacking}, which `retriever` {options.retriever} searches: choose "
                "another one.",
                param="ralm.retriever",
            )
        return options

    def can_search(self, retriever: RetrieverName) -> bool:
        """Whether every index can be searched so."""
        options = replace(self.settings.retrieval, retriever=retriever)
        return all(self._lacking(name, options) is None for name in self.indexes.names)

    def _lacking(self, name: str, options: RetrieverOptions) -> str | None:
        """What an index would need to be searched so; None if it has everything."""
        index = self.indexes.index(name)
        if options.retriever in ("bm25", "hybrid") and index.bm25_options is None:
            return "words"
        return "vectors" if options.is_dense and not index.vectors else None


def _first_named(message: str, choice: Mapping[str, Any]) -> str | None:
    """The choice that a message names first."""
    places = {message.find(f"`{name}"): name for name in choice if f"`{name}" in message}
    return f"ralm.{places[min(places)]}" if places else None


def _last_part(name: str) -> str:
    return name.rpartition("#")[2].rstrip("/").rpartition("/")[2] or name
