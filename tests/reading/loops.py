"""What tests share that compare readings with plain loops: a text, its passages and hits, and generation."""

from collections.abc import Callable, Sequence

import numpy as np

from ralm.lm.tokenizer import full_tokenizer
from ralm.protocols import WritingModel
from ralm.reading.generate import TokenWriter
from ralm.reading.mixture import UniformWeights
from ralm.reading.parts import Parts
from ralm.reading.pieces import GeneratedToken
from ralm.reading.sampling import GenerationOptions
from ralm.reading.sources import FromRetriever
from ralm.reading.tokens import PassageDocuments, PreparedText
from ralm.records import NO_PASSAGE, Hits, IntArray
from tests.fakes import passages_of
from tests.reference import ensemble, generation

TEXT = "How a passage is read decides what it is worth; so every token counts, and none twice: but which one is it?"
PASSAGES = passages_of("a passage that is much longer than the cut of ten tokens", "short", "", "token counts", "What")


def some_hits(prepared: PreparedText, k: int) -> Hits:
    """Hits that differ from row to row in passages, number and similarity; none for every sixth row."""
    rows = np.arange(len(prepared.plan))[:, None]
    numbers_QK = (rows + np.arange(k)) % len(PASSAGES)
    numbers_QK[3::6, 1:] = NO_PASSAGE
    numbers_QK[5::6] = NO_PASSAGE
    numbers_QK[~prepared.plan.retrieves_R] = NO_PASSAGE
    scores_QK = np.sin(np.arange(numbers_QK.size)).reshape(numbers_QK.shape)
    scores_QK[numbers_QK == NO_PASSAGE] = 0
    return Hits(numbers_QK=numbers_QK.astype(np.int64), scores_QK=scores_QK.astype(np.float32))


def written(writer: TokenWriter, *prompts: IntArray) -> list[list[GeneratedToken]]:
    """All tokens of every prompt."""
    assert [writer.add(prompt) for prompt in prompts] == list(range(len(prompts)))
    tokens: list[list[GeneratedToken]] = [[] for _ in prompts]
    while step := writer.step():
        for number, token in step:
            tokens[number].append(token)
    return tokens


def plain_generation(
    prompt: IntArray,
    model: WritingModel,
    settings: GenerationOptions,
    source: FromRetriever,
    parts: Parts,
    probabilities: Callable[[Sequence[int]], np.ndarray],
    pick: Callable[[np.ndarray], int],
) -> list[generation.Step]:
    """The reference, with the options of ours."""
    documents = PassageDocuments(source.passages, model.tokenizer, settings.document_tokens)

    def retrieve(text: Sequence[int]) -> list[tuple[int, float]]:
        query = model.tokenizer.decode(np.array(text[-settings.query_tokens :]))
        return source.retriever.retrieve([query], parts.hits).of(0)

    def weights(scores: Sequence[float]) -> list[float]:
        flat = isinstance(parts.mixer, UniformWeights)
        temperature = getattr(parts.reader, "temperature", 1.0)
        return [1 / len(scores)] * len(scores) if flat else ensemble.weights(scores, temperature)

    return generation.generate(
        prompt.tolist(),
        {number: documents[number].tolist() for number in range(len(source.passages))},
        retrieve,
        probabilities,
        pick,
        weights=weights,
        new_tokens=settings.new_tokens,
        stride=settings.stride,
        max_length=settings.max_length or model.max_length,
        end_tokens=model.end_tokens,
        first=full_tokenizer(model.tokenizer).encode_document("", 10).tolist(),
    )
