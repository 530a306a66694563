"""The plot of a sweep is a picture; skipped where matplotlib is absent."""

from pathlib import Path

import pytest
from pydantic import JsonValue

ROWS: list[dict[str, JsonValue]] = [
    {"documents": value, "token_perplexity": with_passages, "none_token_perplexity": 9.0}
    for value, with_passages in (("10", 6.0), ("1", 8.0), ("2", 7.0))
]


@pytest.mark.parametrize("names", [False, True])
def test_numbers_are_a_line_and_names_are_bars(tmp_path: Path, names: bool) -> None:
    pytest.importorskip("matplotlib")
    from ralm.runs.plot import draw_sweep

    rows = [{**row, "documents": f"k{row['documents']}"} for row in ROWS] if names else ROWS
    draw_sweep("documents", rows, tmp_path / "sweep.png")
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG\r\n")
