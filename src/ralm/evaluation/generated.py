"""The gain from passages for a generated text: the same tokens are scored again without passages.

Knows generated pieces and a language model; knows nothing of how the pieces were written or how they are shown.
"""

from collections.abc import Sequence

import numpy as np

from ralm.evaluation.traces import TracedText, used_passages
from ralm.lm.scoring import Scorer
from ralm.protocols import LanguageModel
from ralm.reading.beginning import Bos, first_tokens, without_first
from ralm.reading.pieces import GeneratedText, GeneratedToken, texts_of_tokens
from ralm.records import FloatArray, IntArray, Passages, Provenance, Request


def traced_generation(
    prompt: str,
    pieces: Sequence[GeneratedText],
    model: LanguageModel,
    passages: Passages = (),
    max_length: int | None = None,
    bos: Bos = "auto",
) -> TracedText:
    """A prompt and its generated text, each token with its gain over reading without passages.

    Without passages the text is read as in generation: it begins with the special tokens that `bos` selects, and its
    oldest tokens are dropped until it and the next token fit into `max_length` (None: the model's own). Text that a
    stop string cut off is left out.
    """
    tokens = [token for piece in pieces for token in piece.tokens]
    provenance = Provenance.of_rows([(token.passages_K, token.posteriors_K) for token in tokens])
    before, texts = texts_of_tokens(pieces)
    return TracedText(
        before=prompt + before,
        texts=texts,
        log_probs_T=np.array([token.log_prob for token in tokens], dtype=np.float32),
        baseline_T=without_passages(model.tokenizer.encode(prompt), tokens, model, max_length, bos),
        provenance=provenance,
        passages=used_passages(provenance, passages),
    )


def without_passages(
    prompt: IntArray,
    tokens: Sequence[GeneratedToken],
    model: LanguageModel,
    max_length: int | None = None,
    bos: Bos = "auto",
) -> FloatArray:
    """The log-probability (float32, T) of each generated token given the prompt (int64) and the text before it, read as
    `traced_generation` says; the engine reads them in one pass."""
    max_length = max_length or model.max_length
    first = first_tokens(model.tokenizer, bos)
    begin = without_first(prompt, first)
    text = np.concatenate([begin, np.array([token.token for token in tokens], dtype=np.int64)])
    requests = [
        Request(first, text[max(0, len(first) + place + 1 - max_length) : place], text[place : place + 1])
        for place in range(len(begin), len(text))
    ]
    return np.concatenate([np.zeros(0, dtype=np.float32), *Scorer.of(model).log_probs(requests)])
