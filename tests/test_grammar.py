"""`NAME:key=value,key=value`: what a text names, and the sentence if it names nothing."""

import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

import ralm
from ralm.errors import UsageError
from ralm.grammar import keys_of, keys_text, parse_keys
from ralm.lm.api.endpoint import ApiOptions
from ralm.lm.registry import ModelOptions
from ralm.reading import READERS, ReadingOptions
from ralm.reading.parts import Parts
from ralm.reranking import RERANKERS, ZeroShotOptions, open_reranker
from ralm.retrieval.retriever import RETRIEVERS, DenseOptions, HybridOptions
from ralm.serving.options import Limits, Settings, with_choices
from ralm.settings import CATALOGUES
from tests.cli.program import failed, printed, ralm as run
from tests.reading.loops import PASSAGES, TEXT
from tests.serving.served import tiny

OWN = '''
import numpy as np
import ralm


class First:
    """Finds the first passages, whatever the query."""

    config = {"retriever": "first"}

    def __init__(self, passages, skip=0):
        self.numbers = range(skip, len(passages))

    def retrieve(self, queries, k):
        return ralm.Hits.from_pairs([[(n, -float(n)) for n in self.numbers[:k]] for _ in queries])


class Last:
    candidates = 3
    config = {"reranker": "last"}

    def choose(self, rows, hits, passages, k):
        return ralm.Hits.from_pairs([sorted(hits.of(row), reverse=True)[:k] for row in range(len(hits))])


class Two:
    hits = 2
    config = {"reader": "two"}

    def __init__(self, heading=""):
        self.heading = heading

    def prompt_prefixes(self, hits, documents):
        read = [(n, documents.encode(self.heading + documents.passage(n).text)) for n, _ in hits]
        return [ralm.PromptPrefix(tokens[:20], (n,), score=0.0) for n, tokens in read]


class Third:
    evidence = 0
    config = {"mixer": "third"}

    def __call__(self, scores_K, evidence_KE):
        return np.log([2 / 3, 1 / 3]) if len(scores_K) == 2 else np.zeros(1)


class Wrong:
    config = {"reader": "wrong"}

    def __init__(self, passages):
        raise KeyError("no weights")


class Silent:
    def __init__(self, passages): ...
    def retrieve(self, queries, k): ...


class_of_nothing = 3
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a module of parts, a text and an index."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "parts_of_mine", raising=False)
    Path("parts_of_mine.py").write_text(OWN)
    Path("text.txt").write_text(TEXT)
    ralm.build_index(PASSAGES, tmp_path / "index")
    return tmp_path


def test_keys_are_read_as_the_types_of_their_options() -> None:
    assert READERS.parse("ensemble:documents=4,temperature=0.5") == ralm.Ensemble(documents=4, temperature=0.5)
    assert READERS.parse("concatenation:cut-together=true") == ralm.Concatenation(cut_together=True)
    assert RERANKERS.parse("zero-shot:lm=gpt2,decay=8") == ZeroShotOptions(lm="gpt2", decay=8.0)
    assert RETRIEVERS.parse("dense:nprobe=3") == DenseOptions(search=ralm.DenseSearchOptions(nprobe=3))
    hybrid = HybridOptions(vectors="v", fusion=ralm.FusionOptions(method="interpolation", dense_weight=0.2))
    assert RETRIEVERS.parse("hybrid:vectors=v,fusion=interpolation,dense_weight=0.2") == hybrid


def test_a_value_with_a_comma_stands_in_quotes() -> None:
    text = 'device="cuda:0,cuda:1",template_arguments="enable_thinking=false,n=2",timeout=3,retries=0'
    options = parse_keys(ModelOptions, text, "lm_args")
    assert options.device == "cuda:0,cuda:1"
    assert options.template_values == {"enable_thinking": False, "n": 2}
    assert options.api == ApiOptions(timeout=3, retries=0)
    assert parse_keys(ModelOptions, keys_text(options, ModelOptions()), "lm_args") == options


@given(st.floats(1e-6, 1e6), st.integers(1, 100))
def test_a_text_of_keys_gives_the_same_record(temperature: float, documents: int) -> None:
    record = ralm.Ensemble(documents=documents, temperature=temperature)
    assert parse_keys(ralm.Ensemble, keys_text(record, ralm.Ensemble()), "reader") == record


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("reader", "ensembel", '`reader="ensembel"` is not known: write one of in-context, ensemble, '),
        ("reader", "ensemble:document=4", "`reader=\"ensemble\"` has no key 'document': its keys are documents, temp"),
        ("reader", "ensemble:documents=4,documents=5", "has the key 'documents' twice: leave one out."),
        ("reader", "ensemble:documents=four", "`reader=\"ensemble\"`: documents must be a whole number, not 'four'."),
        ("reader", "ensemble:documents=0", '`reader="ensemble"`: documents must be at least 1, not 0.'),
        ("reader", "ensemble:documents", "takes keys as key=value, not 'documents'."),
        ("reader", "in-context:documents=4", "`reader=\"in-context\"` has no key 'documents': it has none."),
        ("reader", "concatenation:cut_together=yes", "cut_together is true or false, not 'yes'."),
        ("reader", 'ensemble:documents="4', 'a quote is not closed: documents="4'),
        ("mixer", "entropy", '`mixer="entropy"` is not known: write one of similarity'),
        ("rerank", "predictive", '`rerank="predictive"` needs cross_encoder=...: A folder that'),
        ("retriever", "nothing_here:Mine", "nothing_here cannot be imported: ModuleNotFoundError: "),
    ],
)
def test_what_is_wrong_is_one_sentence(kind: str, text: str, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        part = CATALOGUES[kind].parse(text)
        part.make()
    assert message in str(raised.value)


def test_several_documents_without_a_reader_are_concatenated() -> None:
    assert ReadingOptions(documents=3).chosen_reader == ralm.Concatenation(documents=3)
    assert ReadingOptions(documents=1).chosen_reader == ralm.InContext()
    assert ReadingOptions(reader="ensemble:temperature=2", documents=3).chosen_reader == ralm.Ensemble(
        documents=3, temperature=2
    )
    with pytest.raises(UsageError, match="are the same: give one of them"):
        ReadingOptions(reader="ensemble:documents=2", documents=3)
    with pytest.raises(UsageError, match="`reader=\"in-context\"` has no key 'documents'"):
        ReadingOptions(reader="in-context", documents=3)


def test_a_request_keeps_the_operators_keys_of_the_same_part(own: Path) -> None:
    reading = ReadingOptions(reader="ensemble:temperature=2", documents=5, rerank="zero-shot:lm=x,candidates=9")
    settings = Settings(index="few", reading=reading)

    def chosen(**choice: Any) -> ReadingOptions:
        return with_choices(settings, choice, Limits(), ("few",)).reading

    assert chosen(reader="ensemble").chosen_reader == ralm.Ensemble(documents=5, temperature=2)
    assert chosen(documents=3).chosen_reader == ralm.Ensemble(documents=3, temperature=2)
    assert chosen(reader="ensemble:documents=2").chosen_reader == ralm.Ensemble(documents=2, temperature=2)
    assert chosen(reader="in-context").chosen_reader == ralm.InContext()
    reranker = RERANKERS.parse(chosen(rerank="zero-shot:tokens=4").rerank)
    assert reranker == ZeroShotOptions(lm="x", candidates=9, tokens=4)
    assert chosen(rerank="lexical").candidates == 16
    for choice, message in (
        ({"rerank": "zero-shot:lm=y"}, "only the operator can choose the key 'lm'"),
        ({"retriever": "dense:query_encoder=/etc"}, "only the operator can choose the key 'query_encoder'"),
        ({"retriever": "dense:ef_search=9"}, "only the operator can choose the key 'ef_search'"),
        ({"reader": "mine:Mine"}, "is a class, which only the operator can choose"),
        ({"rerank": "predictive"}, "needs a cross-encoder, and this server has none"),
        ({"reader": "concatenation", "mixer": "posterior"}, '`mixer` has no effect without `reader="ensemble"`'),
    ):
        with pytest.raises(UsageError, match=message):
            chosen(**choice)
    settings = Settings(index="few", reading=ReadingOptions(reader="parts_of_mine:Two", mixer="parts_of_mine:Third"))
    assert chosen(stride=2).mixer == "parts_of_mine:Third"


READ = ["--reader", 'parts_of_mine:Two:heading="Read, then: "', "--mixer", "parts_of_mine:Third"]
FIND = ["--retriever", "parts_of_mine:First:skip=1", "--rerank", "parts_of_mine:Last"]


def test_parts_of_ones_own_serve_a_command_as_in_python(own: Path) -> None:
    read = ["--lm", "ralm-tiny", "--index", "index", "--max-length", "128", "--document-tokens", "32", *READ, *FIND]
    evaluated = printed("eval", "text.txt", *read, "--limit-tokens", "40")
    config = evaluated["config"]
    assert (config["passages"]["class"], config["passages"]["keys"]) == ("parts_of_mine:First", {"skip": 1})
    assert config["reader"]["keys"] == {"heading": "Read, then: "}
    assert config["reader"]["mixer"]["class"] == "parts_of_mine:Third"
    assert config["reranker"]["class"] == "parts_of_mine:Last"
    module = sys.modules["parts_of_mine"]
    parts = Parts(reader=module.Two("Read, then: "), mixer=module.Third(), reranker=module.Last())
    plan = ralm.PlanOptions(max_length=128, document_tokens=32)
    source = ralm.FromRetriever(module.First(PASSAGES, 1), PASSAGES)
    expected = ralm.evaluate_text(TEXT, tiny(), plan, source=source, parts=parts, limit_tokens=40)
    assert evaluated["token_perplexity"] == pytest.approx(expected.reading.measures.token_perplexity)


def test_parts_of_ones_own_are_made_once_for_their_keys(own: Path) -> None:
    def parts(keys: str) -> Parts:
        reading = ReadingOptions(reader=f"parts_of_mine:Two{keys}", mixer="parts_of_mine:Third")
        return replace(reading.parts(), reranker=open_reranker("parts_of_mine:Last", pytest.fail))

    first, again, other = parts(""), parts(""), parts(":heading=Read")
    assert (again.reader, again.mixer, again.reranker) == (first.reader, first.mixer, first.reranker)
    assert other.reader.heading == "Read"  # type: ignore[attr-defined]


def test_a_run_does_not_resume_with_other_code(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def config() -> Any:
        read = ["--lm", "ralm-tiny", "--index", "index", "--max-length", "128", "--document-tokens", "32", *FIND[:2]]
        return printed("eval", "text.txt", *read, "--limit-tokens", "40")["config"]["passages"]

    before = config()
    monkeypatch.delitem(sys.modules, "parts_of_mine")
    Path("parts_of_mine.py").write_text(OWN.replace("-float(n)", "-2.0 * n"))
    assert {name for name, value in config().items() if before[name] != value} == {"code"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("parts_of_mine:Missing", "parts_of_mine has no class Missing."),
        ("parts_of_mine:class_of_nothing", "parts_of_mine has no class class_of_nothing."),
        ("parts_of_mine:Wrong", "Wrong cannot be made: KeyError: 'no weights'."),
        ("parts_of_mine:Silent", "Silent has no `config`, which such a part needs."),
        ("needs_more:Any", "needs_more cannot be imported: ModuleNotFoundError: "),
        ("broken:Any", "broken cannot be imported: SyntaxError: invalid syntax"),
    ],
)
def test_what_is_no_part(own: Path, name: str, message: str) -> None:
    Path("needs_more.py").write_text("import a_module_that_is_not_there\n")
    Path("broken.py").write_text("class Any(:\n")
    failed(run("search", "index", "token", "--retriever", name), 2, message)


def test_a_class_without_only_leaves_no_passages_out(own: Path) -> None:
    search = ["search", "index", "token", "--retriever", "parts_of_mine:First"]
    chosen = f"id != {PASSAGES[0].document_id!r}"
    failed(
        run(*search, "--where", chosen),
        2,
        "the retriever First cannot leave passages out: give the class `only(mask_N)`",
    )


def test_a_pipeline_is_opened_in_a_line(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short: dict[str, Any] = {"lm": "ralm-tiny", "max_length": 128, "document_tokens": 32}
    pipe = ralm.open("index", reader="ensemble:documents=2", mixer="posterior", **short)
    assert pipe.parts.reader == ralm.Ensemble(documents=2)
    assert pipe.score(TEXT, limit_tokens=40).baseline is not None
    assert isinstance(pipe.generate("The dog", new_tokens=4), str)
    assert pipe.ask(PASSAGES[0].text, new_tokens=4).sources
    assert len(pipe.find([TEXT]).of(0)) == 2
    monkeypatch.syspath_prepend(own)
    mine = import_module("parts_of_mine")
    opened = ralm.open("index", reader=mine.Two(), rerank=mine.Last(), **short)
    assert isinstance(opened.parts.reranker, mine.Last)
    assert opened.score(TEXT, limit_tokens=40).reading.measures.tokens
    with pytest.raises(UsageError, match=r"the pipeline has no key 'reeder': its keys are"):
        ralm.open("index", lm="ralm-tiny", reeder="ensemble")
    with pytest.raises(UsageError, match="read passages: give `index` or"):
        ralm.open(lm="ralm-tiny", documents=3)


def test_keys_of_models_that_have_no_effect_are_refused() -> None:
    answer = run("generate", "x", "--lm", "openai:x", "--lm-args", "device=cpu")
    failed(answer, 2, "--lm-args device=cpu is for models that run here: leave it out for openai:x.")
    answer = run("generate", "x", "--lm", "ralm-tiny", "--lm-args", "timeout=3")
    failed(answer, 2, "--lm-args timeout=3.0 is for models behind an API: leave it out for ralm-tiny.")


def test_help_lists_every_key() -> None:
    shown = run("help").out
    for name, catalogue in CATALOGUES.items():
        for part, record in catalogue.records.items():
            assert f"--{name} {part}\n" in shown
            assert all(f"    {key}=" in shown for key in keys_of(record))
    for kind, key in {"encoder-args": "query_encoder", "fields": "metadata", "limits": "new_tokens"}.items():
        assert f"--{kind}\n" in shown
        assert f"    {key}=" in run("help", kind).out
    failed(run("help", "mixr"), 2, "give one of retriever, rerank, reader, mixer, lm-args")
