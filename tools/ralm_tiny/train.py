"""Train ralm-tiny: AdamW, warm-up, plateau, linear decay to zero.

Knows rows of token ids; knows nothing of text. All randomness is seeded, and a run that was stopped resumes from its
last checkpoint as if it had not stopped. Written for one CPU core with bfloat16 arithmetic.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoTokenizer, GPTNeoXForCausalLM
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from tools.ralm_tiny.model import Shape, new_model

ATTENTION_BLOCK = 256
ATTENTION = "causal_blocks"


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to train; learning rates are those of the plateau."""

    phases: tuple[tuple[str, int], ...]
    """Files of rows in order, with the number of steps on each."""
    tokens: int = 4096
    """Tokens per step."""
    rate: float = 0.002
    weight_decay: float = 0.02
    warmup: int = 50
    decay_share: float = 0.4
    """The share of all steps, at the end, in which the learning rate falls linearly to zero."""
    save_every: int = 200

    @property
    def steps(self) -> int:
        """Steps of all phases."""
        return sum(steps for _, steps in self.phases)


def main() -> None:
    """Train from a fresh model or from the last checkpoint in the folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("folder", type=Path, help="where checkpoints are written and resumed from")
    parser.add_argument("--phase", nargs=2, action="append", required=True, metavar=("ROWS", "STEPS"))
    args = parser.parse_args()
    options = Options(phases=tuple((rows, int(steps)) for rows, steps in args.phase))
    end_of_text = AutoTokenizer.from_pretrained(args.tokenizer).eos_token_id
    train(new_model(Shape(), end_of_text, seed=0), options, args.folder)


def train(model: GPTNeoXForCausalLM, options: Options, folder: Path) -> None:
    """Train the model; writes `step-N` folders with weights, and the newest optimiser state."""
    use_fast_attention(model)
    folder.mkdir(parents=True, exist_ok=True)
    optimizer = _optimizer(model, options)
    first = _resume(model, optimizer, folder)
    losses = list[float]()
    for step, rows in _batches(options, first):
        for group in optimizer.param_groups:
            group["lr"] = options.rate * _share(step, options)
        losses.append(_step(model, optimizer, rows))
        if step % 25 == 0:
            with (folder / "log.jsonl").open("a") as log:
                log.write(json.dumps({"step": step, "loss": round(float(np.mean(losses)), 4)}) + "\n")
            losses = []
        if step % options.save_every == 0 or step == options.steps:
            _save(model, optimizer, folder, step)


def loss_of(model: GPTNeoXForCausalLM, rows: Tensor) -> Tensor:
    """Mean cross-entropy of each row's next tokens; the arithmetic is bfloat16, the weights and the loss float32."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = model.gpt_neox(rows[:, :-1], use_cache=False).last_hidden_state
        logits = model.get_output_embeddings()(hidden.flatten(0, 1))
    return functional.cross_entropy(logits.float(), rows[:, 1:].flatten())


def use_fast_attention(model: GPTNeoXForCausalLM) -> None:
    """Compute attention as a few matrix products per row of the batch: half the time of the fused kernel on a CPU."""
    ALL_ATTENTION_FUNCTIONS.register(ATTENTION, _causal_blocks)
    ALL_MASK_ATTENTION_FUNCTIONS.register(ATTENTION, sdpa_mask)
    model.set_attn_implementation(ATTENTION)


def _causal_blocks(
    _module: nn.Module, query: Tensor, key: Tensor, value: Tensor, _mask: object, **_options: object
) -> tuple[Tensor, None]:
    """Causal attention of (batch, head, position, size) without padding, a block of queries at a time."""
    scale = query.shape[-1] ** -0.5
    length = query.shape[2]
    mask = torch.full((length, length), float("-inf"), dtype=query.dtype).triu(1)
    rows = []
    for q, k, v in zip(query.unbind(), key.unbind(), value.to(query.dtype).unbind(), strict=True):
        blocks = []
        for begin in range(0, length, ATTENTION_BLOCK):
            end = min(begin + ATTENTION_BLOCK, length)
            bias = mask[begin:end, :end].expand(len(q), -1, -1)
            scores = torch.baddbmm(bias, q[:, begin:end], k[:, :end].mT, alpha=scale)
            blocks.append(torch.bmm(torch.softmax(scores, -1), v[:, :end]))
        rows.append(torch.cat(blocks, 1))
    return torch.stack(rows).transpose(1, 2), None


def _optimizer(model: GPTNeoXForCausalLM, options: Options) -> torch.optim.Optimizer:
    matrices = [parameter for parameter in model.parameters() if parameter.ndim == 2]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    groups = [{"params": matrices, "weight_decay": options.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=options.rate, betas=(0.9, 0.98), fused=True)


def _step(model: GPTNeoXForCausalLM, optimizer: torch.optim.Optimizer, rows: Tensor) -> float:
    loss = loss_of(model, rows)
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def _batches(options: Options, first: int) -> Iterator[tuple[int, Tensor]]:
    """Numbered batches from step `first` on; a phase that needs more rows than its file has starts over."""
    step = 1
    for name, steps in options.phases:
        rows: NDArray[np.uint16] = np.load(name, mmap_mode="r")
        size = options.tokens // (rows.shape[1] - 1)
        for number in range(steps):
            if step >= first:
                chosen = np.arange(number * size, (number + 1) * size) % len(rows)
                yield step, torch.from_numpy(rows[chosen].astype(np.int64))
            step += 1


def _share(step: int, options: Options) -> float:
    """The share of the plateau's learning rate at a step."""
    left = (options.steps - step + 1) / (options.decay_share * options.steps)
    return min(1.0, step / options.warmup, left)


def _save(model: GPTNeoXForCausalLM, optimizer: torch.optim.Optimizer, folder: Path, step: int) -> None:
    model.save_pretrained(folder / f"step-{step:06}")
    state = {"step": step, "optimizer": optimizer.state_dict()}
    torch.save(state, folder / "state.tmp")
    (folder / "state.tmp").replace(folder / "state.pt")


def _resume(model: GPTNeoXForCausalLM, optimizer: torch.optim.Optimizer, folder: Path) -> int:
    """The first step to take: 1, or the one after the last checkpoint, which is loaded."""
    if not (folder / "state.pt").exists():
        return 1
    state = torch.load(folder / "state.pt", weights_only=True)
    step: int = state["step"]
    saved = GPTNeoXForCausalLM.from_pretrained(folder / f"step-{step:06}", dtype=torch.float32)
    model.load_state_dict(saved.state_dict())
    optimizer.load_state_dict(state["optimizer"])
    return step + 1


if __name__ == "__main__":
    main()
