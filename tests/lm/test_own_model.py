"""A language model and a tokenizer as somebody else would write them, in 20 lines: enough for an evaluation."""

import math
from collections.abc import Iterable, Sequence

import numpy as np
import pytest
from pydantic import JsonValue

from ralm.errors import ModelError
from ralm.evaluation.perplexity import Evaluation, evaluate_text
from ralm.lm.tokenizer import full_tokenizer
from ralm.protocols import LanguageModel, Tokenizer
from ralm.reading.parts import IN_CONTEXT, Parts
from ralm.reading.plan import PlanOptions
from ralm.reading.readers import Ensemble
from ralm.reading.sources import FromRetriever
from ralm.records import FloatArray, IntArray, ScoringSequence, SpecialTokens
from ralm.reranking.oracle import Oracle
from ralm.reranking.zero_shot import ZeroShot
from tests.fakes import SharedWordsRetriever, passages_of


class Bytes:
    def encode(self, text: str) -> IntArray:
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64)

    def decode(self, tokens: IntArray) -> str:
        return bytes(tokens.tolist()).decode(errors="replace")


class Bigrams:
    """The next byte is likely where it followed the same byte before: in the passage, or in the text so far."""

    name, max_length, tokenizer = "bigrams", 96, Bytes()
    config: dict[str, JsonValue] = {"name": "bigrams"}  # noqa: RUF012

    def score(self, passes: Sequence[ScoringSequence]) -> Iterable[FloatArray]:
        rows = [[self.log_prob(one.tokens_N[:at], one.tokens_N[at]) for at in one.targets_P] for one in passes]
        return [np.array(row, dtype=np.float32) for row in rows]

    def log_prob(self, before: IntArray, token: int) -> float:
        followed = before[1:][before[:-1] == before[-1]]
        return math.log((1 + np.count_nonzero(followed == token)) / (256 + len(followed)))


TEXT = "The whales sing in the sea, thé sheep graze on the hill; nobody grazes in the sea, nobody sings. " * 2
PASSAGES = passages_of("whales sing in the sea and nowhere else", "sheep graze on the hill and nowhere else", "nobody")
PLAN = PlanOptions(stride=4, query_tokens=16, document_tokens=24, max_length=96)


def evaluated(model: LanguageModel, parts: Parts = IN_CONTEXT) -> Evaluation:
    source = FromRetriever(SharedWordsRetriever(PASSAGES), PASSAGES, config={})
    return evaluate_text(TEXT, model, PLAN, source=source, parts=parts, baseline=True)


def plain_loop() -> list[float]:
    """Every stride by itself, with the first passage that its last 16 bytes find."""
    model, retriever = Bigrams(), SharedWordsRetriever(PASSAGES)
    tokens = model.tokenizer.encode(TEXT)
    found = []
    for begin in range(0, len(tokens), PLAN.stride):
        end = min(begin + PLAN.stride, len(tokens))
        query = model.tokenizer.decode(tokens[max(0, begin - PLAN.query_tokens) : begin])
        hits = retriever.retrieve([query], 1).of(0) if begin else []
        document = model.tokenizer.encode(PASSAGES[hits[0][0]].text if hits else "")[: PLAN.document_tokens]
        first = max(0, end + len(document) - PLAN.max_length)
        read = [np.concatenate([document, tokens[first:at]]) for at in range(max(begin, 1), end)]
        found += [model.log_prob(before, int(tokens[end - len(read) + i])) for i, before in enumerate(read)]
    return found


@pytest.mark.parametrize(
    "parts",
    [IN_CONTEXT, Parts(reranker=ZeroShot(candidates=3)), Parts(reranker=Oracle()), Parts(reader=Ensemble(documents=2))],
    ids=["in-context", "zero-shot", "oracle", "ensemble"],
)
def test_every_way_of_reading_takes_a_model_that_only_scores(parts: Parts) -> None:
    evaluation = evaluated(Bigrams(), parts)
    assert evaluation.baseline is not None
    assert evaluation.reading.scored.nll < evaluation.baseline.scored.nll, "the passages say what followed"
    if parts is IN_CONTEXT:
        np.testing.assert_allclose(evaluation.reading.scored.log_probs_T, plain_loop(), rtol=1e-6)
        assert evaluation.reading.measures.bytes == len(TEXT[1:].encode()), "without the first token"


def test_what_a_tokenizer_does_not_say_is_found_out() -> None:
    full = full_tokenizer(Bytes())
    tokens, spans_N2 = full.encode_with_spans("a thé")
    assert tokens.tolist() == list("a thé".encode())
    assert spans_N2.tolist() == [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [4, 5]], "the bytes of é share its place"
    assert full.encode_document("whales", 4).tolist() == list(b"whal")
    assert (full.end_token, full.unknown_token, full.token_of("<|endoftext|>")) == (None, None, None)
    assert full.special_tokens.begin is None

    class Begins(Bytes):
        special_tokens = SpecialTokens(before=np.array([1]), after=np.array([2]), begin=1)
        end_token = 2

    full = full_tokenizer(Begins())
    assert full.encode_document("whales", 5).tolist() == [1, *b"wha", 2]
    assert full.end_token == 2
    assert full_tokenizer(full) is full


def test_a_tokenizer_that_changes_the_text_must_say_where_its_tokens_stand() -> None:
    class Stars(Bytes):
        def decode(self, tokens: IntArray) -> str:
            return "*" * len(tokens)

    tokenizer: Tokenizer = Stars()
    with pytest.raises(ModelError, match="'The ' was not found.* your own tokenizer needs `encode_with_spans`"):
        full_tokenizer(tokenizer).encode_with_spans("The ")
