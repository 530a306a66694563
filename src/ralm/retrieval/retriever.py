"""Opens a retriever over an index, as its options describe it, and reads hits with their neighbours."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, overload

import numpy as np
from pydantic import JsonValue

from ralm.corpus import decontamination
from ralm.corpus.words import runs_of_words
from ralm.errors import UsageError
from ralm.grammar import Catalogue
from ralm.lm.api.endpoint import is_api
from ralm.options import Checked, Option, check_options, declared, seed_option
from ralm.protocols import Retriever
from ralm.records import BoolArray, Hits, Passage, Passages
from ralm.retrieval.allowed import Distinct, narrowed, title_mask
from ralm.retrieval.dense.options import DenseSearchOptions, EncoderOptions, load_encoder
from ralm.retrieval.filters import parse_filter
from ralm.retrieval.hybrid import FusionOptions, Hybrid
from ralm.retrieval.random import RandomRetriever
from ralm.storage.remote import is_url
from ralm.validation import MAX_COUNT, config_of, stable_hits

if TYPE_CHECKING:
    from ralm.retrieval.index import Index

WHOLE: Final = "document"
_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bm25Options:
    """Find passages by their words: BM25."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseOptions:
    """Find passages by meaning: the largest inner products with the vector of the query."""

    vectors: Annotated[
        str | None,
        Option("Name of the vectors to search.", default_text="the default ones of the index", private=True),
    ] = None
    query_encoder: Annotated[
        str | None,
        Option("Encode queries with this.", default_text="the encoder that the index names", private=True),
    ] = None
    any_encoder: Annotated[bool, Option("Allow another encoder than the index was built with.", private=True)] = False
    search: Annotated[DenseSearchOptions, Option("How an approximate index is searched.")] = field(
        default_factory=DenseSearchOptions
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridOptions(DenseOptions):
    """Combine the rankings of BM25 and of vectors."""

    fusion: Annotated[FusionOptions, Option("How the two rankings become one.")] = field(default_factory=FusionOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomOptions(Checked):
    """Draw passages at random: the control. Raises UsageError if the seed is out of range."""

    seed: Annotated[int, seed_option()] = 0


RETRIEVERS: Final = Catalogue(
    "retriever",
    {"bm25": Bm25Options, "dense": DenseOptions, "hybrid": HybridOptions, "random": RandomOptions},
    ("config", "retrieve"),
)
"""How the passages of an index are found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrieverOptions:
    """How the passages of an index are retrieved.

    `retriever` names the retriever with its keys (`ralm.grammar`), a class of your own, which is called with the
    passages, or the URL of a search service, which has an index of its own (`ralm.retrieval.remote`). `where` is a
    filter (`ralm.retrieval.filters`), `expand` a number of neighbours or `document`. Raises UsageError if one is wrong.
    """

    retriever: Annotated[
        str,
        Option(
            "bm25, dense, hybrid (both), random (the control: any passage); without an index, the URL "
            "of a search service.",
            part="retriever",
        ),
    ] = "bm25"
    forbidden_titles: Annotated[
        Path | None, Option("Never find passages of documents with these titles (a file with one per line).")
    ] = None
    where: Annotated[
        str | None,
        Option(
            "Find only passages whose metadata, title or id pass this filter, such as `year >= 2020 and lang == 'en'`."
        ),
    ] = None
    distinct: Annotated[
        Literal["none", "document", "text"],
        Option("Find each document once, by its best passage; or each text, by all but a few of its words."),
    ] = "none"
    expand: Annotated[
        str | None,
        Option(
            "Read a hit with so many passages before and after it of the same document, or with the whole document."
        ),
    ] = None

    def __post_init__(self) -> None:
        check_options(self)
        if not self.is_service:
            RETRIEVERS.parse(self.retriever)
        for key in declared(RetrieverOptions) if self.is_service else ():
            if key.name != "retriever" and getattr(self, key.name) != key.default:
                raise UsageError(
                    f"`{key.name}` has no effect on the search service {self.retriever}: set it where that is started."
                )
        if self.where is not None:
            parse_filter(self.where)
        if self.expand is not None:
            check_expansion(self.expand)

    @property
    def name(self) -> str:
        """Return the name of the retriever."""
        return RETRIEVERS.name_of(self.retriever)

    @property
    def is_service(self) -> bool:
        """Return whether a search service finds the passages, in an index of its own."""
        return is_url(self.retriever)

    @property
    def is_dense(self) -> bool:
        """Return whether queries are encoded."""
        return self.name in ("dense", "hybrid")


def open_retriever(
    index: "Index | Path | str", options: RetrieverOptions | None = None, *, mask_N: BoolArray | None = None
) -> Retriever:
    """Open the retriever over an index that the options describe; the number of passages that may be found is logged.

    Args:
        index: An open index, or its folder.
        options: The retriever, and the passages that it leaves out.
        mask_N: The passages (bool, N) that may be found, less those that the options exclude.

    Raises:
        UsageError: If the index was not built for the retriever.
        CorpusError: If a file of titles cannot be read. `open_index` and `Index.dense` raise others.
    """
    # numba and pyarrow are imported only when a retriever is opened: commands read the options at startup
    from ralm.retrieval.index import Index, open_index

    options = options or RetrieverOptions()
    if options.is_service:
        raise UsageError(f"`index` and the search service {options.retriever} have passages: give one of them.")
    opened = index if isinstance(index, Index) else open_index(index)
    retriever = _retriever(opened, options)
    allowed_N = allowed_mask(opened, options, mask_N)
    if allowed_N is not None:
        _LOG.info("%s of %s passages may be found", f"{np.count_nonzero(allowed_N):,}", f"{len(allowed_N):,}")
        retriever = narrowed(retriever, allowed_N)
    if options.distinct != "none":
        retriever = Distinct(retriever, opened.passages, options.distinct)
    return retriever


def allowed_mask(index: "Index", options: RetrieverOptions, mask_N: BoolArray | None) -> BoolArray | None:
    """Return the mask (bool) of the passages that may be found; None if all may be."""
    masks = [] if mask_N is None else [mask_N]
    if options.forbidden_titles is not None:
        masks.append(title_mask(index.passages, decontamination.read_titles(Path(options.forbidden_titles))))
    if options.where is not None:
        masks.append(index.columns.mask(parse_filter(options.where)))
    return np.logical_and.reduce(masks) if masks else None


def _retriever(index: "Index", options: RetrieverOptions) -> Retriever:
    part: Any = RETRIEVERS.parse(options.retriever)
    match part:
        case Bm25Options():
            return index.bm25
        case HybridOptions():
            return Hybrid(index.bm25, _dense(index, part), part.fusion)
        case DenseOptions():
            return _dense(index, part)
        case RandomOptions():
            return RandomRetriever(len(index.passages), part.seed)
    retriever: Retriever = part.make(index.passages)
    return retriever


def _dense(index: "Index", options: DenseOptions) -> Retriever:
    encoder = None
    if options.query_encoder is not None:
        recorded = index.encoder_options(options.vectors)
        asked = replace(recorded, query_encoder=options.query_encoder)
        if is_api(recorded.encoder) or is_api(options.query_encoder):
            asked = EncoderOptions(encoder=options.query_encoder, normalize=recorded.normalize)
        encoder = load_encoder(asked)
    return index.dense(options.search, vectors=options.vectors, encoder=encoder, any_encoder=options.any_encoder)


class MemoizedRetriever:
    """A retriever that calls another once for repeated queries; up to its `stable`, any k shares one call."""

    def __init__(self, retriever: Retriever, k: int) -> None:
        self._retriever = retriever
        self._k = min(k, stable_hits(retriever))
        self._hits: dict[tuple[tuple[str, ...], int], Hits] = {}

    @property
    def config(self) -> dict[str, JsonValue]:
        """Return everything that decides the hits of the other retriever."""
        return config_of(self._retriever, "retriever")

    def retrieve(self, queries: Sequence[str], k: int) -> Hits:
        """Return the k best passages for each query."""
        arguments = (tuple(queries), max(k, self._k))
        if arguments not in self._hits:
            self._hits[arguments] = self._retriever.retrieve(*arguments)
        return self._hits[arguments].first(k)


def check_expansion(expand: str) -> int | None:
    """Return the number of neighbours on each side, None for the whole document; UsageError if it is neither."""
    if expand == WHOLE:
        return None
    if not (expand.isascii() and expand.isdigit() and 0 < int(expand) <= MAX_COUNT):
        raise UsageError(f"`expand` must be a number of neighbours from 1 on, or {WHOLE}, not {expand!r}.")
    return int(expand)


class ExpandedPassages(Sequence[Passage]):
    """Passages of an index, each with its neighbours in the document: `expand` on each side, or all.

    `splitting`: how the index says that its documents were split. Words that two passages share where one ends and the
    next begins are read once. `mask_N` (bool): the passages that may be read; neighbours end before others.
    """

    def __init__(
        self, passages: Passages, expand: str, splitting: JsonValue = None, mask_N: BoolArray | None = None
    ) -> None:
        self._passages = passages
        self._mask_N = mask_N
        self._neighbours = check_expansion(expand)
        recorded: Mapping[str, Any] = splitting if isinstance(splitting, dict) else {}
        self._overlap = int(recorded.get("overlap_words", 0))
        self._between = "\n" if "split" in recorded else " "

    def __len__(self) -> int:
        return len(self._passages)

    @overload
    def __getitem__(self, number: int) -> Passage: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Passage]: ...

    def __getitem__(self, number: int | slice) -> Passage | Sequence[Passage]:
        """Return the passage with this number and its neighbours; a slice returns a list."""
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(len(self)))]
        hit = self._passages[number]
        most = len(self) if self._neighbours is None else self._neighbours
        before = range(hit.number - 1, max(-1, hit.number - 1 - most), -1)
        after = range(hit.number + 1, min(len(self), hit.number + 1 + most))
        text, last = list[str](), ""
        for passage in (*reversed(self._of_document(hit, before)), hit, *self._of_document(hit, after)):
            text += filter(None, [self._without_repeated(last, passage.text)])
            last = passage.text
        return replace(hit, text=self._between.join(text))

    def _of_document(self, hit: Passage, numbers: range) -> list[Passage]:
        """Return the passages with these numbers, up to the end of the hit's document or one that may not be read."""
        allowed = numbers if self._mask_N is None else takewhile(self._mask_N.item, numbers)
        passages = map(self._passages.__getitem__, allowed)
        return [*takewhile(lambda other: other.document_id == hit.document_id, passages)]

    def _without_repeated(self, before: str, following: str) -> str:
        """Return the text of a passage without the words at its beginning that end the passage before."""
        if not self._overlap or not before:
            return following
        last = [word[0] for word in runs_of_words(before, 1)][-self._overlap :]
        words = [*islice(runs_of_words(following, 1), self._overlap)]
        for count in range(min(len(last), len(words)), 0, -1):
            if last[-count:] == [word[0] for word in words[:count]]:
                return following[words[count - 1].end() :].lstrip()
        return following
