"""Generation from ensembles against plain generation: same model, in one process.

    python -m benchmarks.generation [--dtypes float32 bfloat16] [--threads 1] [--rounds 5]

The model has GPT-2 124M's shape and random weights, since only time is measured. Prompts have 128 tokens, documents 180
to 256. The baseline is the model as transformers loads it, which continues one prompt alone with transformers' own
cache: a ratio below the number of prompts times documents is faster than as many requests. Retrieval itself is not
measured: hits are synthetic, and every 4 tokens, at each retrieval, a given share of the documents is replaced. Both
generate rounds of 4 tokens (one retrieval each) in turns; a figure is the median of rounds. Reading before the first
token is not counted.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from pydantic import JsonValue
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.cache_utils import DynamicCache

from benchmarks.measuring import print_table, random_model
from ralm.lm.local.model import LocalLanguageModel, load_transformers_model
from ralm.lm.registry import Dtype, ModelOptions
from ralm.reading.generate import TokenWriter
from ralm.reading.parts import Parts
from ralm.reading.readers import Ensemble
from ralm.reading.sampling import GenerationOptions
from ralm.reading.sources import FromRetriever
from ralm.records import Hits, IntArray, Passage

STRIDE, PROMPT_TOKENS, DOCUMENT_TOKENS, POOL = 4, 128, 256, 400
WORDS = "the a of passage model time window token document that was read in front city year name first known".split()


class ChangingHits:
    """Gives the same k passages every time, except that a share of them is replaced at every retrieval."""

    config: dict[str, JsonValue] = {"retriever": "changing hits"}  # noqa: RUF012

    def __init__(self, changed: float) -> None:
        self._changed = changed
        self._next = 0
        self._owed = 0.0
        self._rows: list[list[int]] = []

    def retrieve(self, queries: Sequence[str], k: int) -> Hits:
        """Replaces documents in turn, so many that their share is right over time."""
        while len(self._rows) < len(queries):
            self._rows.append([self._fresh() for _ in range(k)])
        for row in self._rows:
            row[:] = [self._fresh() if self._due() else number for number in row]
        numbers_QK = np.array(self._rows, dtype=np.int64)
        scores_QK = np.tile(np.linspace(1, 0, k, dtype=np.float32), (len(queries), 1))
        return Hits(numbers_QK=numbers_QK, scores_QK=scores_QK)

    def _fresh(self) -> int:
        self._next = (self._next + 1) % POOL
        return self._next

    def _due(self) -> bool:
        self._owed += self._changed
        due = self._owed >= 1
        self._owed -= due
        return due


def in_turns(steps: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """Return the milliseconds of each kind of step: medians of rounds of 4 in turns, without the first round."""
    seconds = np.empty((rounds + 1, len(steps)))
    for number in range(rounds + 1):
        for kind, step in enumerate(steps):
            begin = time.perf_counter()
            for _ in range(STRIDE):
                step()
            seconds[number, kind] = (time.perf_counter() - begin) / STRIDE
    return [1000 * float(median) for median in np.median(seconds[1:], axis=0)]


def plain(model: PreTrainedModel, prompt: IntArray) -> Callable[[], None]:
    """A step of greedy generation with transformers' own cache."""
    cache = DynamicCache()
    ids = torch.from_numpy(prompt)[None].to(model.device)

    @torch.inference_mode()
    def step() -> None:
        nonlocal ids
        logits = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
        ids = logits.float().log_softmax(-1).argmax(-1)[:, None]
        ids.cpu()

    return step


@dataclass(frozen=True)
class Case:
    """What is generated: the number of prompts at once, documents for each (0: none), the share of them that changes,
    sampling."""

    documents: int
    prompts: int = 1
    changed: float = 0.0
    sampling: str = "greedy"


CASES = [
    *(Case(documents) for documents in (0, 1, 2, 4, 10)),
    Case(10, sampling="top-p"),
    Case(1, prompts=8),
    Case(10, changed=0.3),
    *(Case(documents, changed=1.0) for documents in (1, 10)),
]
CASES_OF_A_GPU = [Case(0, prompts=32), Case(10, prompts=32), Case(10, prompts=32, changed=0.3)]


def ensemble(
    case: Case, model: LocalLanguageModel, passages: Sequence[Passage], prompt: IntArray, rounds: int
) -> Callable[[], object]:
    """A step of our generation."""
    sampled = case.sampling == "top-p"
    options = GenerationOptions(
        new_tokens=STRIDE * (rounds + 1),
        stride=STRIDE,
        document_tokens=DOCUMENT_TOKENS,
        temperature=0.8 if sampled else 0.0,
        top_p=0.95 if sampled else 1.0,
    )
    source = FromRetriever(ChangingHits(case.changed), passages, config={}) if case.documents else None
    writer = TokenWriter(model, options, source, parts=Parts(reader=Ensemble(documents=max(1, case.documents))))
    for shift in range(case.prompts):
        writer.add(np.roll(prompt, shift))
    return writer.step


def rows(dtype: Dtype, folder: str, rounds: int) -> Iterator[dict[str, object]]:
    """Yield all cases in one number format."""
    model = load_transformers_model(folder, ModelOptions(dtype=dtype))
    library = AutoModelForCausalLM.from_pretrained(folder, dtype=model.model.dtype).eval().to(model.model.device)
    draw = np.random.default_rng(0)
    texts = [" ".join(draw.choice(WORDS, draw.integers(180, 300))) for _ in range(POOL + 1)]
    passages = [Passage(number=n, document_id=str(n), title="", text=text) for n, text in enumerate(texts)]
    prompt = model.tokenizer.encode(texts[POOL])[:PROMPT_TOKENS]
    model.continuations()  # packs the weights
    for case in [*CASES, *(CASES_OF_A_GPU if model.model.device.type == "cuda" else [])]:
        baseline, ours = in_turns([plain(library, prompt), ensemble(case, model, passages, prompt, rounds)], rounds)
        yield {
            **asdict(case),
            "dtype": dtype,
            "plain, ms a token": baseline,
            "ms a step": ours,
            "ratio": ours / baseline,
        }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with random_model() as folder:
        print_table(row for dtype in args.dtypes for row in rows(dtype, folder, args.rounds))


if __name__ == "__main__":
    main()
