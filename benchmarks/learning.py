"""What learning from a language model costs, each part against a named baseline in the same process.

    python -m benchmarks.learning [--threads 1] [--examples 64]

signals    measuring examples with 16 candidates, against a plain loop that reads every candidate by itself with the
           model as transformers loads it
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from ralm.corpus.passages import make_passages
from ralm.demo.documentation import standard_library_documentation
from ralm.lm.local.model import LocalLanguageModel
from ralm.lm.named import TINY, load_language_model, model_folder
from ralm.reading.documents import PassageDocuments
from ralm.records import NO_PASSAGE, Document, FloatArray, Hits
from ralm.retrieval.building import build_index
from ralm.retrieval.index import Index, open_index
from ralm.training.examples import Example, sample_examples
from ralm.training.measuring import find_candidates, queries_of, reader_of, score_candidates
from ralm.training.signal_options import CandidateOptions, ExampleOptions

PLAIN_PAIRS = 256
"""Pairs of example and candidate that the plain loop is timed on."""
CANDIDATES = CandidateOptions()


def measure_signals(index: Index, documents: Sequence[Document], examples: int) -> None:
    """A row for each number of examples a sequence."""
    model = load_language_model(TINY)
    plain = AutoModelForCausalLM.from_pretrained(model_folder(TINY), dtype=torch.float32).eval()
    print(f"{'examples a sequence':<22}{'plain loop, pairs/s':>20}{'engine, pairs/s':>18}{'ratio':>8}")
    for per_sequence in (1, 4, 8, 16, 32):
        options = ExampleOptions(examples=examples, per_sequence=per_sequence)
        drawn = sample_examples(documents, model.tokenizer, options)
        queries = queries_of(drawn, model.tokenizer, options.query_tokens)
        k = CANDIDATES.candidates
        hits = find_candidates(drawn, queries, index.bm25, index.passages, k, exclude=True)
        made = reader_of(index.passages, model.tokenizer, CANDIDATES)
        slow = _rate_of_plain(plain, drawn, hits, made())
        fast = _rate_of_engine(model, drawn, hits, made())
        print(f"{per_sequence:<22}{slow:>20.1f}{fast:>18.1f}{fast / slow:>8.2f}")


def _pairs(drawn: Sequence[Example], hits: Hits) -> list[tuple[int, int]]:
    """Every example and what stands before it: no passage, then each candidate."""
    return [(row, number) for row in range(len(drawn)) for number in (NO_PASSAGE, *(n for n, _ in hits.of(row)))]


def _rate_of_engine(
    model: LocalLanguageModel, drawn: Sequence[Example], hits: Hits, documents: PassageDocuments
) -> float:
    begin = time.perf_counter()
    scored = score_candidates(drawn, hits, documents, model)
    return sum(map(len, scored)) / (time.perf_counter() - begin)


def _rate_of_plain(plain: PreTrainedModel, drawn: Sequence[Example], hits: Hits, documents: PassageDocuments) -> float:
    """Some pairs, evenly chosen, one forward pass each with the logits of every token."""
    pairs = _pairs(drawn, hits)
    pairs = pairs[:: max(1, len(pairs) // PLAIN_PAIRS)]
    begin = time.perf_counter()
    for row, number in pairs:
        _read_alone(plain, drawn[row], documents[number])
    return len(pairs) / (time.perf_counter() - begin)


def _read_alone(plain: PreTrainedModel, example: Example, document: np.ndarray) -> FloatArray:
    tokens = torch.from_numpy(np.concatenate([document, example.prefix, example.continuation]))
    with torch.no_grad():
        logits_NV = plain(input_ids=tokens[None]).logits[0]
    log_probs_NV = torch.log_softmax(logits_NV[:-1], dim=-1)
    targets_T = tokens[-len(example.continuation) :]
    scored: FloatArray = log_probs_NV[-len(targets_T) :].gather(1, targets_T[:, None])[:, 0].numpy()
    return scored


def main() -> None:
    """Print every table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--examples", type=int, default=64)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    documents = list(standard_library_documentation())
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "index"
        build_index(make_passages(documents), out)
        measure_signals(open_index(out), documents, args.examples)


if __name__ == "__main__":
    main()
