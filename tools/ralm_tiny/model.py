"""ralm-tiny before training: a GPT-NeoX with an induction circuit already in its weights.

A model of this size needs hundreds of millions of tokens to discover that text repeats itself. The circuit that uses
it is well known, and writing it into the weights takes a few matrices:

- in layer 0, heads that look 1 and 2 tokens back (a constant query and key, turned by the rotary embedding, peak at one
  offset) copy what they find there into two free slots of the residual stream;
- in layers 1 and 2, heads whose query is (this token, the one before) and whose key is (the token before the key's
  position, the one before that) look at what followed when these two tokens last occurred in the context, and copy it
  to the output, whose embedding is the input's.

Afterwards everything is trained, including the circuit. Slots of the residual stream: [embedding | 1 back | 2 back].
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

ROTARY_FREQUENCIES = 4
"""How many of the fastest rotary frequencies hold a head on its offset."""

SHARPNESS = 12.0
"""The attention logit that each of those frequencies adds at the offset; the neighbours get about 6 less in all."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The size of the model; the default is what ships."""

    vocabulary: int = 4096
    width: int = 256
    layers: int = 4
    heads: int = 4
    inner: int = 768
    context: int = 1024


def new_model(shape: Shape, end_of_text: int, seed: int) -> GPTNeoXForCausalLM:
    """A model with random weights and the induction circuit."""
    torch.manual_seed(seed)
    config = GPTNeoXConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=shape.inner,
        max_position_embeddings=shape.context,
        hidden_act="relu2",
        rotary_pct=0.25,
        use_parallel_residual=False,
        tie_word_embeddings=True,
        bos_token_id=end_of_text,
        eos_token_id=end_of_text,
        attention_dropout=0.0,
        hidden_dropout=0.0,
    )
    model = GPTNeoXForCausalLM(config)
    depth = 1 / math.sqrt(2 * shape.layers)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                parameter.normal_(std=0.06 if "embed" in name else 1 / math.sqrt(parameter.shape[1]))
            if name.endswith(("attention.dense.weight", "dense_4h_to_h.weight")):
                parameter.mul_(0.1 * depth)
        _write_circuit(model, shape)
    return model


def _write_circuit(model: GPTNeoXForCausalLM, shape: Shape) -> None:
    size = shape.width // shape.heads
    embedding = slice(0, shape.width - 2 * size)
    back = [slice(shape.width - 2 * size, shape.width - size), slice(shape.width - size, shape.width)]
    read = _orthonormal(size, embedding.stop)
    weight = model.gpt_neox.embed_in.weight
    weight[:, embedding.stop :] *= 0.1
    norm = 0.06 * math.sqrt(embedding.stop)
    gain = norm / (math.sqrt(shape.width) * 0.7)

    for head in (0, 1):
        _look_back(_Head(model, 0, head, shape), head + 1, read, embedding, back[head], gain)
    for layer, strengths in ((1, (1.4, 0.9)), (2, (1.1, 1.2))):
        values = _orthonormal(embedding.stop, embedding.stop)
        for head in (0, 1):
            part = values[head * size : (head + 1) * size]
            _induce(_Head(model, layer, head, shape), strengths, read, embedding, back, part, gain)


class _Head:
    """The weights of one attention head, as views: `query`, `key`, `value` (size, width), `output` (width, size)."""

    def __init__(self, model: GPTNeoXForCausalLM, layer: int, head: int, shape: Shape) -> None:
        self.size = shape.width // shape.heads
        self.rotary = self.size // 4
        attention = model.gpt_neox.layers[layer].attention
        start = head * 3 * self.size
        rows = [slice(start + i * self.size, start + (i + 1) * self.size) for i in range(3)]
        self.query, self.key, self.value = (attention.query_key_value.weight[r] for r in rows)
        self.query_bias, self.key_bias, _ = (attention.query_key_value.bias[r] for r in rows)
        self.output = attention.dense.weight[:, head * self.size : (head + 1) * self.size]


def _look_back(head: _Head, offset: int, read: Tensor, source: slice, target: slice, gain: float) -> None:
    """Attend `offset` tokens back and copy a projection of the embedding found there into the target slot."""
    pairs = head.rotary // 2
    frequencies = 10000.0 ** (-torch.arange(pairs) / pairs)
    length = math.sqrt(SHARPNESS * math.sqrt(head.size))
    head.query.mul_(0.1)
    head.key.mul_(0.1)
    for i in range(ROTARY_FREQUENCIES):
        head.query_bias[i] = length
        head.key_bias[i] = length * torch.cos(offset * frequencies[i])
        head.key_bias[i + pairs] = length * torch.sin(offset * frequencies[i])
    head.value.zero_()
    head.value[:, source] = read
    head.output.zero_()
    head.output[target] = gain * torch.eye(head.size)


def _induce(
    head: _Head,
    strengths: tuple[float, float],
    read: Tensor,
    source: slice,
    back: list[slice],
    values: Tensor,
    gain: float,
) -> None:
    """Attend to one token after the last occurrence of the current two tokens, and copy the embedding found there."""
    content = slice(head.rotary, head.size)
    first = strengths[0] * _orthonormal(head.size - head.rotary, head.size)
    second = strengths[1] * _orthonormal(head.size - head.rotary, head.size)
    head.query.mul_(0.1)
    head.key.mul_(0.1)
    head.query[content, source] = first @ read
    head.query[content, back[0]] = second
    head.key[content, back[0]] = first
    head.key[content, back[1]] = second
    head.value.zero_()
    head.value[:, source] = values
    head.output.zero_()
    head.output[source] = gain * values.T


def _orthonormal(rows: int, columns: int) -> Tensor:
    """Random orthonormal rows; there are at most as many as columns."""
    orthogonal: Tensor = torch.linalg.qr(torch.randn(columns, columns)).Q
    return orthogonal[:rows].contiguous()
