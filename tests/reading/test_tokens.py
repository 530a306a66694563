"""What every reading begins with: the same special tokens with passages and without, counted once and fitting."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from tokenizers import processors

from ralm.errors import ModelError, TextError, UsageError
from ralm.evaluation.perplexity import evaluate_text
from ralm.lm.local.tokenization import ModelTokenizer, load_model_tokenizer
from ralm.reading.generate import TokenWriter, generate
from ralm.reading.parts import Parts
from ralm.reading.plan import Bos, PlanOptions, Semantics
from ralm.reading.provenance import traced_generation
from ralm.reading.readers import Concatenation, Ensemble
from ralm.reading.sampling import GenerationOptions
from ralm.reading.score import score_text
from ralm.reading.sources import FromRetriever
from ralm.reading.tokens import PassageDocuments, first_tokens, prepare_text
from ralm.records import NO_PASSAGE, Hits, PromptPrefix, SpecialTokens
from ralm.reranking.zero_shot import ZeroShot
from tests.fakes import CountingModel, SharedWordsRetriever, WordTokenizer, passages_of
from tests.reference import paper
from tests.tiny_models import BOS, EOS, byte_tokenizer

WORDS = "abcdefgh"
PASSAGES = passages_of("c d c d c d", "e f", "", "g h g h")
BEGIN = 1


def begins() -> CountingModel:
    """A model whose tokenizer puts <begin> before a text."""
    return CountingModel(WordTokenizer(WORDS, begins=True), vocabulary=10)


def test_what_a_tokenizer_puts_around_a_text(tiny_folders: dict[str, Path]) -> None:
    opt, gpt2 = (load_model_tokenizer(str(tiny_folders[family])).special_tokens for family in ("opt", "gpt2"))
    assert (opt.before.tolist(), opt.after.tolist(), opt.begin) == ([BOS], [], BOS)
    assert (gpt2.before.tolist(), gpt2.after.tolist(), gpt2.begin) == ([], [], BOS)
    both = byte_tokenizer(with_bos=True)
    both.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> <pad> $A </s>", special_tokens=[("<s>", BOS), ("</s>", EOS), ("<pad>", 258)]
    )
    special = ModelTokenizer(both).special_tokens
    assert (special.before.tolist(), special.after.tolist()) == ([BOS, 258], [EOS]), "an EOS is not what stands first"


def test_the_choices() -> None:
    own = WordTokenizer(begins=True)
    assert [first_tokens(own, bos).tolist() for bos in ("auto", "always", "never")] == [[BEGIN], [BEGIN], []]
    other = WordTokenizer()
    nothing = np.zeros(0, dtype=np.int64)
    other.special_tokens = SpecialTokens(nothing, nothing, 7)
    assert [first_tokens(other, bos).tolist() for bos in ("auto", "always", "never")] == [[], [7], []]
    with pytest.raises(ModelError, match='`bos="always"`: the tokenizer of this model has no BOS token'):
        first_tokens(WordTokenizer(), "always")


def test_a_document_without_room_for_what_stands_first_is_refused() -> None:
    model = begins()
    two = np.array([BEGIN, BEGIN])
    model.tokenizer.special_tokens = SpecialTokens(two, two[:0], BEGIN)
    with pytest.raises(UsageError, match="`document_tokens` 1 leaves no room for the 2 special tokens"):
        evaluate_text("a b c", model, PlanOptions(document_tokens=1, max_length=20))


@pytest.mark.parametrize("ranks", [False, True])
def test_a_bos_that_is_not_there_is_refused_before_anything_is_retrieved(ranks: bool) -> None:
    without, retriever = CountingModel(WordTokenizer(WORDS)), SharedWordsRetriever(PASSAGES)
    options = PlanOptions(document_tokens=4, max_length=20, bos="always")
    source = FromRetriever(retriever, PASSAGES, config={})
    model, reranker = (begins(), ZeroShot(model=without)) if ranks else (without, None)
    with pytest.raises(ModelError, match='`bos="always"`'):
        evaluate_text("a b c d e f g", model, options, source=source, parts=Parts(reranker=reranker))
    assert retriever.queries == []


def reads(semantics: Semantics, bos: Bos = "auto") -> tuple[list[str], list[str]]:
    """The first word of everything that is read with passages, and without."""
    model = begins()
    options = PlanOptions(semantics=semantics, stride=2, query_tokens=2, document_tokens=4, max_length=8, bos=bos)
    source = FromRetriever(SharedWordsRetriever(PASSAGES), PASSAGES, config={})
    evaluate_text("a b c d e a b h a b", model, options, source=source)
    with_passages, model.reads = model.reads, []
    evaluate_text("a b c d e a b h a b", model, options)
    words = model.tokenizer.words
    return [words[read[0]] for read in with_passages], [words[read[0]] for read in model.reads]


def test_readings_with_passages_and_without_begin_alike() -> None:
    """Also the first stride, and one for which nothing is found."""
    with_passages, without = reads("paper")
    assert set(with_passages) == set(without) == {"<begin>"}
    with_passages, without = reads("paper", "never")
    assert "<begin>" not in {*with_passages, *without}
    with_passages, without = reads("official")
    assert with_passages == ["a", "<begin>"], "the published code: documents alone"
    assert "<begin>" not in without


class Logits:
    """The fake as the plain loops know models: logits of every place at once."""

    def __init__(self, model: CountingModel) -> None:
        self.model = model

    def __call__(self, input_ids: torch.Tensor) -> SimpleNamespace:
        (read,) = input_ids.numpy()
        rows = [self.model.next_log_probs_V(read[: place + 1]) for place in range(len(read))]
        return SimpleNamespace(logits=torch.tensor(np.stack(rows))[None])


@st.composite
def plans(draw: st.DrawFn) -> PlanOptions:
    stride = draw(st.integers(1, 4))
    block = stride * draw(st.integers(1, 3))
    document = draw(st.integers(1, 6))
    return PlanOptions(
        stride=stride,
        block=block,
        document_tokens=document,
        max_length=draw(st.integers(2 * document + block, 2 * document + block + 12)),
        query_tokens=3,
        windows=draw(st.sampled_from(["sliding", "blocked"])),
        bos=draw(st.sampled_from(["auto", "always", "never"])),
    )


@settings(max_examples=40)
@given(plans(), st.integers(2, 40), st.integers(0, 10), st.booleans(), st.booleans())
def test_random_plans_equal_the_plain_loop(
    options: PlanOptions, tokens: int, shift: int, adds_itself: bool, together: bool
) -> None:
    """One document, an ensemble of one, and several in one context, whether the tokenizer adds its BOS or not."""
    model = begins()
    if not adds_itself:
        model.tokenizer.special_tokens = SpecialTokens(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), BEGIN)
    first = [BEGIN] if options.bos == "always" or (options.bos == "auto" and adds_itself) else []
    text = " ".join(WORDS[(place * place + shift) % 8] for place in range(tokens))
    prepared = prepare_text(text, model.tokenizer, options)
    rows = np.arange(len(prepared.plan))[:, None]
    numbers_QK = np.where(rows % 4 == 3, NO_PASSAGE, (rows + shift + np.arange(2)) % len(PASSAGES)).astype(np.int64)
    numbers_QK[~prepared.plan.retrieves_R] = NO_PASSAGE
    hits = Hits(numbers_QK=numbers_QK, scores_QK=np.zeros(numbers_QK.shape, dtype=np.float32))

    def document(number: int) -> list[int]:
        return [*first, *model.tokenizer.encode(PASSAGES[number].text)][: options.document_tokens]

    def joined(pair: list[int]) -> list[int]:
        if together:
            one = " ".join(PASSAGES[number].text for number in pair)
            return [*first, *model.tokenizer.encode(one)][: options.document_tokens]
        return [*document(pair[0]), *model.tokenizer.encode(PASSAGES[pair[1]].text)[: options.document_tokens]]

    def expected(documents: list[list[int]]) -> list[float]:
        block = options.block if options.windows == "blocked" else None
        return paper.log_probs(
            Logits(model),  # type: ignore[arg-type]
            prepared.tokens.tolist(),
            documents,
            stride=options.stride,
            max_length=options.max_length,
            block=block,
            first=first,
        )

    one = expected([[] if number == NO_PASSAGE else document(number) for number in numbers_QK[:, 0].tolist()])
    np.testing.assert_allclose(score_text(prepared, model, hits.first(1), PASSAGES).log_probs_T, one, rtol=1e-5)
    ensemble = score_text(prepared, model, hits, PASSAGES, Parts(reader=Ensemble(documents=1)))
    np.testing.assert_allclose(ensemble.log_probs_T, one, rtol=1e-5)
    several = Concatenation(cut_together=together)
    scored = score_text(prepared, model, hits, PASSAGES, Parts(reader=several))
    two = expected([[] if pair[0] == NO_PASSAGE else joined(pair) for pair in numbers_QK.tolist()])
    np.testing.assert_allclose(scored.log_probs_T, two, rtol=1e-5)


def test_passages_cut_together_are_one_text() -> None:
    tokenizer = WordTokenizer(WORDS, begins=True)
    options = PlanOptions(document_tokens=8)
    documents = PassageDocuments.planned(PASSAGES, tokenizer, options)

    def joined(*, cut_together: bool) -> PromptPrefix:
        (prompt_prefix,) = Concatenation(cut_together=cut_together).prompt_prefixes([(0, 0.0), (1, 0.0)], documents)
        return prompt_prefix

    assert tokenizer.decode(joined(cut_together=True).tokens) == "<begin> c d c d c d e "
    assert tokenizer.decode(joined(cut_together=False).tokens) == "<begin> c d c d c d e f "
    assert joined(cut_together=True).passages == (0, 1)
    (cut,) = Concatenation(documents=3, cut_together=True).prompt_prefixes([(0, 0.0), (1, 0.0), (0, 0.0)], documents)
    assert cut.passages == (0, 1), "nothing is left of the third"
    assert documents[NO_PASSAGE].tolist() == [BEGIN]


def options(**values: Any) -> GenerationOptions:
    return GenerationOptions(**({"new_tokens": 4, "stride": 2, "query_tokens": 3, "document_tokens": 4} | values))


@pytest.mark.parametrize(("bos", "count"), [("auto", 1), ("always", 1), ("never", 0)])
def test_generation_reads_one_bos(bos: Bos, count: int) -> None:
    """Plain, with passages, in strides without hits, and where the window slides."""
    for prompt in ("a b b", "h h"):
        for source in (None, FromRetriever(SharedWordsRetriever(PASSAGES), PASSAGES, config={})):
            model = begins()
            own = options(new_tokens=12, max_length=8, bos=bos)
            list(generate(prompt, model, own, source))
            assert all(read.tolist().count(BEGIN) == count for read in model.reads)
            assert all(read[0] == BEGIN for read in model.reads) or not count


def test_a_prompt_with_a_bos_of_its_own_has_it_once() -> None:
    model = begins()
    for prompt in ("<begin> a b", "<begin>"):
        model.reads.clear()
        pieces = list(generate(prompt, model, options()))
        assert model.reads[0].tolist() == model.tokenizer.encode(prompt).tolist()
        assert len(pieces) == 4
    model.reads.clear()
    list(generate("<begin> a b", model, options(bos="never")))
    assert model.reads[0].tolist()[:2] == [BEGIN, model.tokenizer.words.index("a")]


@pytest.mark.parametrize("bos", ["auto", "never"])
@pytest.mark.parametrize("prompt", ["a b b", "<begin> a b b"])
@pytest.mark.parametrize("max_length", [None, 7])
def test_what_was_generated_without_passages_gains_nothing(bos: Bos, prompt: str, max_length: int | None) -> None:
    model = begins()
    pieces = list(generate(prompt, model, options(new_tokens=9, max_length=max_length, bos=bos)))
    traced = traced_generation(prompt, pieces, model, (), max_length, bos)
    assert len(traced) == 9
    np.testing.assert_allclose(traced.gain_T, 0, atol=1e-6)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_length": 65}, "`max_length` 65 is beyond the 64 tokens that counting can read"),
        ({"max_length": 5}, "`document_tokens` 4 and `stride` 2 do not fit together into `max_length` 5"),
        ({"document_tokens": 63}, "`document_tokens` 63 and `stride` 2 do not fit together into `max_length` 64"),
    ],
)
def test_what_cannot_work_later_is_refused_before_the_first_token(values: dict[str, Any], message: str) -> None:
    model = begins()
    with pytest.raises(UsageError, match=message):
        TokenWriter(model, options(**values))
    assert model.reads == []
    with pytest.raises(UsageError, match="`max_length` must be at least 1, not 0"):
        options(max_length=0)


def test_the_token_before_rolling_windows() -> None:
    """The literal <|endoftext|>, else the unknown token (see `ModelTokenizer.token_of`), else the tokenizer's own."""
    rolling = PlanOptions(semantics="official", windows="rolling", stride=3, query_tokens=2, document_tokens=4)
    known, own = WordTokenizer([*WORDS, "<|endoftext|>"], begins=True), WordTokenizer(WORDS)
    assert known.decode(prepare_text("a b", known, rolling).tokens) == "<|endoftext|> <begin> a b "
    assert own.decode(prepare_text("a b", own, rolling).tokens) == "<end> a b "
    of_bytes = byte_tokenizer(with_bos=False)
    assert ModelTokenizer(of_bytes).token_of("<|endoftext|>") is None
    of_bytes.unk_token = "<pad>"
    assert ModelTokenizer(of_bytes).token_of("<|endoftext|>") == 258
    of_bytes.add_special_tokens({"additional_special_tokens": ["<|endoftext|>"]})
    assert ModelTokenizer(of_bytes).token_of("<|endoftext|>") == 259
    with pytest.raises(TextError, match="the text is empty"):
        prepare_text(" ", known, rolling)
    tokenizer = WordTokenizer(WORDS)
    tokenizer.special_tokens = SpecialTokens(np.array([], dtype=np.int64), np.array([0]), None)
    prepared = prepare_text("a b c ", tokenizer, rolling, limit_tokens=2)
    assert tokenizer.decode(prepared.tokens) == "<end> a b <end> "
    assert prepared.token_texts(np.arange(1, 4)) == ("", ["a", " b", ""])
