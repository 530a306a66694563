"""Readers and rerankers of your own: they work wherever ours do, and what breaks their contract is named."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from ralm.errors import PartError, UsageError
from ralm.evaluation.perplexity import evaluate_text
from ralm.protocols import Documents, Rows
from ralm.reading.generate import generate
from ralm.reading.mixture import PosteriorWeights
from ralm.reading.parts import Parts
from ralm.reading.plan import PlanOptions
from ralm.reading.readers import Ensemble
from ralm.reading.sampling import GenerationOptions
from ralm.reading.sources import FromRetriever
from ralm.records import NO_PASSAGE, DoubleArray, FloatArray, Hits, Passages, PromptPrefix
from tests.fakes import CountingModel, SharedWordsRetriever, WordTokenizer, passages_of

TEXT = "a b c d e a b c d e f g h a b c d e f g a a c h b"
PLAN = PlanOptions(stride=3, query_tokens=2, document_tokens=4, max_length=14)
WRITING = GenerationOptions(new_tokens=6, stride=2, query_tokens=2, document_tokens=4, max_length=14)
PASSAGES = passages_of("c d c d", "e f e f", "g h g h", "a b", "b b c", "zz zz")


@dataclass(frozen=True)
class Shortest:
    """Chooses the passages with the fewest letters that the prefix lacks; after that, the shortest."""

    candidates: int = 4

    @property
    def config(self) -> dict[str, Any]:
        return {"reranker": "shortest"}

    def choose(self, rows: Rows, hits: Hits, passages: Passages, k: int) -> Hits:
        chosen = []
        for row in range(len(rows)):
            before = set(rows.prefix(row).split())
            best = sorted(
                hits.of(row),
                key=lambda hit: (len(set(passages[hit[0]].text.split()) - before), len(passages[hit[0]].text), hit[0]),
            )[:k]
            chosen.append(([number for number, _ in best], [-float(place) for place in range(len(best))]))
        return Hits.of_rows(chosen)


@dataclass(frozen=True)
class Sources:
    """Each passage alone, behind the words `source :` in front of it; all the same weight."""

    hits: int = 2

    @property
    def config(self) -> dict[str, Any]:
        return {"reader": "sources"}

    def prompt_prefixes(self, hits: Sequence[tuple[int, float]], documents: Documents) -> Sequence[PromptPrefix]:
        return [
            PromptPrefix(documents.encode(f"source : {documents.passage(number).text}"), (number,))
            for number, _ in hits
        ]


@dataclass(frozen=True)
class Recent:
    """Weighs passages by the likelihood of the last two tokens."""

    config = {"mixer": "recent"}  # noqa: RUF012
    evidence = 2

    def __call__(self, scores_K: DoubleArray, evidence_KE: FloatArray) -> DoubleArray:
        joint_K = scores_K + evidence_KE.sum(axis=1)
        return np.asarray(joint_K - np.logaddexp.reduce(joint_K))


def source() -> FromRetriever:
    return FromRetriever(SharedWordsRetriever(PASSAGES), PASSAGES, config={})


def model() -> CountingModel:
    return CountingModel(WordTokenizer("abcdefgh"))


def evaluated(**parts: Any) -> None:
    evaluate_text(TEXT, model(), PLAN, source=source(), parts=Parts(**parts))


def generated(**parts: Any) -> None:
    list(generate("a b b", model(), WRITING, source(), Parts(**parts)))


def test_they_work_in_evaluation_and_generation() -> None:
    reads = model()
    evaluation = evaluate_text(TEXT, reads, PLAN, source=source(), parts=Parts(reader=Sources(), reranker=Shortest()))
    provenance = evaluation.reading.scored.provenance
    assert provenance is not None
    with_passages = provenance.passages_TK[:, 0] != NO_PASSAGE
    # "e a" is the query of the third stride: of "e f e f" and "a b" the prefix "a b c d e a" lacks f
    assert provenance.passages_TK[5].tolist() == [3, 1]
    assert provenance.posteriors_TK[5].tolist() == pytest.approx([3 / 5, 2 / 5]), "b stands there twice, and once"
    assert with_passages.sum() > 15
    spelt = [reads.tokenizer.decode(tokens) for tokens in reads.reads]
    assert {text.startswith("source : ") for text in spelt} == {True, False}, "the first stride has none"
    writes = model()
    pieces = list(generate("a b c b", writes, WRITING, source(), Parts(reader=Sources(), reranker=Shortest())))
    assert pieces[0].tokens[0].passages_K.tolist() == [3, 4]
    assert all(writes.tokenizer.decode(read).startswith("source : ") for read in writes.reads[:2])


def test_a_mixer_weighs_the_passages_of_an_own_reader() -> None:
    def scored(**parts: Any) -> Any:
        return evaluate_text(TEXT, model(), PLAN, source=source(), parts=Parts(**parts)).reading.scored.log_probs_T

    assert (scored(reader=Sources(), mixer=Recent()) != scored(reader=Sources())).any()
    ensemble, same = Ensemble(documents=2, temperature=1e6), PosteriorWeights(eta=1, decay=1e6, evidence=2)
    np.testing.assert_allclose(scored(reader=ensemble, mixer=Recent()), scored(reader=ensemble, mixer=same), atol=1e-4)


def test_evidence_that_a_long_prompt_prefix_would_push_out_is_rejected() -> None:
    @dataclass(frozen=True)
    class Long(Sources):
        """Reads more tokens than `document_tokens`."""

        def prompt_prefixes(self, hits: Sequence[tuple[int, float]], documents: Documents) -> Sequence[PromptPrefix]:
            long_N = np.ones(PLAN.max_length - PLAN.stride - 1, dtype=np.int64)
            return [replace(one, tokens=long_N) for one in super().prompt_prefixes(hits, documents)]

    with pytest.raises(UsageError, match=f"the {PLAN.stride + 2} that must follow them do not fit into `max_length`"):
        evaluated(reader=Long(), mixer=Recent())


@dataclass(frozen=True)
class Given:
    """Gives these weights."""

    weights: Any
    config = {"mixer": "given"}  # noqa: RUF012
    evidence = 0

    def __call__(self, scores_K: DoubleArray, evidence_KE: FloatArray) -> Any:
        return self.weights


@pytest.mark.parametrize("use", [evaluated, generated])
@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.log([0.5, 0.4]), "gives weights that sum to 0.9, not 1"),
        (np.array([np.nan, 0]), "gives weights that sum to nan, not 1"),
        (np.zeros(3), r"gives float64 values of shape \(3,\) for 2 readings"),
        (np.zeros(2, dtype=np.int64), "gives int64 values of shape"),
        (None, "gives object values of shape"),
    ],
)
def test_a_mixer_that_breaks_its_contract(use: Any, weights: Any, message: str) -> None:
    with pytest.raises(PartError, match=f"^the mixer Given {message}.*; see `Mixer` for what it should give"):
        use(reader=Ensemble(documents=2), mixer=Given(weights))


@dataclass(frozen=True)
class Broken(Shortest):
    """Returns what `change` makes of the hits."""

    change: Callable[[Hits], Any] = lambda hits: hits

    def choose(self, rows: Rows, hits: Hits, passages: Passages, k: int) -> Hits:
        return self.change(super().choose(rows, hits, passages, k))  # type: ignore[no-any-return]


def with_numbers(hits: Hits, number: int) -> Hits:
    return Hits(np.where(hits.numbers_QK == NO_PASSAGE, NO_PASSAGE, number), hits.scores_QK)


def twice(hits: Hits) -> Hits:
    return Hits(np.tile(hits.numbers_QK, 2), np.tile(hits.scores_QK, 2))


@pytest.mark.parametrize("use", [evaluated, generated])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda hits: with_numbers(hits, 5), "gives passage 5, which is not among the hits of its row"),
        (lambda hits: with_numbers(hits, -7), "gives passage -7"),
        (lambda hits: hits.numbers_QK, "gives ndarray and not Hits"),
        (lambda _: None, "gives NoneType and not Hits"),
        (
            lambda hits: Hits(hits.numbers_QK[1:], hits.scores_QK[1:]),
            "gives [0-9] rows of 1 for [0-9] queries and k = 1",
        ),
        (twice, "gives [0-9] rows of 2 for [0-9] queries and k = 1"),
    ],
)
def test_a_reranker_that_breaks_its_contract(use: Any, change: Any, message: str) -> None:
    expected = f"^the reranker Broken {message}.*; see `Reranker` for what it should give"
    with pytest.raises(PartError, match=expected):
        use(reranker=Broken(change=change))


@dataclass(frozen=True)
class Odd(Sources):
    """Returns what `change` makes of the prompt prefixes, or prompt prefixes with these fields."""

    change: Any = None

    def prompt_prefixes(self, hits: Sequence[tuple[int, float]], documents: Documents) -> Sequence[PromptPrefix]:
        own = super().prompt_prefixes(hits, documents)
        if isinstance(self.change, dict):
            return [replace(one, **self.change) for one in own]
        return self.change(own)  # type: ignore[no-any-return]


@pytest.mark.parametrize("use", [evaluated, generated])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda _: [], "gives no prompt prefix; see .*\\.$"),
        (lambda _: None, "gives NoneType instead of prompt prefixes"),
        (lambda own: [one.tokens for one in own], "gives ndarray instead of a PromptPrefix"),
        ({"tokens": [3, 4]}, "gives a prompt prefix whose tokens are not an int64 vector"),
        ({"tokens": np.ones(3)}, "gives a prompt prefix whose tokens are not an int64 vector"),
        ({"tokens": np.ones((2, 2), dtype=np.int64)}, "gives a prompt prefix whose tokens are no"),
        ({"passages": (5,)}, "gives a prompt prefix of passage 5, which is not among the hits"),
        ({"tokens": np.full(13, 2)}, "puts 13 tokens before the context, and the [23] that must follow them do not"),
        ({"tokens": np.full(50, 2)}, "puts 50 tokens before the context, and the [23] that must follow .* into .* 14"),
    ],
)
def test_a_reader_that_breaks_its_contract(use: Any, change: Any, message: str) -> None:
    error = UsageError if message.startswith("puts") else PartError
    with pytest.raises(error, match=f"^the reader Odd {message}"):
        use(reader=Odd(change=change))
