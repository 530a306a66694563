"""`ralm tune`: what it searches and reads, what a setting costs, its file, its page, and what is rejected."""

import json
import time
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ralm.advice.held_out import count_copies
from ralm.advice.trials import DEFAULTS, NONE, MeteredScorer, Trial, combinations, read_document
from ralm.advice.tune import TuneOptions, Tuning, above_front, documents_of_tuning, drawn, tune
from ralm.errors import BudgetError, UsageError
from ralm.evaluation.perplexity import evaluate_text
from ralm.lm.registry import ModelOptions, load_language_model
from ralm.lm.scoring import Scorer
from ralm.protocols import Reader, Reranker, WritingModel
from ralm.reading.concatenation import Concatenation
from ralm.reading.contrast import Contrast
from ralm.reading.ensemble import Ensemble
from ralm.reading.in_context import InContext
from ralm.reading.mixers import PosteriorWeights
from ralm.reading.plan import PlanOptions
from ralm.reading.sources import FromRetriever
from ralm.records import Passage
from ralm.reranking.zero_shot import ZeroShot
from tests.cli.program import done, failed, printed, ralm, write_rows
from tests.fakes import CountingModel, SharedWordsRetriever, WordTokenizer

OPTIONS = TuneOptions(trials=40, units=32, tokens=64, held_out=0.5, budget=0)
PLAN = PlanOptions(stride=16, query_tokens=16, document_tokens=32, max_length=400)


def document(number: int, words: int = 90) -> str:
    """A text of its own: words of one of four topics, and common ones."""
    draws = np.random.default_rng(number)
    return " ".join(f"topic{number % 4}x{draws.integers(12)}" if draws.random() < 0.7 else "the" for _ in range(words))


PASSAGES = [Passage(number, f"p{number}", "", document(100 + number, 40)) for number in range(12)]
SOURCE = FromRetriever(SharedWordsRetriever(PASSAGES), PASSAGES)
TEXTS = [document(number) for number in range(32)]


def trial(role: str = "", *, stride: int = 16, reader: Reader | None = None, **parts: Any) -> Trial:
    plan = PlanOptions(stride=stride, query_tokens=16, document_tokens=32, max_length=400)
    name = "ensemble" if isinstance(reader, Ensemble) else "in-context"
    options = {"stride": stride, "reader": name, "documents": getattr(reader, "documents", 1)}
    return Trial(options=options, plan=plan, reader=reader or InContext(), source=SOURCE, role=role, **parts)


READERS = (None, Ensemble(documents=2), Ensemble(documents=4))
TRIALS = [
    Trial.without_passages(PLAN),
    trial(DEFAULTS),
    *(trial(stride=stride, reader=reader) for stride in (8, 16, 32) for reader in READERS),
]


def counting(**more: Any) -> CountingModel:
    return CountingModel(WordTokenizer(), vocabulary=200, max_length=400, **more)


def tuned(options: TuneOptions = OPTIONS, trials: Sequence[Trial] = TRIALS, held: Sequence[str] = TEXTS[16:]) -> Tuning:
    return tune(trials, counting(), (TEXTS[:16], held), options)


def test_the_best_of_all_settings_is_found_with_fewer_passes() -> None:
    found = tuned()
    scorer = Scorer(counting(), progress=False)
    sums = [sum(read_document(one, text, scorer, 64).nats for text in TEXTS[:16]) for one in TRIALS]
    best = TRIALS[int(np.argmin(sums))]
    assert (found.chosen.name, found.chosen.toml) == (best.name, best.toml)
    assert found.stopped == "measured"
    assert found.searched == 16
    assert sum(one.documents for one in found.trials) < 0.8 * 16 * len(TRIALS)


def test_held_out_figures_are_those_of_evaluations() -> None:
    found, model = tuned(), counting()
    assert found.held_out is not None
    chosen = next(one for one in TRIALS if (one.name, one.toml) == (found.chosen.name, found.chosen.toml))
    for name, one in ((NONE, TRIALS[0]), (DEFAULTS, TRIALS[1]), ("chosen", chosen)):
        nats, tokens = 0.0, 0
        for text in TEXTS[16:]:
            measures = evaluate_text(
                text, model, one.plan, source=one.source, reader=one.reader, limit_tokens=64
            ).reading.measures
            nats, tokens = nats + measures.nll, tokens + measures.tokens
        assert found.held_out.perplexity[name] == pytest.approx(np.exp(nats / tokens), rel=1e-5)
    shown = found.held_out.perplexity
    assert found.held_out.against_none.lower == pytest.approx(1 - shown["chosen"] / shown[NONE], rel=1e-5)
    assert found.held_out.against_none.low <= found.held_out.against_none.lower <= found.held_out.against_none.high


def test_the_search_never_looks_at_held_out_documents() -> None:
    found, other = tuned(), tuned(held=[document(number, 120) for number in range(50, 60)])
    assert found.trials == other.trials
    assert found.chosen == other.chosen
    assert found.held_out != other.held_out


def test_the_front_gets_better_as_it_costs_more() -> None:
    front = tuned().front
    assert len(front) > 2
    assert [one.cost for one in front] == sorted(one.cost for one in front)
    assert [one.ratio for one in front] == sorted((one.ratio for one in front), reverse=True)
    assert front[0].name == NONE


def test_a_cost_that_is_too_high_is_not_chosen() -> None:
    free = tuned()
    cheaper = tuned(TuneOptions(trials=40, units=32, tokens=64, budget=0, max_cost=0.6 * free.chosen.cost))
    assert cheaper.chosen.cost <= 0.6 * free.chosen.cost
    assert cheaper.chosen.ratio > free.chosen.ratio
    with pytest.raises(UsageError, match=r"no setting reads at most `max_cost` 0.1 tokens"):
        tuned(TuneOptions(trials=40, units=32, tokens=64, budget=0, max_cost=0.1))


def test_a_budget_that_ends_leaves_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(np.arange(100_000) * 0.2)
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)))
    found = tuned(TuneOptions(trials=40, units=32, tokens=64, budget=0.5))
    assert found.stopped == "budget"
    assert found.searched < 16
    assert found.sentence.startswith("Best so far, when the budget ended, is ")
    with pytest.raises(BudgetError, match="before every setting had read one document: raise it"):
        tuned(TuneOptions(trials=40, units=32, tokens=64, budget=0.01))


def test_settings_that_a_model_cannot_read_are_skipped_and_counted() -> None:
    contrast = Ensemble(mixer=Contrast())
    found = tuned(trials=[*TRIALS, trial(stride=8, reader=contrast), trial(stride=16, reader=contrast)])
    assert found.skipped.startswith(f"2 of {len(TRIALS) + 2} settings cannot be read and were left out: counting gives")
    assert found.chosen == tuned().chosen


@pytest.fixture(scope="module")
def tiny() -> WritingModel:
    return load_language_model("ralm-tiny", ModelOptions(dtype="float32"))


@pytest.mark.parametrize(
    ("reader", "reranker"),
    [
        (InContext(), None),
        (Ensemble(documents=3), None),
        (Ensemble(documents=2, mixer=PosteriorWeights()), None),
        (Concatenation(documents=2), None),
        (InContext(), ZeroShot(candidates=3, tokens=4)),
    ],
)
def test_a_cost_is_what_a_model_reads_for_the_setting_alone(
    tiny: WritingModel, reader: Reader, reranker: Reranker | None
) -> None:
    """Whatever others read before: here all of it, and more."""
    one = trial(reader=reader, reranker=reranker)
    shared = Scorer(tiny, progress=False)
    for stride in (16, 8):
        read_document(trial(stride=stride, reader=Ensemble(documents=4)), TEXTS[0], shared, 64)
    costs = [read_document(one, TEXTS[0], shared, 64) for _ in range(2)]
    assert costs[0] == costs[1]

    class Counted(Scorer):
        read = 0

        def _model_log_probs(self, sequences: Any, *more: Any) -> Any:
            self.read += sum(map(len, sequences))
            return super()._model_log_probs(sequences, *more)

    alone = Counted(tiny, progress=False)
    found = evaluate_text(
        TEXTS[0], alone, one.plan, source=SOURCE, reader=reader, reranker=reranker, limit_tokens=64
    ).reading.measures
    assert costs[0].read == alone.read
    assert costs[0].nats == pytest.approx(found.nll, rel=1e-5)
    assert isinstance(Scorer.of(MeteredScorer(alone)), MeteredScorer)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=12))
def test_the_distance_to_the_front_is_that_of_all_pairs(settings: list[tuple[int, int]]) -> None:
    nats_S, cost_S = (np.array(column, dtype=np.float64) for column in zip(*settings, strict=True))
    above_S, best_S = above_front(nats_S, cost_S)
    for place, (nats, cost) in enumerate(settings):
        cheaper = [other for other, other_cost in settings if other_cost <= cost]
        assert above_S[place] == nats - min(cheaper)
        assert settings[best_S[place]][0] == min(cheaper)


@given(
    st.dictionaries(
        st.from_regex(r"[a-z-]+", fullmatch=True),
        st.one_of(
            st.booleans(),
            st.integers(-(2**62), 2**62),
            st.floats(allow_nan=False, allow_infinity=False),
            st.text(),
            st.lists(st.text()),
        ),
    )
)
def test_a_settings_file_reads_back(options: dict[str, Any]) -> None:
    one = Trial(options=options, plan=PLAN, reader=InContext(), source=None)
    assert tomllib.loads(one.toml) == options


def test_settings_are_drawn_if_there_are_too_many() -> None:
    some = drawn(TRIALS, TuneOptions(trials=5, seed=3))
    assert [one.role for one in some[:2]] == [NONE, DEFAULTS]
    assert len({id(one) for one in some}) == 5
    assert len(combinations({"stride"}, ["bm25"])) * 4 == len(combinations((), ["bm25"]))


def test_documents_that_stand_in_the_corpus_are_counted(work: Path, tmp_path: Path) -> None:
    assert tuned().standing_in == 0
    copies = [replace(PASSAGES[number], text=TEXTS[number]) for number in range(10)]
    beginnings = [replace(PASSAGES[number], text=" ".join(TEXTS[number].split()[:30])) for number in (10, 11)]
    others = [f"{' '.join(TEXTS[20].split()[:20])} {document(200)}"]
    passages = [*copies, *beginnings, replace(PASSAGES[0], number=12, text=others[0])]
    assert count_copies(TEXTS, SharedWordsRetriever(passages), passages) == 12
    rows = [{"id": f"c{number}", "text": TEXTS[number]} for number in range(5)]
    done("index", write_rows(tmp_path / "copies.jsonl", rows), "--out", tmp_path / "copies")
    asked = ("--lm", "ralm-tiny", "--index", tmp_path / "copies", *SHORT, "--seed", 1, "--units", 32)
    shown = done("tune", work / "text.jsonl", *asked).out
    assert "Stand in the index: 5 documents of the text" in shown


def test_documents_are_divided_and_too_few_are_rejected() -> None:
    searched, held = documents_of_tuning([*TEXTS, "short"], "the text", WordTokenizer(), OPTIONS)
    assert sorted([*searched, *held]) == sorted(TEXTS)
    assert (len(searched), len(held)) == (16, 16)
    with pytest.raises(
        UsageError, match="few has 15 documents of at least 64 tokens, too few to hold out any: give 16"
    ):
        documents_of_tuning([*TEXTS[:15], "short"], "few", WordTokenizer(), OPTIONS)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tune")
    write_rows(folder / "text.jsonl", [{"id": f"t{number}", "text": text} for number, text in enumerate(TEXTS)])
    write_rows(folder / "corpus.jsonl", [{"id": one.document_id, "text": one.text} for one in PASSAGES])
    done("index", folder / "corpus.jsonl", "--out", folder / "index", "--words", 20)
    return folder


SHORT = ("--units", 16, "--unit-tokens", 64, "--document-tokens", 24, "--trials", 8, "--budget", 0)


def test_the_program_prints_a_screen_and_writes_settings_that_others_take(work: Path, tmp_path: Path) -> None:
    asked = ("tune", work / "text.jsonl", "--lm", "ralm-tiny", "--index", work / "index", "--stride", 32, *SHORT)
    settings, page = tmp_path / "settings.toml", tmp_path / "page.html"
    shown = done(*asked, "--output", settings, "--html", page).out
    assert len(shown.splitlines()) <= 24
    found = printed(*asked)
    data = json.loads(page.read_text().split('id="data">')[1].split("</script>")[0])
    assert data["sentence"] == found["sentence"]
    assert all(tomllib.loads(one["toml"])["stride"] == 32 for one in found["trials"] if one["toml"])
    assert tomllib.loads(settings.read_text()) == tomllib.loads(found["chosen"]["toml"])
    flat = tmp_path / "flat.txt"
    flat.write_text(TEXTS[0])
    read = printed("eval", flat, "--lm", "ralm-tiny", "--index", work / "index", "--settings", settings)
    assert read["config"]["plan"]["stride"] == 32
    assert read["config"]["plan"]["document_tokens"] == 24
    failed(ralm(*asked, "--output", settings), 1, "settings.toml already exists")


def test_what_cannot_be_tuned_is_rejected(work: Path, tmp_path: Path) -> None:
    asked = ("--lm", "ralm-tiny", "--index", work / "index", *SHORT)
    short = tmp_path / "short.txt"
    short.write_text(TEXTS[0])
    failed(ralm("tune", short, *asked), 2, "short.txt has 1 documents of at least 64 tokens, too few to hold out any")
    failed(ralm("tune", work / "text.jsonl", "--lm", "ralm-tiny"), 2, "`ralm tune` reads passages: give --index.")
    failed(ralm("tune", work / "text.jsonl", *asked, "--retriever", "dense"), 2, "was not built for dense retrieval")
    failed(ralm("tune", work / "text.jsonl", *asked, "--block", 64), 2, "--block has no effect without --windows")
