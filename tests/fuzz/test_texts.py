"""Odd texts, passages and prompts through scoring, generation and search, with tokenizers of every kind.

Either there is a figure, and all of its parts add up, or there is one sentence: no traceback. RALM_FUZZ is the number
of cases a test tries instead of a few.
"""

import json
import os
import random
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from ralm.errors import RalmError
from ralm.evaluation.perplexity import Evaluation, ReadingSettings, evaluate_text
from ralm.lm import TINY
from ralm.lm.local.model import LocalLanguageModel
from ralm.lm.registry import load_local_model
from ralm.protocols import Reader, Reranker
from ralm.reading.generate import generate
from ralm.reading.parts import Parts
from ralm.reading.plan import PlanOptions, Semantics, Windows
from ralm.reading.readers import Concatenation, Ensemble, InContext
from ralm.reading.sampling import GenerationOptions
from ralm.reading.sources import FromRetriever
from ralm.reranking.oracle import Oracle, RandomChoice
from ralm.reranking.zero_shot import ZeroShot
from ralm.retrieval.index import open_index
from ralm.runs.run import build_report, evaluation_config, open_run, write_run
from tests.cli.program import ralm
from tests.tiny_tokenizers import TOKENIZERS, save_with_tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::ralm.errors.RalmWarning")]

CASES = int(os.environ.get("RALM_FUZZ", "4"))
KINDS = [TINY, "gpt2", "llama", "opt", *(f"{kind}-tokenizer" for kind in TOKENIZERS)]
PLAIN = "the thing is that it is the odd thing. " * 3
"""What every tokenizer knows, so that something is scored whatever is drawn."""
READINGS: list[tuple[Reranker | None, Reader]] = [
    (None, InContext()),
    (Oracle(candidates=3), InContext()),
    (ZeroShot(candidates=3, tokens=2), InContext()),
    (None, Ensemble(documents=3)),
    (None, Concatenation(documents=2)),
    (ZeroShot(candidates=4, tokens=2), Ensemble(documents=3)),
    (RandomChoice(candidates=3), Concatenation(documents=2)),
]
SPACES = " \t\n\r\v\f\x1c\x85\u00a0\u1680\u2003\u2028\u2029\u202f\u205f\u3000"
BITS = [
    *SPACES,
    *(chr(code) for code in range(0x20)),
    "\x7f", "\x9b", "\ufeff", "\ufffd", "\ufffe", "\uffff", "\ue000", "\U0010ffff", "\u200b", "\u00ad",
    "e\u0301", "a" + "\u0300" * 9, "\u0130", "\ufb01", "\u00df", "\u01c5",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "\U0001f44d\U0001f3fd",
    "\u0627\u0644\u0633", "\u202eabc\u202c", "\u05e9\u05dc", "\u4e2d\u6587", "\uac00", "\u0e17\u0e35",
    "</s>", "<s>", "<|endoftext|>", "<unk>", "[UNK]", "<pad>", "<0x0A>", "\u2581", "\u0120", "@@", "##ing", "{{data}}",
    "the", "the thing is that", "a", "it's", "don ' t", "...", "\r\n", "\n\r", "\n\n\n", "</script>", "0" * 30, "Q",
]  # fmt: skip


def odd_text(chance: random.Random) -> str:
    """A text as nobody would write one, of some hundred characters at most."""
    words = ["the", "thing", " ", "is", " ", "odd", ".", "\n"]
    match chance.randrange(6):
        case 0:
            return "".join(chance.choices(BITS, k=chance.randrange(40)))
        case 1:
            return "".join(chance.choices(SPACES, k=chance.randrange(60)))
        case 2:
            return str(chance.choice(BITS)) * chance.randrange(50)
        case 3:
            return "".join(
                chr(chance.choice([chance.randrange(0xD800), chance.randrange(0xE000, 0x110000)]))
                for _ in range(chance.randrange(40))
            )
        case 4:
            return chance.choice("abc") * chance.choice([1, 2, 500])
        case _:
            return " ".join(chance.choices([*words, *BITS], k=chance.randrange(80)))


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of odd documents, some of them plain."""
    folder = tmp_path_factory.mktemp("corpus")
    chance = random.Random(1)
    rows = [{"id": odd_text(chance), "title": odd_text(chance), "text": odd_text(chance)} for _ in range(60)]
    rows += [{"text": f"the thing is odd, number {number}"} for number in range(10)]
    (folder / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    answer = ralm("index", folder / "x.jsonl", "--out", folder / "index", "--words", 20)
    assert answer.status == 0, answer.err
    return folder / "index"


@pytest.fixture(scope="module", params=KINDS)
def model(
    request: pytest.FixtureRequest, tiny_folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> LocalLanguageModel:
    name = str(request.param)
    if name in tiny_folders:
        return load_local_model(str(tiny_folders[name]))
    kind = name.removesuffix("-tokenizer")
    return load_local_model(TINY if name == TINY else str(save_with_tokenizer(kind, tmp_path_factory.mktemp(kind))))


def kind_of(model: LocalLanguageModel) -> str:
    """The folder of a model without pytest's number: the same cases wherever the folder lies."""
    return Path(model.name).name.rstrip("0123456789")


def cases(seed: str) -> list[random.Random]:
    return [random.Random(f"{seed} {case}") for case in range(CASES)]


def odd_plan(chance: random.Random) -> PlanOptions:
    windows = chance.choice(get_args(Windows))
    semantics: Semantics = "official" if windows == "rolling" else chance.choice(get_args(Semantics))
    return PlanOptions(
        semantics=semantics,
        windows=windows,
        stride=chance.choice([1, 4]),
        block=8 if windows == "blocked" else 256,
        query_tokens=chance.choice([1, 8]),
        document_tokens=chance.choice([2, 12]),
        max_length=chance.choice([40, 64]),
    )


def adds_up(evaluation: Evaluation, text: str) -> None:
    """The parts of an evaluation are those of its text."""
    prepared, reading, baseline = evaluation.prepared, evaluation.reading, evaluation.baseline
    assert baseline is not None
    assert text.startswith(prepared.text)
    assert reading.measures.bytes == sum(len(text.encode()) for text in prepared.counted_texts)
    assert all(text.endswith(counted) for text, counted in zip(prepared.documents, prepared.counted_texts, strict=True))
    assert np.isfinite(reading.scored.log_probs_T).all()
    assert (reading.scored.log_probs_T <= 0).all()
    shown = evaluation.traced
    first = int(reading.scored.positions_T[0])
    assert prepared.text.startswith(shown.before + "".join(shown.texts))
    assert reading.measures.unknown_tokens <= len(prepared.tokens)
    assert len(shown.texts) == len(prepared.tokens) - first
    difference = baseline.scored.nll - reading.scored.nll
    assert shown.gain.nats == pytest.approx(difference, rel=1e-4, abs=1e-3)


def test_odd_texts_are_scored_or_refused(model: LocalLanguageModel, index: Path, tmp_path: Path) -> None:
    opened = open_index(index)
    source = FromRetriever(opened.bm25, opened.passages, {"index": str(index)})
    scored = 0
    for number, chance in enumerate(cases(f"score {kind_of(model)}")):
        text, plan = PLAIN if number == 0 else odd_text(chance), odd_plan(chance)
        reranker, reader = chance.choice(READINGS)
        parts = Parts(reader=reader, reranker=reranker)
        limit = chance.choice([None, 2, 7, 30])
        try:
            evaluation = evaluate_text(text, model, plan, source=source, parts=parts, limit_tokens=limit, baseline=True)
        except RalmError:
            continue
        scored += 1
        adds_up(evaluation, text)
        if scored % 4 == 1:
            config = evaluation_config(
                Path("x"), text, model, ReadingSettings(plan=plan, source=source, parts=parts), limit
            )
            write_run(tmp_path / str(number), evaluation, config, force=False)
            assert json.dumps(build_report(open_run(tmp_path / str(number)), 100).as_json())
    assert scored


def test_odd_prompts_are_written_on_or_refused(model: LocalLanguageModel, index: Path) -> None:
    opened = open_index(index)
    source = FromRetriever(opened.bm25, opened.passages, config={})
    for chance in cases(f"generate {kind_of(model)}"):
        prompt = odd_text(chance)
        options = GenerationOptions(
            new_tokens=6,
            document_tokens=8,
            max_length=40,
            temperature=chance.choice([0.0, 1.0]),
            stop=chance.choice([(), ("\n",), ("\ufffd",), ("a", "\u4e2d")]),
        )
        try:
            pieces = list(generate(prompt, model, options, source))
        except RalmError:
            continue
        assert all(piece.text for piece in pieces if not piece.tokens)
        assert sum(len(piece.tokens) for piece in pieces) <= 6
        assert not any(string in "".join(piece.text for piece in pieces) for string in options.stop)
