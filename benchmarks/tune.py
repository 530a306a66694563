"""`ralm tune` against the full grid of its settings: passes, and the perplexity of held-out documents.

    python -m benchmarks.tune OUT medquad|python [UNITS]

All settings read all documents of the search, with shared passes; OUT keeps what they read, and a rerun goes on. Then
`tune` searches with the same settings and documents. Prints the sequences and tokens that the model read for both, and
the perplexity of held-out documents with the setting that each chose.
"""

import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import numpy as np

from benchmarks.worth import MEDQUAD
from ralm.advice.trials import Trial
from ralm.advice.tune import Search, TuneOptions, Tuning, tune
from ralm.cli import program
from ralm.corpus.sources import read_documents
from ralm.corpus.splitting import make_passages
from ralm.demo.documentation import standard_library_documentation
from ralm.protocols import LanguageModel, traits_of
from ralm.records import FloatArray, ScoringSequence
from ralm.retrieval.build import build_index

TOKENS: Final = 96
UNITS: Final = 48


class CountedModel:
    """A model that counts the sequences and the tokens that it reads, and the processor time of the process."""

    def __init__(self, model: LanguageModel) -> None:
        self.name, self.config, self.max_length, self.tokenizer = (
            model.name,
            model.config,
            model.max_length,
            model.tokenizer,
        )
        self.sequences = self.tokens = 0
        self.begin = time.process_time()
        self._score, own = model.score, traits_of(model)
        self.traits = replace(own, summaries=partial(self._counted, own.summaries) if own.summaries else None)

    def score(self, sequences: Sequence[ScoringSequence]) -> Iterable[FloatArray]:
        """Those of the model."""
        return self._counted(self._score, sequences)

    def counts(self) -> dict[str, float]:
        """All that was read so far."""
        seconds = time.process_time() - self.begin
        return {"sequences": self.sequences, "tokens": self.tokens, "seconds": round(seconds, 1)}

    def _counted(self, read: Callable[..., Any], sequences: Sequence[ScoringSequence]) -> Iterable[FloatArray]:
        self.sequences += len(sequences)
        self.tokens += sum(map(len, sequences))
        return read(sequences)


def read_grid(out: Path, trials: Sequence[Trial], model: LanguageModel, documents: Sequence[str]) -> Search:
    """All settings on all documents; what is in OUT is not read again."""
    search = Search(trials, documents, model, TOKENS)
    done, counts = 0, {}
    if out.exists():
        kept = np.load(out, allow_pickle=False)
        done, counts = int(kept["done"]), json.loads(str(kept["counts"]))
        search.nats_SD[:, :done], search.read_SD[:, :done] = kept["nats"][:, :done], kept["read"][:, :done]
        search.tokens_D[:done] = kept["tokens"][:done]
    for place in range(done, len(documents)):
        counted = CountedModel(model)
        search._model = counted
        search.read(range(len(trials)), [place], np.inf, "Grid")
        counts = {name: counts.get(name, 0) + value for name, value in counted.counts().items()}
        found = {"nats": search.nats_SD, "read": search.read_SD, "tokens": search.tokens_D}
        np.savez(out, done=place + 1, counts=json.dumps(counts), **found)  # type: ignore[arg-type]
        print(place + 1, counts, flush=True)
    print("grid:", counts)
    search._model = model
    return search


def compare(
    out: Path,
    trials: Sequence[Trial],
    model: LanguageModel,
    texts: tuple[Sequence[str], Sequence[str]],
    options: TuneOptions,
    name: str,
) -> Tuning:
    """`tune` in the place of `ralm.advice.tune.tune`, after the grid."""
    grid = read_grid(out.with_suffix(".npz"), trials, model, texts[0])
    counted = CountedModel(model)
    tuned = tune(trials, counted, (texts[0], texts[1][:0]), options, name)  # passes of the search alone
    nats_S = np.array([grid.means(one)[0] for one in range(len(trials))])
    chosen = next(n for n, one in enumerate(trials) if (one.toml, one.name) == (tuned.chosen.toml, tuned.chosen.name))
    best = int(nats_S.argmin())
    print("tune:", counted.counts())
    held = Search(trials, texts[1], model, TOKENS)
    held.read([*dict.fromkeys((0, 1, chosen, best))], range(len(texts[1])), np.inf, "Held out")
    for label, one in (("no passages", 0), ("defaults", 1), ("tune", chosen), ("grid", best)):
        nats, cost, _ = held.means(one)
        rank = int((nats_S < nats_S[one]).sum())
        figures = (
            f"{np.exp(grid.means(one)[0]):.4f} searched (rank {rank}), {np.exp(nats):.4f} held out, cost {cost:.1f}"
        )
        print(f"{label}: {trials[one].name}, {trials[one].plan.stride}, {trials[one].plan.query_tokens}: {figures}")
    print("tune against grid, held out:", held.change(chosen, best, range(len(texts[1])), 0))
    return tuned


def corpus(out: Path, name: str) -> tuple[Path, Path]:
    """The text and the index of a corpus."""
    text, index = out / f"{name}.jsonl", out / f"{name}-index"
    if name == "medquad":
        text, found = MEDQUAD / "heldout_shared_topics.jsonl", [*read_documents(str(MEDQUAD / "corpus.jsonl.gz"))]
    else:
        every = standard_library_documentation()
        found = [one for place, one in enumerate(every) if place % 4]
        rows = ({"id": one.id, "title": one.title, "text": one.text} for one in every[::4])
        text.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if not index.exists():
        build_index(make_passages(found), index)
    return text, index


def main(arguments: Sequence[str]) -> None:
    """Compare on a corpus."""
    if len(arguments) < 2:
        sys.exit(__doc__)
    out, name, *units = arguments
    Path(out).mkdir(parents=True, exist_ok=True)
    text, index = corpus(Path(out), name)
    given = ["--lm", "ralm-tiny", "--index", index, "--document-tokens", 64, "--unit-tokens", TOKENS, "--held-out", 0.5]
    given += ["--units", units[0] if units else UNITS, "--budget", 0]
    with patch("ralm.advice.tune.tune", partial(compare, Path(out) / name)):
        program("tune")([*map(str, ["tune", text, *given])], standalone_mode=False)


if __name__ == "__main__":
    main(sys.argv[1:])
