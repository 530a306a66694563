"""`ralm search --topics`: against Anserini's figures, in BEIR's format, by answers, and with run files."""

import html
import json
import re
import tarfile
from collections.abc import Sequence
from math import log2
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ralm as library
from ralm.errors import InputError, UsageError
from ralm.evaluation import retrieval
from ralm.records import Hits, Passage
from tests.cli.program import done, failed, printed, ralm
from tests.shared_data import shared
from tests.tiny_encoders import save_tiny_bert

CORPUS = {
    "whales": ("Whales", "The whales sing in the deep blue sea by night. Whales swim."),
    "ships": ("", "Ships cross the sea. The crew sings of whales."),
    "hill": ("The hill", "Sheep graze on the green hill."),
    "sheep": ("Sheep", "Sheep graze, and a dog keeps the sheep together."),
}
QUERIES = {"q1": "whales sing", "sheep": "sheep dog", "unjudged": "sea"}
GRADES = {"q1": {"whales": 1, "ships": 2, "hill": 0}, "sheep": {"hill": 1}}


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    """A set in BEIR's format; one topic has the id of a document."""
    folder = tmp_path / "beir"
    (folder / "qrels").mkdir(parents=True)
    rows = [{"_id": name, "title": title, "text": text, "metadata": {}} for name, (title, text) in CORPUS.items()]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = [{"_id": name, "text": text, "metadata": {}} for name, text in QUERIES.items()]
    (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked))
    judged = [f"{topic}\t{name}\t{grade}\n" for topic, grades in GRADES.items() for name, grade in grades.items()]
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(judged))
    return folder


class Found:
    """A retriever that always finds these."""

    def __init__(self, hits: Hits) -> None:
        self.hits = hits
        self.config: dict[str, object] = {}

    def retrieve(self, queries: Sequence[str], k: int) -> Hits:
        return self.hits.first(k)


def means(answer: dict[str, Any], place: int = -1) -> dict[str, float]:
    """The figures of a run, by default of the one that is judged, without intervals and changes."""
    return {name: figure for name, figure in answer["runs"][place].items() if name != "run" and "_" not in name}


def test_cacm_has_the_figures_of_anserini(tmp_path: Path) -> None:
    data = shared("data", "cacm")
    with tarfile.open(data / "cacm.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    texts = {
        page.stem: re.sub(r"</?[A-Za-z][^>]*>", " ", page.read_text("latin-1")) for page in tmp_path.rglob("*.html")
    }
    rows = [json.dumps({"id": name, "text": html.unescape(texts[name])}) + "\n" for name in sorted(texts)]
    (tmp_path / "cacm.jsonl").write_text("".join(rows))
    done("index", tmp_path / "cacm.jsonl", "--words", 100_000, "--out", tmp_path / "index")
    judged = printed(
        *("search", tmp_path / "index", "--topics", data / "topics.txt", "--qrels", data / "qrels.txt"),
        *("--measures", "AP, P@30, nDCG@10"),
    )
    assert judged["topics"] == 52
    assert {name: round(mean, 4) for name, mean in means(judged).items()} == {
        "AP": 0.3123,  # published for Anserini, as is P@30
        "P@30": 0.1942,
        "nDCG@10": 0.4543,
    }
    compared = printed(
        *("search", tmp_path / "index", "--topics", data / "topics.txt", "--qrels", data / "qrels.txt"),
        *("--measures", "AP@30,P@30,nDCG@10,RR", "--against", data / "lucene_bm25_run.txt"),
    )
    assert means(compared) == pytest.approx(means(compared, 0), abs=5e-5)
    intervals = [ends for name, ends in compared["runs"][1].items() if name.endswith("_from_first_interval")]
    assert len(intervals) == 4
    assert all(abs(end) < 1e-3 for ends in intervals for end in ends or ())


def test_a_set_in_the_format_of_beir_makes_a_round_trip(beir: Path, tmp_path: Path) -> None:
    encoder = save_tiny_bert(tmp_path / "bert")
    done(
        *("index", beir / "corpus.jsonl", "--fields", "id=_id", "--out", tmp_path / "index", "--words", 4),
        *("--retriever", "both", "--encoder", encoder),
    )
    judged = ["search", tmp_path / "index", "--topics", beir, "--measures", "nDCG@10,AP,R@2,RR@10"]
    answer = printed(*judged, "--run-out", tmp_path / "bm25.trec")
    gain = (1 / 1 + 2 / log2(3)) / (2 / 1 + 1 / log2(3))
    assert answer["by_topic"] == {
        "q1": pytest.approx({"nDCG@10": gain, "AP": 1, "R@2": 1, "RR@10": 1}),
        "sheep": pytest.approx({"nDCG@10": 1, "AP": 1, "R@2": 1, "RR@10": 1}),
    }, "the document sheep, which is the topic, is left out"
    assert [line.split()[:4] for line in (tmp_path / "bm25.trec").read_text().splitlines()] == [
        ["q1", "Q0", "whales", "1"],
        ["q1", "Q0", "ships", "2"],
        ["sheep", "Q0", "hill", "1"],
    ]
    again = printed(*judged, "--retriever", "random", "--against", tmp_path / "bm25.trec")
    assert (again["topics"], means(again, 0)) == (answer["topics"], means(answer))
    for retriever in ("dense", "hybrid"):
        both = printed(*judged, "--retriever", retriever, "--against", "bm25")
        assert means(both, 0) == means(answer)
        for name, figure in means(both).items():
            change = both["runs"][1][f"{name}_from_first"]
            assert change == pytest.approx(figure - means(answer)[name])
        assert [run["retriever"] for run in both["config"]["runs"]] == ["bm25", retriever]
    shown = done(*judged, "--retriever", "random", "--against", tmp_path / "bm25.trec").out
    assert all(word in shown for word in ("random", "bm25.trec", "change from the first", "RR@10", "2 topics")), shown


def test_passages_that_hold_an_answer_are_relevant(beir: Path, tmp_path: Path) -> None:
    done("index", beir / "corpus.jsonl", "--fields", "id=_id", "--out", tmp_path / "index", "--words", 4)
    (tmp_path / "dpr.tsv").write_text("who sings in the sea\t['the Crew', 'Deep blue']\nsheep\t['wolf']\n")
    asked = ["search", tmp_path / "index", "--topics", tmp_path / "dpr.tsv", "--run-out", tmp_path / "run.trec"]
    answer = printed(*asked, "-k", 5, "--measures", "Success@1,Success@5,RR", "--against", "random")
    index = library.open_index(tmp_path / "index")
    ranked = [number for number, _ in index.bm25.retrieve(["who sings in the sea"], 5).of(0)]
    holds = [
        "deep blue" in index.passages[number].text or "The crew" in index.passages[number].text for number in ranked
    ]
    assert True in holds
    first = holds.index(True) + 1
    assert answer["by_topic"] == {
        "1": {"Success@1": float(first == 1), "Success@5": 1.0, "RR": pytest.approx(1 / first)},
        "2": {"Success@1": 0.0, "Success@5": 0.0, "RR": 0.0},
    }
    assert answer["topics"] == 2
    again = printed(*asked, "--force", "-k", 5, "--measures", "RR", "--against", tmp_path / "run.trec")
    assert again["runs"][1]["RR_from_first"] == 0.0


def test_a_document_counts_once_and_scores_fall(tmp_path: Path) -> None:
    passages = [Passage(number, f"d{number // 2}", "", "text") for number in range(6)]
    hits = Hits.from_pairs([[(4, 2.0), (0, 1.0), (5, 1.0), (1, 1.0), (2, 1.0)], []])
    run = library.retrieve_run(Found(hits), passages, {"a": "x", "b": "y"}, 5)
    assert list(run["a"]) == ["d2", "d0", "d1"]
    assert run["a"]["d0"] == 1.0 > run["a"]["d1"] == float(np.nextafter(np.float32(1), np.float32(0)))
    assert run["b"] == {}
    library.write_run_file(tmp_path / "run", run)
    assert library.read_run_file(tmp_path / "run") == {"a": run["a"]}
    numbers = library.retrieve_run(Found(hits), passages, {"a": "x", "b": "y"}, 5, by_passage=True)
    assert list(numbers["a"]) == ["4", "0", "5", "1", "2"]
    judged = library.judge_run(run, {"a": {"d1": 1}, "b": {"d1": 1}}, "RR, P@1")
    assert {name: values.tolist() for name, values in judged.values.items()} == {
        "RR": [pytest.approx(1 / 3), 0],
        "P@1": [0, 0],
    }


def test_the_interval_of_a_difference_is_paired() -> None:
    qrels = {str(topic): {"right": 1} for topic in range(40)}
    good = {str(topic): {"right": 2.0 if topic % 2 else 0.5, "wrong": 1.0} for topic in range(40)}
    worse = {topic: {**found, "worst": 3.0} for topic, found in good.items()}
    judged = [library.judge_run(run, qrels, "RR").units for run in (worse, good)]
    run: Any = library.Comparison(["worse", "good"], judged).as_json()["runs"]
    drop = {0: 1 / 2 - 1 / 3, 1: 1 - 1 / 2}
    assert run[1]["RR_from_first"] == pytest.approx((drop[0] + drop[1]) / 2)
    low, high = run[1]["RR_from_first_interval"]
    assert drop[0] < low < run[1]["RR_from_first"] < high < drop[1]
    assert high - low < np.subtract(*run[1]["RR_interval"][::-1])


TOPICS = {
    "trec.txt": "<top>\n<num> Number: 301\n<title> Organized\n crime\n<desc> Description:\nmore\n</top>\n"
    "<top>\n<num>302</num><title>Polio</title>\n</top>",
    "cacm.txt": "<DOC>\n<DOCNO> 301 </DOCNO>\nOrganized crime\n</DOC><DOC><DOCNO>302</DOCNO>Polio</DOC>",
    "topics.tsv": "301\tOrganized crime\n302\tPolio\n",
    "topics.jsonl": '{"_id": "301", "text": "Organized crime"}\n\n{"id": 302, "query": "Polio"}\n',
}


@pytest.mark.parametrize("name", TOPICS)
def test_topics_of_every_format(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(TOPICS[name])
    assert library.read_topics(tmp_path / name) == {"301": "Organized crime", "302": "Polio"}


def test_judgements_of_every_format(tmp_path: Path) -> None:
    for number, line in enumerate(("1 0 d 2\n", "1\tQ0\td\t2", "1 d 2 \n", "query-id\tcorpus-id\tscore\n1\td\t2\n")):
        (tmp_path / str(number)).write_text(line)
        assert library.read_qrels(tmp_path / str(number)) == {"1": {"d": 2}}
    (tmp_path / "spaces").write_text("1\tmy file.txt\t-1\n")
    assert library.read_qrels(tmp_path / "spaces") == {"1": {"my file.txt": -1}}


BROKEN = {
    ("read_topics", "<top> no title </top>"): "line 1 is no topic: it has no <top> or <DOC>",
    ("read_topics", "1\ta\n1\tb\n"): "there are two topics '1'",
    ("read_topics", "\n\n"): "holds no topics",
    ("read_qrels", "1 d\n"): "line 1 has 2 fields",
    ("read_qrels", "1 0 d 1\n1 0 d much\n"): "line 2: the grade 'much' is not a whole number",
    ("read_qrels", "1 0 d 1\n1 0 d 2\n"): "line 2: document 'd' of topic '1' has two grades",
    ("read_run_file", "1 Q0 d 1 2.5\n"): "line 1 has 5 fields",
    ("read_run_file", "1 Q0 d 1 nan tag\n"): "line 1: the score 'nan' is not a number",
    ("read_run_file", "1 Q0 d 1 2 t\n1 Q0 d 2 1 t\n"): "line 2: document 'd' stands twice in topic '1'",
}


@pytest.mark.parametrize(("read", "content"), BROKEN)
def test_broken_files_are_named(read: str, content: str, tmp_path: Path) -> None:
    file = tmp_path / "file.txt"
    file.write_text(content)
    with pytest.raises(InputError, match=BROKEN[read, content].replace("(", r"\(")) as error:
        getattr(library, read)(file)
    assert str(file) in str(error.value)
    with pytest.raises(InputError, match="does not exist"):
        getattr(library, read)(tmp_path / "none")


def test_what_a_run_file_cannot_hold(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot hold the name 'my file.txt'"):
        library.write_run_file(tmp_path / "run", {"1": {"my file.txt": 1.0}})
    assert not (tmp_path / "run").exists()


def test_measures_are_those_of_ir_measures() -> None:
    assert [str(one) for one in retrieval.parse_measures("MAP, MRR@10,nDCG(dcg='exp-log2')@5")] == [
        "AP",
        "RR@10",
        "nDCG(dcg='exp-log2')@5",
    ]
    for wrong in ("gain@10", "nDCG@x", "AP P@5"):
        with pytest.raises(UsageError, match="`measures` has"):
            retrieval.parse_measures(wrong)
    with pytest.raises(UsageError, match="R@100 needs 100 documents of a topic: raise `k`, which is 10"):
        retrieval.parse_measures("AP, R@100", 10)


def test_options_of_judging_that_do_not_go_together(beir: Path, tmp_path: Path) -> None:
    done("index", beir / "corpus.jsonl", "--fields", "id=_id", "--out", tmp_path / "index")
    index, qrels = tmp_path / "index", beir / "qrels" / "test.tsv"
    (tmp_path / "other.tsv").write_text("7\tseven\n")
    failed(ralm("search", index, "sea", "--topics", beir), 2, "leave the query and --queries out, or --topics")
    failed(ralm("search", index, "sea", "--run-out", tmp_path / "run.trec"), 2, "judge topics: give --topics")
    failed(ralm("search", tmp_path / "none", "--topics", beir), 1, "does not exist")
    failed(ralm("search", index, "--topics", tmp_path / "other.tsv", "--qrels", qrels), 2, "no topic of")
    wide = ralm("search", index, "--topics", beir, "--measures", "R@2000")
    failed(wide, 2, "R@2000 needs 2,000 documents of a topic: raise -k")
    part = ["search", index, "--topics", tmp_path / "part.tsv", "--qrels", qrels, "--json"]
    failed(ralm(*part), 1, "does not exist")
    (tmp_path / "part.tsv").write_text("q1\twhales\n")
    answer = done(*part)
    assert "1 judged topics are not in" in answer.err
    assert json.loads(answer.out)["topics"] == 1
