"""Plans against the papers' windows, worked out by hand and by plain loops."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ralm.errors import TextError, UsageError
from ralm.reading.plan import PlanOptions, make_plan


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


ROLLING = {"semantics": "official", "windows": "rolling"}


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
        (ROLLING | {"document_tokens": 7}, "7 and `stride` 4 and `query_tokens` 6 do not fit together into"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        small(**options)

    for tokens in (0, 1):
        with pytest.raises(TextError, match="give a longer text"):
            make_plan(tokens, small())
