"""How much of an ensemble is known if each document lists its k likeliest tokens only: greedy tokens, and targets.

The model runs in this process and predicts its whole vocabulary, of which the k likeliest are listed.

Letters of shapes: K documents, V vocabulary, T targets, S steps, C numbers of tokens that are listed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.api.material import Material, percent
from ralm.reading.ensemble import Ensemble
from ralm.reading.in_context import stride_request
from ralm.reading.mixers import SimilarityWeights, UniformWeights
from ralm.reading.mixture import mix
from ralm.reading.parts import Parts
from ralm.reading.sampling import GenerationOptions, draw_token
from ralm.reading.tokens import PassageDocuments
from ralm.records import NO_PASSAGE, NO_READINGS, Draw, FloatArray, IntArray, NextTokens, Readings, Request

LISTED = (5, 20, 100)
DOCUMENTS = (2, 5, 10)
TEXT_STRIDES = 1000
GREEDY = GenerationOptions(new_tokens=32)


@dataclass(frozen=True, eq=False)
class Step:
    """The whole predictions (float32, K x V) of the readings for one token."""

    log_probs_KV: FloatArray
    readings: Readings

    @property
    def best(self) -> int:
        """The greedy token of the average."""
        return int(mix(self.log_probs_KV, self.readings.log_weights_K).argmax())

    def drawn(self, listed: int) -> tuple[bool, bool]:
        """Whether the greedy token is certified if each document lists so many tokens, and whether it is right."""
        given = likeliest(self.log_probs_KV, listed)
        token = draw_token(given, Draw(range(len(self.readings)), self.readings.log_weights_K))
        return token.certified, token.token == self.best


def likeliest(log_probs_KV: FloatArray, count: int) -> NextTokens:
    """The likeliest tokens of each prediction, and nothing of the others."""
    tokens_KC = np.argsort(-log_probs_KV, axis=1, kind="stable")[:, :count]
    return NextTokens(np.take_along_axis(log_probs_KV, tokens_KC, axis=1), tokens_KC)


def greedy_steps(material: Material, prompt: IntArray, parts: Parts, options: GenerationOptions) -> Iterator[Step]:
    """The steps of greedy generation behind a prompt, with whole predictions."""
    model, source, text = material.model, material.source, prompt
    documents = PassageDocuments(source.passages, model.tokenizer, options.document_tokens, options.bos)
    continuations = model.continuations()
    readings = NO_READINGS
    for written in range(options.new_tokens):
        if written % options.stride == 0:
            query = model.tokenizer.decode(text[-options.query_tokens :])
            hits = source.search([query], parts.hits).of(0)
            readings = parts.readings(hits, documents)
        given = continuations.next_tokens([np.concatenate([prompt_prefix.tokens, text]) for prompt_prefix in readings])
        step = Step(given.log_probs_BC, readings)
        yield step
        if step.best in model.end_tokens:
            return
        text = np.append(text, step.best)


def certified_table(
    material: Material, prompts: int, several: Sequence[int] = DOCUMENTS
) -> Iterator[dict[str, object]]:
    """A row for each number of documents and kind of weights."""
    given = material.prompts(prompts)
    for mixer in (SimilarityWeights(), UniformWeights()):
        for documents in several:
            parts = Parts(reader=Ensemble(documents=documents), mixer=mixer)
            counts = (*LISTED, material.model.vocabulary)
            steps = (step for prompt in given for step in greedy_steps(material, prompt, parts, GREEDY))
            drawn_SC2 = np.array([[step.drawn(count) for count in counts] for step in steps])
            found = dict(zip(counts, drawn_SC2.swapaxes(0, 1), strict=True))
            yield {
                "weights": mixer.config["mixer"],
                "documents": documents,
                "tokens": len(drawn_SC2),
                **{f"certified, k = {count}": percent(drawn_S2[:, 0].mean()) for count, drawn_S2 in found.items()},
                **{f"others right, k = {count}": _others_right(drawn_S2) for count, drawn_S2 in found.items()},
            }


def _others_right(drawn_S2: NDArray[np.bool_]) -> str:
    """How many of the tokens that are not certified are right."""
    others = drawn_S2[~drawn_S2[:, 0], 1]
    return f"{others.sum()} of {len(others)}"


def scored_table(material: Material, strides: int) -> Iterator[dict[str, object]]:
    """A row for each number of documents: targets that all of them list, and targets that none lists."""
    prepared = material.prepared(TEXT_STRIDES)
    hits, _ = material.source.find(prepared, material.model.tokenizer, max(DOCUMENTS))
    documents = PassageDocuments.planned(material.source.passages, material.model.tokenizer, prepared.plan.options)
    full = np.flatnonzero((hits.numbers_QK != NO_PASSAGE).all(axis=1))
    rows = full[:: max(1, len(full) // strides)].tolist()
    read = [
        [stride_request(prepared.tokens, prepared.plan, row, documents[number]) for number, _ in hits.of(row)]
        for row in rows
    ]
    places_KT = np.concatenate([np.stack([places(material, one) for one in some]) for some in read], axis=1)
    for count in (1, *DOCUMENTS):
        first_KT = places_KT[:count]
        yield {
            "documents": count,
            "targets": first_KT.shape[1],
            **{f"exact, k = {k}": percent((first_KT < k).all(axis=0).mean()) for k in LISTED},
            **{f"listed by none, k = {k}": percent((first_KT >= k).all(axis=0).mean()) for k in LISTED},
        }


@torch.inference_mode()
def places(material: Material, one: Request) -> IntArray:
    """The place (int64, T) of each target of a request among all tokens, from 0 for the likeliest."""
    tokens = torch.from_numpy(np.concatenate([one.document, one.context, one.targets])[:-1])
    found = material.model.model(input_ids=tokens[None], use_cache=False, logits_to_keep=len(one.targets))
    logits_TV = found.logits[0].float()
    own_T1 = logits_TV.gather(1, torch.from_numpy(one.targets)[:, None])
    return np.asarray((logits_TV > own_T1).sum(dim=1))
