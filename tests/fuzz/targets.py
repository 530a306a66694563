"""What is damaged: each kind of file that is read back, with a way to make it and a way to ask it everything."""

import hashlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import JsonValue

from ralm.corpus.sources import Skipped, read_documents
from ralm.errors import DamagedFolderError, RalmWarning
from ralm.evaluation.perplexity import ReadingSettings, evaluate_text
from ralm.reading.parts import IN_CONTEXT
from ralm.reading.plan import PlanOptions
from ralm.reading.sources import FromRetriever
from ralm.records import FloatArray, Hits, Metadata, Passage
from ralm.retrieval.bm25.stream import Stream
from ralm.retrieval.build import build_index, encode_passages
from ralm.retrieval.dense import build as dense_build
from ralm.retrieval.dense.options import VECTORS, VectorOptions
from ralm.retrieval.dense.search import Dense, open_vectors
from ralm.retrieval.index import open_index
from ralm.retrieval.retrieval_file import (
    RetrievedPassage,
    RetrievedStride,
    numbered_passages,
    read_retrieval_file,
    write_retrieval_file,
)
from ralm.retrieval.update import update_index
from ralm.runs.resume import unfinished_run, unfinished_store
from ralm.runs.run import build_report, evaluation_config, open_run, write_run
from ralm.training.gains import signal_statistics
from ralm.training.signals import open_signals
from tests.fakes import CountingModel, LetterEncoder, SharedWordsRetriever, WordTokenizer, passages_of
from tests.fuzz.formats import FILES
from tests.retrieval.searching import found_by
from tests.training.made_signals import save_signals

PASSAGES, PARTITION, K = 1200, 1024, 5


@dataclass(frozen=True)
class Target:
    """`make` fills a folder, `ask` says what it holds: the same for the same content, or a RalmError.

    `mends`: its checksums can be made to fit, which leaves the structure to be checked. `open`: it has none that all of
    its content must agree with, so that another answer may be right.
    """

    name: str
    make: Callable[[Path], None]
    ask: Callable[[Path], Any]
    mends: bool = False
    open: bool = False


class HashEncoder(LetterEncoder):
    """Vectors drawn at random for each text."""

    query_fingerprint = "hash"

    def encode_queries(self, queries: Sequence[str]) -> FloatArray:
        digests = [hashlib.sha256(query.encode()).digest()[: self.dimension] for query in queries]
        rows = np.frombuffer(b"".join(digests), np.uint8).astype(np.float32) - 128
        return rows.reshape(len(queries), self.dimension)


def _words(count: int, seed: int) -> list[str]:
    return [f"w{word}" for word in (np.random.default_rng(seed).zipf(1.3, count) % 300).tolist()]


def _passages() -> list[Passage]:
    """Some are long and repeat a word many times, so that there are more kinds of postings than codes."""
    words = _words(40 * PASSAGES, 0)
    texts = [" ".join(words[40 * n : 40 * n + 5 + n % 35]) for n in range(PASSAGES)]
    texts[::7] = [f"{text} {f'rep{n % 3} ' * (n + 1)}" for n, text in enumerate(texts[::7])]
    metadata: list[Metadata] = [{"url": f"https://host/{n}", "page": n} if n % 4 else {} for n in range(PASSAGES)]
    return [
        Passage(n, f"d{n // 3}", f"Title {n}" if n % 3 else "", text, metadata=metadata[n // 3])
        for n, text in enumerate(texts)
    ]


PASSAGE_LIST = _passages()
_TEXT = _words(200, 1)
QUERIES = [" ".join(_TEXT[end : end + 12]) for end in range(0, 120, 4)] + ["rep0 rep1 w1 title", "", "unseen"]


def as_lists(hits: Hits) -> list[list[tuple[int, float]]]:
    return [hits.of(row) for row in range(len(hits))]


def make_index(folder: Path, *, bm25: bool = True, faiss: str | None = None) -> None:
    encoder = HashEncoder() if faiss else None
    build_index(
        PASSAGE_LIST, folder / "index", bm25=bm25, encoder=encoder, vectors=VectorOptions(faiss=faiss or "Flat")
    )


def make_updated(folder: Path) -> None:
    """An index to which passages were added, and of which others were removed."""
    make_index(folder, faiss="Flat")
    added = [Passage(n, f"e{n}", "", text) for n, text in enumerate([*QUERIES[:30], *QUERIES[:30]])]
    update_index(folder / "index", added, remove=["d7", "d90"], encoders={"main": HashEncoder()})
    update_index(folder / "index", remove=["e3", "d11"])


def ask_index(folder: Path) -> Any:
    """Lookups, streams, vectors, and every passage."""
    index = open_index(folder / "index")
    answer: list[Any] = [index.fingerprint, len(index.passages)]
    if index.bm25_options:
        terms = [index.bm25.terms(query.split()) for query in QUERIES]
        streamed = found_by(Stream(index.bm25.collection, K, PARTITION), index.bm25._batch(terms, K))
        answer += [as_lists(index.bm25.retrieve(QUERIES, K)), as_lists(streamed)]
        answer.append(as_lists(index.bm25.retrieve(QUERIES[:1], PASSAGES)))
    if index.vectors:
        answer.append(as_lists(index.dense(encoder=HashEncoder()).retrieve(QUERIES, K)))
    everything = [[passage.document_id, passage.contents, passage.metadata] for passage in index.passages]
    return [*answer, everything, list(index.passages.origins())]


def ask_after_update(folder: Path) -> Any:
    """The same after another update, which reads all of it."""
    update_index(folder / "index", PASSAGE_LIST[:1], remove=["e5"], replace=True, encoders={"main": HashEncoder()})
    return ask_index(folder)


def check_index_of(folder: Path) -> Any:
    """What `ralm check` says, as an error where that is not that all is well."""
    from ralm.retrieval.index import check_index

    damaged = check_index(folder / "index")
    if damaged:
        raise DamagedFolderError(damaged[0])
    return "sound"


RUN_TEXT = "a b c d e a b c d e f g h a b c d e f g"
RUN_OPTIONS = PlanOptions(stride=3, query_tokens=2, document_tokens=4, max_length=10)


def make_run(folder: Path) -> None:
    passages = passages_of("c d c d", "e f e f")
    source = FromRetriever(SharedWordsRetriever(passages), passages, config={"index": "fake"})
    model = CountingModel(WordTokenizer(), max_length=10)
    evaluation = evaluate_text(RUN_TEXT, model, RUN_OPTIONS, source=source, baseline=True)
    config = evaluation_config(
        Path("t.txt"), RUN_TEXT, model, ReadingSettings(plan=RUN_OPTIONS, source=source, parts=IN_CONTEXT), None
    )
    write_run(folder / "run", evaluation, config, force=False)


def ask_run(folder: Path) -> Any:
    return build_report(open_run(folder / "run"), 100).as_json()


SCORED = {
    hashlib.blake2b(bytes([n]), digest_size=16).digest(): np.random.default_rng(n).bytes(4 + 4 * (n % 7))
    for n in range(40)
}
BEGUN: dict[str, JsonValue] = {"model": {"name": "m"}, "plan": {"stride": 4}}


def make_unfinished(folder: Path) -> None:
    try:
        with unfinished_run(folder / "run", BEGUN, force=False) as place, unfinished_store(place, "m") as store:
            store.put(SCORED.items())
            raise InterruptedError
    except InterruptedError:
        return


def ask_unfinished(folder: Path) -> Any:
    """What a resumed run gives: what the store does not have is scored again."""
    with unfinished_run(folder / "run", BEGUN, force=False) as place:
        for _ in range(2):
            with unfinished_store(place, "m") as store:
                found = store.get(SCORED)
                store.put((key, value) for key, value in SCORED.items() if key not in found)
    return [value.hex() for value in (SCORED | found).values()]


def make_retrieval_file(folder: Path) -> None:
    docs = tuple(
        RetrievedPassage(text=p.text, title=p.title, score=1.5, id=p.document_id, metadata=dict(p.metadata))
        for p in PASSAGE_LIST[2:4]
    )
    strides = [
        RetrievedStride(
            begin_location=4 * n, end_location=4 * n + 4, future="x", query="y", retrieved_docs=docs[: n % 3]
        )
        for n in range(6)
    ]
    write_retrieval_file(folder / "retrieved.json", strides)


def ask_retrieval_file(folder: Path) -> Any:
    strides = read_retrieval_file(folder / "retrieved.json")
    hits, passages = numbered_passages([stride.retrieved_docs for stride in strides])
    assert np.isfinite(hits.scores_QK).all()
    return [
        as_lists(hits),
        [[passage.contents, passage.metadata] for passage in passages],
        [stride.begin_location for stride in strides],
    ]


def make_vectors(folder: Path) -> None:
    ask_vectors(folder)
    (folder / "dense").rename(folder / "done")


def ask_vectors(folder: Path) -> Any:
    """What a build finds that goes on with vectors that were encoded before."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dense_build, "CHUNK", 100)
        encode_passages(PASSAGE_LIST[:350], folder / "dense", folder / "vectors", HashEncoder(), None)
    file = folder / "dense" / VECTORS
    return as_lists(Dense(open_vectors(file, file), HashEncoder()).retrieve(QUERIES, K))


def make_signals(folder: Path) -> None:
    count = 30
    save_signals(
        folder / "signals",
        "index",
        [f"prefix {n}" for n in range(count)],
        [list(range(n % 4)) for n in range(count)],
        [[-1.0 - n / 7 - k for k in range(n % 4)] for n in range(count)],
        documents=[f"d{n // 3}" for n in range(count)],
    )


def ask_signals(folder: Path) -> Any:
    signals = open_signals(folder / "signals")
    arrays = (
        signals.passages_EK,
        signals.token_log_probs_EKT,
        signals.log_probs_EK,
        signals.baseline_E,
        signals.tokens_E,
    )
    texts = [signals.texts(column).to_pylist() for column in ("query", "prefix", "continuation")]
    return [[array.tolist() for array in arrays], texts, [*signals.documents_E], asdict(signal_statistics(signals))]


def make_corpus(name: str, folder: Path) -> None:
    (folder / "corpus").mkdir()
    (folder / "corpus" / name).write_bytes(FILES[name])


def ask_corpus(folder: Path) -> Any:
    """The documents of a file in a folder; damage may repeat an id, which is a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RalmWarning)
        documents = read_documents(str(folder / "corpus"), skipped=Skipped())
        return [[one.id, one.title, one.text, dict(one.metadata)] for one in documents]


TARGETS = (
    *(Target(f"corpus of {name}", partial(make_corpus, name), ask_corpus, open=True) for name in FILES),
    Target("index for BM25", make_index, ask_index, mends=True),
    Target("index for both", partial(make_index, faiss="Flat"), ask_index, mends=True),
    Target("index of vectors", partial(make_index, bm25=False, faiss="HNSW8"), ask_index),
    Target("updated index", make_updated, ask_index, mends=True),
    Target("index after an update", make_updated, ask_after_update, mends=True),
    Target("checked index", partial(make_index, faiss="Flat"), check_index_of),
    Target("run", make_run, ask_run, mends=True),
    Target("unfinished run", make_unfinished, ask_unfinished),
    Target("signals", make_signals, ask_signals, mends=True),
    Target("retrieval file", make_retrieval_file, ask_retrieval_file, open=True),
    Target("vectors", make_vectors, ask_vectors),
)
