"""Plans against the papers' windows and REPLUG's code, worked out by hand and by plain loops."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ralm.errors import ModelError, TextError, UsageError
from ralm.lm.local.model import LocalLanguageModel
from ralm.reading.parts import Parts
from ralm.reading.plan import PlanOptions, make_plan, stride_request
from ralm.reading.readers import Ensemble
from ralm.reading.score import score_text
from ralm.reading.sources import FromRetriever
from ralm.reading.tokens import PassageDocuments, prepare_text
from ralm.reranking.zero_shot import ZeroShot
from ralm.retrieval.random import RandomRetriever
from tests.fakes import CountingModel, SharedWordsRetriever, WordTokenizer, passages_of
from tests.reading.loops import PASSAGES, TEXT
from tests.reference import replug
from tests.tiny_models import EOS


def small(**options: object) -> PlanOptions:
    values = {"stride": 4, "query_tokens": 6, "document_tokens": 5, "max_length": 16, "block": 8} | options
    return PlanOptions(**values)  # type: ignore[arg-type]


@st.composite
def plans(draw: st.DrawFn, /, **fixed: object) -> tuple[int, PlanOptions]:
    stride = draw(st.integers(1, 6))
    block = stride * draw(st.integers(1, 4))
    document = draw(st.integers(1, 8))
    options = {
        "stride": stride,
        "block": block,
        "document_tokens": document,
        "max_length": draw(st.integers(block + document, block + document + 20)),
        "query_tokens": draw(st.integers(1, 12)),
        "windows": draw(st.sampled_from(["sliding", "blocked"])),
        "semantics": draw(st.sampled_from(["paper", "official"])),
    } | fixed
    return draw(st.integers(2, 90)), PlanOptions(**options)  # type: ignore[arg-type]


def test_paper_plan_by_hand() -> None:
    plan = make_plan(22, small())
    assert plan.begin_R.tolist() == [0, 4, 8, 12, 16, 20]
    assert plan.end_R.tolist() == [4, 8, 12, 16, 20, 22]
    assert plan.target_begin_R.tolist() == [1, 4, 8, 12, 16, 20]
    assert plan.query_begin_R.tolist() == [0, 0, 2, 6, 10, 14]
    assert plan.retrieves_R.tolist() == [False, True, True, True, True, True]
    assert plan.context_begin_R.tolist() == [0, 0, 0, 0, 4, 6]
    assert plan.room_R.tolist() == [12, 8, 4, 0, 0, 0]
    # a document of 5 tokens: behind 8 tokens of room none is pushed out, behind 4 one is, behind 0 all 5 are
    assert [plan.context_begins(row, 5) for row in range(1, 6)] == [0, 1, 5, 9, 11]


def test_official_plan_by_hand() -> None:
    plan = make_plan(22, small(semantics="official"))
    assert plan.begin_R.tolist() == [0, 16, 20]
    assert plan.end_R.tolist() == [16, 20, 22]
    assert plan.retrieves_R.tolist() == [False, True, True]
    assert plan.context_begin_R.tolist() == [0, 4, 8], "windows begin at 0, s, 2s, the last one short"
    assert [plan.context_begins(row, 5) for row in (1, 2)] == [9, 13], "the document overwrites"
    assert plan.counted_tokens == 22
    for tokens in (2, 15, 16):  # no longer than the window
        plan = make_plan(tokens, small(semantics="official"))
        assert (plan.begin_R.tolist(), plan.end_R.tolist(), plan.retrieves_R.tolist()) == ([0], [tokens], [False])


@given(plans(), st.integers(0, 8))
def test_what_is_read_fits_the_model_and_lies_before_the_targets(case: tuple[int, PlanOptions], document: int) -> None:
    """Every token but the first is a target once. The paper drops the oldest tokens only as far as needed."""
    tokens, options = case
    document = min(document, options.document_tokens)
    plan = make_plan(tokens, options)
    targets = [place for row in range(len(plan)) for place in range(plan.target_begin_R[row], plan.end_R[row])]
    assert targets == list(range(1, tokens))
    for row in range(len(plan)):
        begin = plan.context_begins(row, document if plan.retrieves_R[row] else 0)
        read = int(plan.end_R[row]) - begin + (document if plan.retrieves_R[row] else 0)
        assert read <= options.max_length
        assert 0 <= begin <= plan.begin_R[row]
        if options.semantics == "paper" and options.windows == "sliding":
            assert read == options.max_length or begin == 0


@given(plans(windows="sliding"))
def test_sliding_windows_are_blocks_of_one_stride(case: tuple[int, PlanOptions]) -> None:
    tokens, sliding = case
    blocked = replace(sliding, windows="blocked", block=sliding.stride)
    one, other = make_plan(tokens, sliding), make_plan(tokens, blocked)
    for column in ("begin_R", "end_R", "context_begin_R", "room_R", "query_begin_R", "retrieves_R"):
        np.testing.assert_array_equal(getattr(one, column), getattr(other, column))


@given(plans(windows="blocked"))
def test_rows_of_a_block_share_a_beginning(case: tuple[int, PlanOptions]) -> None:
    tokens, options = case
    plan = make_plan(tokens, options)
    first = options.max_length if options.semantics == "official" else 0
    blocks: dict[int, set[int]] = {}
    for row in np.flatnonzero(plan.retrieves_R):
        block = (int(plan.begin_R[row]) - first) // options.block
        blocks.setdefault(block, set()).add(plan.context_begins(int(row), options.document_tokens))
    begins = [begin for _, begin in sorted(blocks.items())]
    assert all(len(begin) == 1 for begin in begins[1:]), "only the first block may be cut by the beginning of the text"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"semantics": "mine"}, "`semantics` must be one of paper, official, not 'mine'"),
        ({"windows": "jumping"}, "`windows` must be one of sliding, blocked"),
        ({"bos": "twice"}, "`bos` must be one of auto, always, never, not 'twice'"),
        ({"bos": "never", "semantics": "official"}, '`bos="never"` is not what the published code does'),
        ({"windows": "blocked", "block": 6}, "`block` must be a multiple of `stride` 4, not 6"),
        ({"document_tokens": 13}, "`document_tokens` 13 and `stride` 4 do not fit together into `max_length` 16"),
        ({"windows": "blocked", "document_tokens": 9}, "`document_tokens` 9 and `block` 8 do not fit"),
        ({"windows": "rolling"}, 'REPLUG.s code: give `semantics="official"`'),
        (
            {"semantics": "official", "windows": "rolling", "document_tokens": 7},
            "7 and `stride` 4 and `query_tokens` 6 do not fit together into",
        ),
    ],
)
def test_bad_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        small(**options)

    for tokens in (0, 1):
        with pytest.raises(TextError, match="give a longer text"):
            make_plan(tokens, small())


ROLLING = PlanOptions(
    semantics="official", windows="rolling", stride=9, query_tokens=5, document_tokens=10, max_length=32
)


def test_the_sizes_that_the_published_code_gives_for_128_and_768() -> None:
    options = replace(ROLLING, stride=769, query_tokens=127, document_tokens=128, max_length=1024)
    plan = make_plan(1 + 896 + 769 + 100, options)
    assert plan.begin_R.tolist() == [0, 897, 1666]
    assert (plan.end_R - plan.target_begin_R).tolist() == [896, 769, 100]
    assert (plan.query_end_R - plan.query_begin_R).tolist() == [0, 127, 796], "a short last window asks with more"
    assert (plan.begin_R - plan.query_end_R).tolist() == [0, 1, 1], (
        "the last token before the targets is not asked with"
    )
    tokens_read = plan.end_R - 1 - plan.context_begin_R
    assert tokens_read.tolist() == [896] * 3
    assert plan.counted_tokens == 896 + 769 + 100


@given(st.integers(1, 90), st.integers(1, 9), st.integers(1, 7), st.integers(0, 4))
def test_equal_the_loop_of_the_code(text: int, context_len: int, pred_len: int, document: int) -> None:
    if context_len == 1:
        context_len = 2  # with 1 the published code asks with nothing, and so retrieves nothing
    length = context_len + pred_len + 4
    options = replace(ROLLING, stride=pred_len + 1, query_tokens=context_len - 1, document_tokens=4, max_length=length)
    tokens = np.arange(100, 101 + text)
    plan = make_plan(len(tokens), options)
    expected = replug.windows(tokens[1:].tolist(), 100, context_len, pred_len)
    assert len(plan) == len(expected)
    for row, window in enumerate(expected):
        ids = np.arange(document if plan.retrieves_R[row] else 0)
        request = stride_request(tokens, plan, row, ids)
        tokens_read = np.concatenate([request.context, request.targets[:-1]])
        assert tokens_read.tolist() == window.read
        assert request.targets.tolist() == window.predicted
        assert tokens[plan.query_begin_R[row] : plan.query_end_R[row]].tolist() == window.query
        assert bool(plan.retrieves_R[row]) == bool(window.query)
        assert len(request) - 1 <= length


@pytest.mark.parametrize("tokens", [5, 14, 15, 83])
def test_an_ensemble_of_every_family(model: LocalLanguageModel, tokens: int) -> None:
    prepared = prepare_text(TEXT, model.tokenizer, ROLLING, limit_tokens=tokens)
    hits, _ = FromRetriever(RandomRetriever(len(PASSAGES)), PASSAGES).find(prepared, model.tokenizer, 3)
    hits.scores_QK[:] = np.sin(np.arange(hits.scores_QK.size)).reshape(hits.scores_QK.shape)
    scored = score_text(prepared, model, hits, PASSAGES, Parts(reader=Ensemble(documents=3)))
    documents = PassageDocuments(PASSAGES, model.tokenizer, 10)
    text = model.tokenizer.encode_document(TEXT[:tokens], 1000).tolist()
    made = replug.windows(text, EOS, 6, 8)
    expected = replug.log_probs(
        model.model, made, lambda row: [(documents[number].tolist(), score) for number, score in hits.of(row)]
    )
    assert len(expected) == len(text), "the first token of the text is a target too, and a BOS before it"
    np.testing.assert_allclose(scored.log_probs_T, expected, rtol=1e-4, atol=1e-5)
    assert prepared.plan.counted_tokens == len(text)
    assert prepared.token_texts(scored.positions_T) == ("", [""] * (len(text) - tokens) + list(TEXT[:tokens]))


def test_queries_leave_out_the_token_before_the_targets() -> None:
    text = "a b c d e f g h i j k"
    options = replace(ROLLING, stride=3, query_tokens=2, document_tokens=4, max_length=9)
    tokenizer = WordTokenizer()
    retriever = SharedWordsRetriever(PASSAGES)
    FromRetriever(retriever, PASSAGES).find(prepare_text(text, tokenizer, options), tokenizer, 1)
    assert retriever.queries == ["c d ", "f g "]  # 3 targets from f and from i on


def test_reranking_by_the_tokens_before_the_targets() -> None:
    model = CountingModel(WordTokenizer(), max_length=9)
    options = replace(ROLLING, stride=3, query_tokens=2, document_tokens=4, max_length=9)
    prepared = prepare_text("a b c d e f g h i j k", model.tokenizer, options)
    passages = passages_of("zz zz", "d e d e")
    hits, _ = FromRetriever(RandomRetriever(2), passages).find(prepared, model.tokenizer, 2)
    scored = score_text(prepared, model, hits, passages, Parts(reranker=ZeroShot(tokens=2)))
    assert scored.passages_T[5:8].tolist() == [1, 1, 1]
    with pytest.raises(UsageError, match="`rerank` tokens 3 are more than the `query_tokens` 2 that"):
        score_text(prepared, model, hits, passages, Parts(reranker=ZeroShot(tokens=3)))


def test_a_model_without_an_end_of_text_token_is_refused() -> None:
    tokenizer = WordTokenizer()
    tokenizer.end_token = None
    with pytest.raises(ModelError, match='`windows="rolling"` begin with the token <.endoftext.>, the unknown'):
        prepare_text(TEXT, tokenizer, ROLLING)
