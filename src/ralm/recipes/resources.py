"""The texts, corpora, questions and models that recipes read: hub names and files, with the sizes for estimates."""

from dataclasses import dataclass
from typing import Any, Literal

ResourceKind = Literal[
    "text", "corpus", "titles", "questions", "demonstrations", "choices", "choice-demonstrations", "model", "encoder"
]
FileForm = Literal["", "joined", "wikitext", "articles", "lines", "titles"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One data set or model that a recipe reads.

    `source` is the hub name or file that a command takes. If `form` is set, the data set is written to a file first:
    `joined` and `wikitext` make one text of all rows, `articles` and `lines` make JSON Lines of documents, `titles`
    makes a list of the titles in texts of WikiText (`made_of`). `only` keeps the rows in which a field, such as
    `meta.pile_set_name`, has a value; `max_rows` keeps the first ones. `note` has the licence, and what replaces data
    that is no longer public. `label` is what the papers call a model.

    The sizes are rough, for estimates: `tokens` of a text, `passages` of a corpus, `questions`, and `parameters` of a
    model.
    """

    name: str
    kind: ResourceKind
    source: str = ""
    form: FileForm = ""
    made_of: "tuple[Resource, ...]" = ()
    only: tuple[str, str] | None = None
    max_rows: int | None = None
    note: str = ""
    label: str = ""
    tokens: int = 0
    passages: int = 0
    questions: int = 0
    parameters: float = 0


def _model(name: str, hub: str, parameters: float, label: str = "", note: str = "") -> Resource:
    return Resource(name=name, kind="model", source=hub, parameters=parameters, label=label or name, note=note)


def _encoder(name: str, hub: str, parameters: float) -> Resource:
    return Resource(name=name, kind="encoder", source=hub, parameters=parameters)


_LLAMA = "under Meta's licence"

GPT2 = (
    _model("gpt2", "gpt2", 124e6, "GPT-2 S"),
    _model("gpt2-medium", "gpt2-medium", 355e6, "GPT-2 M"),
    _model("gpt2-large", "gpt2-large", 774e6, "GPT-2 L"),
    _model("gpt2-xl", "gpt2-xl", 1.56e9, "GPT-2 XL"),
)
NEO = (
    _model("gpt-neo-1.3b", "EleutherAI/gpt-neo-1.3B", 1.3e9, "GPT-Neo 1.3B"),
    _model("gpt-neo-2.7b", "EleutherAI/gpt-neo-2.7B", 2.7e9, "GPT-Neo 2.7B"),
    _model("gpt-j-6b", "EleutherAI/gpt-j-6b", 6.05e9, "GPT-J 6B"),
)
_OPT = {"125m": 125e6, "350m": 331e6, "1.3b": 1.3e9, "2.7b": 2.7e9, "6.7b": 6.7e9, "13b": 12.9e9}
_LARGE_OPT = {"30b": 30e9, "66b": 65.7e9}
OPT = tuple(
    _model(f"opt-{size}", f"facebook/opt-{size}", parameters, f"OPT {size.upper()}")
    for size, parameters in (_OPT | _LARGE_OPT).items()
)
BLOOM = tuple(
    _model(f"bloom-{size}", f"bigscience/bloom-{hub}", parameters)
    for size, hub, parameters in (
        ("560m", "560m", 559e6),
        ("1.1b", "1b1", 1.07e9),
        ("1.7b", "1b7", 1.72e9),
        ("3b", "3b", 3.0e9),
        ("7b", "7b1", 7.07e9),
    )
)
LLAMA = (
    _model("llama-7b", "huggyllama/llama-7b", 6.7e9, "LLaMA-7B", _LLAMA),
    _model("llama-13b", "huggyllama/llama-13b", 13.0e9, "LLaMA-13B", _LLAMA),
    _model("llama-33b", "huggyllama/llama-30b", 32.5e9, "LLaMA-33B", _LLAMA),
)

CONTRIEVER = _encoder("contriever", "facebook/contriever", 110e6)
SPIDER = _encoder("spider", "tau/spider", 110e6)
BERT = _encoder("bert", "bert-base-uncased", 110e6)
DPR = _encoder("dpr-passages", "facebook/dpr-ctx_encoder-single-nq-base", 110e6)
DPR_QUESTIONS = _encoder("dpr-questions", "facebook/dpr-question_encoder-single-nq-base", 110e6)
ROBERTA = _encoder("roberta", "roberta-base", 125e6)


def _wikitext(name: str, split: str, *, tokens: int = 0, passages: int = 0) -> Resource:
    kind: ResourceKind = "corpus" if split == "train" else "text"
    form: FileForm = "articles" if split == "train" else "wikitext"
    source = f"hf:Salesforce/wikitext:wikitext-103-v1:{split}"
    return Resource(name=f"wikitext-103-{name}", kind=kind, source=source, form=form, tokens=tokens, passages=passages)


WIKITEXT_TEST = _wikitext("test", "test", tokens=286_221)
WIKITEXT_DEV = _wikitext("dev", "validation", tokens=249_887)
WIKITEXT_TRAIN = _wikitext("train", "train", passages=1_030_000)
WIKITEXT_TITLES = Resource(
    name="wikitext-103-titles",
    kind="titles",
    form="titles",
    made_of=(WIKITEXT_TEST, WIKITEXT_DEV),
    note="taken from the headings of both texts; the list of the official code, with variants, can be given instead",
)
WIKIPEDIA = Resource(
    name="wikipedia-2018",
    kind="corpus",
    source="hf:facebook/wiki_dpr:psgs_w100.nq.no_index:train",
    passages=21_015_324,
    note="the passages of 20 December 2018 that DPR uses; psgs_w100.tsv can be given instead",
)
REALNEWS_DEV = Resource(
    name="realnews-dev",
    kind="text",
    source="hf:allenai/c4:realnewslike:validation",
    form="joined",
    max_rows=600,
    tokens=500_000,
    note="C4's part that is like RealNews, which is given to those who ask its authors. The paper does not say how "
    "much it reads; these are the first 600 documents",
)
REALNEWS_TRAIN = Resource(
    name="realnews-train",
    kind="corpus",
    source="hf:allenai/c4:realnewslike:train",
    passages=65_000_000,
    note="see realnews-dev",
)


def _pile(name: str, split: str, note: str, **rest: Any) -> Resource:
    kind: ResourceKind = "corpus" if split == "train" else "text"
    form: FileForm = "lines" if split == "train" else "joined"
    source = f"hf:monology/pile-uncopyrighted:{split}"
    return Resource(name=f"pile-{name}", kind=kind, source=source, form=form, note=f"{_PILE}{note}", **rest)


def _part_of_pile(subset: str, split: str, note: str = "", **rest: Any) -> Resource:
    only = ("meta.pile_set_name", subset)
    return _pile(f"{subset.lower()}-{split}", split, f", which has this one{note}", only=only, **rest)


_PILE = "The Pile's own copies are no longer public; this is the Pile without the parts that are under copyright"
_FIRST = ". The paper does not say how much it reads; these are the first"
PILE_TEST = tuple(
    _part_of_pile(name, "test", f"{_FIRST} {rows}", max_rows=rows, tokens=500_000)
    for name, rows in (("ArXiv", 40), ("StackExchange", 800), ("FreeLaw", 140))
)
PILE_TRAIN = tuple(
    _part_of_pile(name, "train", passages=passages)
    for name, passages in (("ArXiv", 60_000_000), ("StackExchange", 45_000_000), ("FreeLaw", 85_000_000))
)
PILE_ALL_TEST = _pile(
    "test",
    "test",
    ". The paper does not say how much of the test data it reads; these are the first 2,000 documents",
    max_rows=2_000,
    tokens=3_000_000,
)
PILE_ALL_TRAIN = _pile(
    "train-sample",
    "train",
    ". The paper samples 36 million passages of 128 tokens; these are about as many, of the first documents",
    max_rows=3_000_000,
    passages=36_000_000,
)
NQ = Resource(
    name="natural-questions",
    kind="questions",
    source="hf:google-research-datasets/nq_open:validation",
    questions=3_610,
    note="what papers call the test set of NQ-open",
)
NQ_TRAIN = Resource(
    name="natural-questions-train", kind="demonstrations", source="hf:google-research-datasets/nq_open:train"
)
TRIVIA_QA = Resource(
    name="trivia-qa",
    kind="questions",
    source="hf:mandarjoshi/trivia_qa:unfiltered.nocontext:validation",
    questions=11_313,
    note="the test set has no public answers; the papers' filtered one is the development set",
)
TRIVIA_QA_TRAIN = Resource(
    name="trivia-qa-train", kind="demonstrations", source="hf:mandarjoshi/trivia_qa:unfiltered.nocontext:train"
)
MMLU = Resource(name="mmlu", kind="choices", source="hf:cais/mmlu:all:test", questions=14_042)
MMLU_DEV = Resource(name="mmlu-dev", kind="choice-demonstrations", source="hf:cais/mmlu:all:dev")
