"""The page of a report: everything is in it, nothing of the text is markup, and a browser draws it."""

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ralm.evaluation.report import Report, render_report
from ralm.reading.provenance import TracedText
from ralm.records import NO_PASSAGE, Metadata, Passage, Provenance
from tests.browser import browser_command, needs_browser

NASTY = "</script><script>alert(1)</script>"


@pytest.fixture
def report() -> Report:
    text = TracedText(
        before="Once\n",
        texts=["upon", " a", " <b>time", "\n\n    ", NASTY],
        log_probs_T=np.log(np.array([0.5, 0.25, 0.9, 0.1, 0.2], dtype=np.float32)),
        baseline_T=np.log(np.array([0.25, 0.5, 0.1, 0.1, 0.1], dtype=np.float32)),
        provenance=Provenance(
            passages_TK=np.array([[7, 2], [7, 2], [2, 7], [NO_PASSAGE, NO_PASSAGE], [2, NO_PASSAGE]]),
            posteriors_TK=np.array([[0.75, 0.25], [0.5, 0.5], [0.9, 0.1], [1, 0], [1, 0]], dtype=np.float32),
        ),
        passages={2: Passage(2, "d2", "", f"two {NASTY}"), 7: Passage(7, "d7", f"Seven {NASTY}", "seven")},
    )
    return Report(
        title=f"tale {NASTY}",
        config={"model": {"name": NASTY}, "plan": {"stride": 4}},
        perplexities=(2.0, 4.0),
        text=text,
    )


def data_of(page: str) -> dict[str, object]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data: dict[str, object] = json.loads(found[1])
    return data


def test_the_page_holds_the_data_and_nothing_of_the_text_is_markup(report: Report) -> None:
    page = render_report(report)
    assert data_of(page) == json.loads(json.dumps(report.as_json()))
    assert page.count("<script") == 2
    assert NASTY not in page
    assert not re.search(r"https?://|//\w|@import|url\(|<link|src=", page.replace("//w", "")), "the page stands alone"


AWKWARD = ["{{data}}", "{{title}}", "</title><script>", "<!--<script>", "\u2028\u2029", "a\0b", "\udcff", "\\1\\g<0>"]


@pytest.mark.parametrize("awkward", [*AWKWARD, "\x1b]0;x\x07"])
def test_awkward_texts_and_names_change_nothing_but_themselves(report: Report, awkward: str) -> None:
    text = report.text
    named = replace(
        report,
        title=awkward,
        config={"model": {"name": awkward}},
        text=replace(text, before=awkward, passages={**text.passages, 2: Passage(2, awkward, awkward, awkward)}),
    )
    page = render_report(named)
    page.encode()
    shown: Any = data_of(page)
    assert (shown["title"], shown["settings"], shown["text_before"]) == (awkward, {"model": awkward}, awkward)
    assert {"document_id": awkward, "title": awkward, "text": awkward}.items() <= shown["passages"][0].items()
    assert (page.count("<script"), page.count("</script>"), page.count("</title>")) == (2, 2, 1)


def test_passages_are_those_of_the_tokens_shown_and_the_best_and_worst() -> None:
    tokens = 1000
    text = TracedText(
        before="",
        texts=["x"] * tokens,
        log_probs_T=np.roll(np.linspace(-1, 1, tokens, dtype=np.float32), 500),
        baseline_T=np.zeros(tokens, dtype=np.float32),
        provenance=Provenance(
            passages_TK=np.arange(tokens)[:, None], posteriors_TK=np.ones((tokens, 1), dtype=np.float32)
        ),
        passages={number: Passage(number, str(number), "", f"passage {number}") for number in range(tokens)},
    )
    whole = Report(text=text)
    begin: Any = replace(whole, shown_tokens=3).as_json()
    everything: Any = whole.as_json()
    listed = {row["passage"] for row in begin["passages"]}
    assert len(listed) == 403
    assert {0, 1, 2} <= listed
    assert begin["gain"] == everything["gain"]
    assert begin["passages"] == [row for row in everything["passages"] if row["passage"] in listed]
    assert begin["other_passages"]["count"] == 597
    assert everything["other_passages"] == {"count": 0, "gain": 0}
    given = sum(row["gain"] for row in begin["passages"]) + begin["other_passages"]["gain"]
    assert given == pytest.approx(begin["gain"]["nats"] - begin["gain"]["unattributed"], abs=1e-6)


def test_gains_and_contributions_of_the_data(report: Report) -> None:
    data: Any = report.as_json()
    texts, passages = data["text"], data["passages"]
    gains = np.log([2, 0.5, 9, 1, 2])
    np.testing.assert_allclose([token["gain"] for token in texts], gains, atol=1e-4)
    assert [row["passage"] for row in passages] == [2, 7]
    of_two = 0.25 * gains[0] + 0.5 * gains[1] + 0.9 * gains[2] + gains[4]
    assert passages[0]["gain"] == pytest.approx(of_two, abs=1e-5)
    assert texts[3]["passages"] == []


@pytest.mark.slow
@needs_browser
def test_a_browser_draws_it(report: Report, tmp_path: Path) -> None:
    """After its scripts the page shows every token and passage; keys move between tokens, a click marks a passage's."""
    acts = """<script>
      const text = document.getElementById("text");
      const press = key => text.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
      press("Home"); press("ArrowRight");
      document.body.dataset.focused = document.activeElement.id;
      document.body.dataset.card = document.getElementById("card").textContent;
      document.querySelector(".docs button").click();
      document.body.dataset.marked = document.querySelectorAll(".t.by").length;
      document.querySelectorAll("details").forEach(one => { one.open = true; });
    </script></body>"""
    file = tmp_path / "report.html"
    metadata: Metadata = {"url": 'https://example.org/?a="1"&b=2', "bad": "javascript:alert(1)", "page": 3}
    metadata = {**metadata, "tags": [{"<i>": None}]}
    passages = {number: replace(passage, metadata=metadata) for number, passage in report.text.passages.items()}
    page = render_report(replace(report, text=replace(report.text, passages=passages)))
    file.write_text(page.replace("</body>", acts), encoding="utf-8")
    flags = ["--enable-logging=stderr", "--virtual-time-budget=3000", "--dump-dom"]
    command = browser_command(tmp_path / "profile", *flags, file.as_uri())
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    dom = done.stdout
    assert "CONSOLE" not in done.stderr
    assert 'data-ready="true"' in dom
    assert len(re.findall(r'<span class="t [hd]', dom)) == 5
    assert "&lt;b&gt;time" in dom
    assert dom.count("<details open") == 2
    link = '<a href="https://example.org/?a=&quot;1&quot;&amp;b=2" target="_blank" rel="noopener noreferrer">'
    assert re.findall(r"<a href=[^>]*>[^<]*", dom) == [link + 'https://example.org/?a="1"&amp;b=2'] * 2
    assert dom.count("<dt>bad</dt><dd>javascript:alert(1)</dd>") == 2
    assert dom.count("<dt>page</dt><dd>3</dd>") == 2
    assert dom.count('<dt>tags</dt><dd>[{"&lt;i&gt;":null}]</dd>') == 2
    assert 'data-focused="t1"' in dom
    assert "\N{MINUS SIGN}0.69 nats" in dom
    assert 'data-marked="3"' in dom, "of the first passage of token 1, with at least a twentieth of the weight"
