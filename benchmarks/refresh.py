"""What the refresh of an index is worth: both encoders trained as in REPLUG LSR, with a refresh and without one.

    python -m benchmarks.refresh TEXT OUT [--steps 160] [--refresh-every 20]

The corpus is every fourth document of MedQuAD, which must be beside the checkout; TEXT is `shared-test.jsonl` of
`benchmarks.held_out_texts`. The encoder is the first two of the six layers of MiniLM: it has much to learn, so its
vectors change fast. Both trainings run at once, each on a thread. Then both encode all passages again, and `ralm
report` compares what they find with what the encoder found before, as the first passage and as an ensemble of ten.
"""

import argparse
import gzip
import shutil
import subprocess
import sys
from collections.abc import Iterable
from itertools import islice
from os import environ
from pathlib import Path

from sentence_transformers import SentenceTransformer

from benchmarks.dense import minilm
from benchmarks.held_out_texts import MEDQUAD

LAYERS = 2
MOST_TOKENS = 128
"""What the encoder reads of a passage."""
EACH = 4
LM = ("--lm", "ralm-tiny")
EXAMPLES = "--examples 8000 --continuation-tokens 16 --prefix-tokens 64 --sequence-tokens 160 --document-tokens 160"
TRAINING = "--candidates 8 --gamma 0.05 --batch 32 --learning-rate 1.5e-4 --held-out 0 --evaluate-every 20"
FAST = "--precision bfloat16 --no-dropout --lm-args dtype=bfloat16"
QUERY = ("--query-tokens", "64")
READING = "--windows blocked --max-length 768 --retriever dense"
READERS = {"first": "", "ensemble": "--reader ensemble:documents=10,temperature=0.05"}


def save_encoder(folder: Path) -> None:
    """Write the first layers of MiniLM as a model of sentence-transformers."""
    model = SentenceTransformer(minilm())
    bert = model[0].auto_model
    bert.encoder.layer = bert.encoder.layer[:LAYERS]
    bert.config.num_hidden_layers = LAYERS
    model.max_seq_length = MOST_TOKENS
    model.save(str(folder))


def started(*arguments: object) -> "subprocess.Popen[bytes]":
    """A command of ralm on one thread."""
    command = [sys.executable, "-m", "ralm", *map(str, arguments)]
    return subprocess.Popen(command, env={**environ, "OMP_NUM_THREADS": "1"})


def ended(several: Iterable["subprocess.Popen[bytes]"]) -> None:
    """Wait for commands that were started."""
    for process in [*several]:
        if process.wait():
            raise SystemExit(process.returncode)


def main() -> None:
    """Train with a refresh and without one, and compare what both find."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--refresh-every", type=int, default=20)
    args = parser.parse_args()
    out: Path = args.out
    out.mkdir()
    whole = MEDQUAD / "corpus.jsonl.gz"
    with gzip.open(whole, "rb") as lines, (out / "corpus.jsonl").open("wb") as part:
        part.writelines(islice(lines, 0, None, EACH))
    save_encoder(out / "encoder")
    encoded = ["--retriever", "dense", "--encoder", out / "encoder", "--encoder-args", "normalize=true,dtype=bfloat16"]
    ended([started("index", out / "corpus.jsonl", "--out", out / "before", *encoded)])

    refreshes = {"refreshed": args.refresh_every, "stale": args.steps}
    for name in refreshes:
        shutil.copytree(out / "before", out / name)
    same = [*LM, *QUERY, *EXAMPLES.split(), *TRAINING.split(), *FAST.split(), "--steps", args.steps]
    trainings = {name: [*same, "--refresh-every", every] for name, every in refreshes.items()}
    ended(
        started("train", "retriever", whole, "--index", out / name, "--out", out / f"{name}-encoder", *learned)
        for name, learned in trainings.items()
    )

    for reader, options in READERS.items():
        read = [*LM, *QUERY, *READING.split(), *options.split()]
        runs = {name: out / f"{name}-{reader}" for name in ("before", *refreshes)}
        for name, run in runs.items():
            vectors = [] if name == "before" else ["--retriever", f"dense:vectors={name}-encoder"]
            ended([started("eval", args.text, "--index", out / name, *read, *vectors, "--out", run)])
        print(f"\n{reader}", flush=True)
        ended([started("report", runs["stale"], runs["before"], runs["refreshed"])])


if __name__ == "__main__":
    main()
