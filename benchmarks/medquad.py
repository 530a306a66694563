"""What passages are worth to ralm-tiny on medical text, with and without near-duplicates in the corpus.

    python -m benchmarks.medquad [TOKENS]

Reads the beginning (default 16,384 tokens) of two held-out texts of MedQuAD, one on topics that the corpus shares and
one on others: without retrieval, with random passages and with BM25's. It does so once with all passages of the corpus
and once without those that share a run of 13 words with the held-out text. Prints the table of docs/results.md. The
data must be beside the checkout.
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ralm.corpus.decontamination import Decontamination
from ralm.corpus.sources import read_documents
from ralm.corpus.splitting import make_passages
from ralm.demo.demonstration import PLAN, held_out_text
from ralm.evaluation.perplexity import evaluate_text
from ralm.lm.registry import load_language_model
from ralm.protocols import LanguageModel, Retriever
from ralm.reading.sources import FromRetriever
from ralm.retrieval.build import build_index
from ralm.retrieval.index import Index, open_index
from ralm.retrieval.random import RandomRetriever

MEDQUAD = Path(__file__).parents[2] / "shared" / "data" / "medquad"
HELD_OUT = {
    "topics that the corpus shares": "heldout_shared_topics.jsonl",
    "other topics": "heldout_other_topics.jsonl",
}
TOKENS = 16_384


def read_with(model: LanguageModel, text: str, tokens: int, index: Index, retriever: Retriever | None) -> float:
    """Token perplexity of the beginning of a text, read with each stride's first passage, or with none."""
    source = None if retriever is None else FromRetriever(retriever, index.passages, {})
    return evaluate_text(text, model, PLAN, source=source, limit_tokens=tokens).reading.measures.token_perplexity


def rows_of(model: LanguageModel, name: str, text: str, tokens: int, folder: Path) -> Sequence[str]:
    """The rows of the table for one held-out text."""
    rows = []
    for forbidden in ([], [text]):
        passages = make_passages(
            read_documents(str(MEDQUAD / "corpus.jsonl.gz")),
            decontamination=Decontamination.of(texts=forbidden),
        )
        build_index(passages, folder / "index", force=True)
        index = open_index(folder / "index")
        none = read_with(model, text, tokens, index, None)
        random = read_with(model, text, tokens, index, RandomRetriever(len(index.passages), seed=0))
        bm25 = read_with(model, text, tokens, index, index.bm25)
        left = f"{len(index.passages):,}, without 13-gram overlap" if forbidden else f"{len(index.passages):,}, all"
        rows.append(f"| {name} | {left} | {none:.2f} | {random:.2f} | {bm25:.2f} | {bm25 / none - 1:+.1%} |")
    return rows


def main(arguments: Sequence[str]) -> None:
    tokens = int(arguments[0]) if arguments else TOKENS
    model = load_language_model("ralm-tiny")
    print("| held-out text | passages | none | random | BM25 | BM25 against none |")
    print("|---|---|---|---|---|---|", flush=True)
    for name, file in HELD_OUT.items():
        text = held_out_text(list(read_documents(str(MEDQUAD / file))))
        with tempfile.TemporaryDirectory() as folder:
            for row in rows_of(model, name, text, tokens, Path(folder)):
                print(row, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
