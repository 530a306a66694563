"""What scoring needs in memory, compared with the prediction of docs/scoring.md.

    python -m benchmarks.scoring_memory

Each line is its own process on a CPU. A model with random weights scores a text of 1,024 tokens, all its tokens or the
last 4, and the peak resident memory is compared with the prediction. That is the sum of what the process had before it
loaded the model, the weights, and the packed weights with the workspace of one pass or, if weights are converted, the
size of their file, whichever is larger.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import cast

import numpy as np
import torch
from transformers import AutoModelForCausalLM, GPT2Config, PreTrainedConfig

from benchmarks.peak_memory import peak_megabytes
from ralm.lm.local.engine import LOGITS_PER_BATCH, LOGITS_PER_CHUNK
from ralm.lm.local.kernels import packable
from ralm.lm.registry import Dtype, ModelOptions, load_local_model
from ralm.lm.scoring import Scorer
from ralm.records import Request

LENGTH = 1024
SHAPES = {
    "gpt2": {},
    "gpt2-medium": {"n_layer": 24, "n_embd": 1024, "n_head": 16},
    "large vocabulary": {"n_layer": 4, "vocab_size": 250_000},
}


def workspace(config: PreTrainedConfig, length: int, positions: int, bytes_a_number: int) -> int:
    """Bytes that one pass needs at once (docs/scoring.md).

    These are the widest point of a layer, before and after its activation, with the residual stream and its copies; and
    the logits of a pass in the model's format, with one chunk of them twice in float32.
    """
    layer = length * (2 * 4 * config.hidden_size + 4 * config.hidden_size) * bytes_a_number
    logits = min(positions * config.vocab_size, LOGITS_PER_BATCH["cpu"])
    chunk = min(logits, LOGITS_PER_CHUNK["cpu"])
    return int(layer + logits * bytes_a_number + 2 * chunk * 4)


def measure(folder: str, dtype: Dtype, targets: int) -> dict[str, float]:
    """Score in this process; memory in MiB."""
    Scorer(load_local_model("ralm-tiny")).log_probs([_request(targets, 4096)])  # lets libraries initialise
    start = peak_megabytes()
    model = load_local_model(folder, ModelOptions(dtype=dtype, device="cpu"))
    config, size = model.model.config, model.model.dtype.itemsize
    weights = sum(parameter.numel() for parameter in model.model.parameters()) * size
    Scorer(model).log_probs([_request(targets, config.vocab_size)])
    files = sum(file.stat().st_size for file in Path(folder).glob("*.safetensors"))
    loading = files if dtype != "float32" else 0  # converted weights are in memory twice
    layers = cast("list[torch.nn.Linear]", packable(model.model))
    packed = sum(layer.weight.nbytes for layer in layers)
    predicted = start + (weights + max(loading, packed + workspace(config, LENGTH, targets, size))) / 2**20
    return {"start": start, "predicted": predicted, "measured": peak_megabytes()}


def _request(targets: int, vocabulary: int) -> Request:
    tokens = np.random.default_rng(0).integers(vocabulary, size=LENGTH)
    begin = max(1, LENGTH - targets)
    return Request(document=tokens[:0], context=tokens[:begin], targets=tokens[begin:])


def main() -> None:
    print("model             dtype     targets  start MiB  predicted MiB  measured MiB  measured / predicted")
    for name, shape in SHAPES.items():
        with tempfile.TemporaryDirectory() as folder:
            torch.manual_seed(0)
            AutoModelForCausalLM.from_config(GPT2Config(**shape)).save_pretrained(folder)
            tokenizer = Path(load_local_model("ralm-tiny").model.name_or_path)
            for file in ("tokenizer.json", "tokenizer_config.json"):
                (Path(folder) / file).write_bytes((tokenizer / file).read_bytes())
            for dtype in ("float32", "bfloat16"):
                for targets in (4, LENGTH - 1):
                    command = [
                        sys.executable,
                        "-m",
                        "benchmarks.scoring_memory",
                        "--measure",
                        folder,
                        dtype,
                        str(targets),
                    ]
                    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
                    row = json.loads(out)
                    print(
                        f"{name:16}  {dtype:8}  {targets:7,}  {row['start']:9,.0f}  {row['predicted']:13,.0f}  "
                        f"{row['measured']:12,.0f}  {row['measured'] / row['predicted']:20.2f}",
                        flush=True,
                    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        folder, dtype, targets = sys.argv[2:]
        print(json.dumps(measure(folder, cast("Dtype", dtype), int(targets))))
    else:
        main()
