"""The tables of costs in docs/cluster.md are what `python -m benchmarks.cluster_cost` prints, from figures that stand
where it says."""

from pathlib import Path

import pytest

from benchmarks import cluster_cost
from benchmarks.cluster_cost import FIGURES, SCORED, SIZES, Figure, Size, building, encoding, searching, tables, two
from ralm.distributed import indexing

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("figure", [*FIGURES.values(), *SCORED.values()], ids=lambda figure: figure.words)
def test_the_figures_stand_where_they_are_said_to(figure: Figure) -> None:
    page = " ".join((ROOT / figure.page).read_text(encoding="utf-8").split())
    assert figure.words in page
    assert any(written in figure.words for written in (f"{figure.value:,}", f"{figure.value:,.0f}"))


@pytest.mark.parametrize("title", tables())
def test_the_page_has_the_tables_that_are_printed(title: str, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    assert f"\n\n{tables()[title]}" in page, "run `python -m benchmarks.cluster_cost`"


def test_the_arithmetic() -> None:
    """By hand, as the page describes it."""
    middle = SIZES[1]
    hours = 300e6 * (23.0 + 0.3 + 2 * 5.5) / 240_000 / 3600
    assert building(middle, 2.0)["processor hours"] == two(hours)
    assert building(middle, 2.0)["price"] == two(2 * hours)
    assert building(middle, 1)["index, GB"] == two(300e6 * 924 / 1e9)
    assert building(middle, 1)["disk meanwhile, GB"] == two(3 * 300e6 * 924 / 1e9)
    terms = 213_709 * (64 * (1 << 25) / 546 / 250_539) ** 0.53
    first_round = terms * (200 + 8 * 64) + 4 * 64 * (1 << 25) / 546
    assert cluster_cost.joining_gb(middle) == pytest.approx(first_round / 1e9 + 0.256 + 0.238, rel=1e-3)
    assert encoding(middle, 1)["processor hours"] == two(300e6 / 29 / 3600)
    assert encoding(middle, 1)["vectors (`Flat`), GB"] == two(300e6 * 384 * 4 / 1e9)
    assert searching(middle, 1)["milliseconds a query, k = 1"] == two(0.161 * (300 / 16 / 2) ** 0.88 * 16)
    assert searching(middle, 1)["k = 16"] == two(0.254 * (300 / 16 / 2) ** 0.68 * 16)


def test_rounds_of_joining_are_those_of_the_program() -> None:
    assert cluster_cost._JOINED == indexing._MAX_JOINED
    assert [cluster_cost.rounds(Size(passages, 1, 1)) for passages in (1_000, 3_900_000, 4_000_000)] == [1, 1, 2]


def test_no_index_is_larger_than_bm25_can_number() -> None:
    with pytest.raises(AssertionError, match="cannot number"):
        Size(3_000_000_000, 1, 64)


@pytest.mark.parametrize(("value", "shown"), [(0.0344, "0.034"), (9.83, "9.8"), (28736.0, "29,000"), (0.0, "0")])
def test_two_digits(value: float, shown: str) -> None:
    assert two(value) == shown
