"""What recipes read from outside: texts, corpora, questions, models. Where each is, and what stands in for it.

A resource is what a command takes: a hub name or a file. Some data sets have to be written to a file first, such as the
text of WikiText, whose rows are lines (`writes`, done by `writing.py`). Knows names; reads nothing.
"""

from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "text", "corpus", "titles", "questions", "demonstrations", "choices", "choice-demonstrations", "model", "encoder"
]
Writes = Literal["", "joined", "wikitext", "articles", "lines", "titles"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One thing that a recipe reads.

    `source`: what a command takes, or for those that are written first, the data set that is read. `writes`: how it is
    written. `joined` and `wikitext` make one text of all rows, `articles` and `lines` make JSON Lines of documents,
    `titles` makes a list of the titles in texts of WikiText (`of`). `only` keeps the rows in which a field, such as
    `meta.pile_set_name`, has a value; `most` keeps the first ones. `note`: what a user should know: the licence, what
    is no longer public, and the nearest that is.

    The sizes are rough, for estimates: `tokens` of a text, `passages` of a corpus, `questions`, and `parameters` of a
    model.
    """

    name: str
    kind: Kind
    source: str = ""
    writes: Writes = ""
    of: "tuple[Resource, ...]" = ()
    only: tuple[str, str] | None = None
    most: int | None = None
    note: str = ""
    tokens: int = 0
    passages: int = 0
    questions: int = 0
    parameters: float = 0


def model(name: str, hub: str, parameters: float, note: str = "") -> Resource:
    """A causal language model of the hub."""
    return Resource(name=name, kind="model", source=hub, parameters=parameters, note=note)


def encoder(name: str, hub: str, parameters: float, note: str = "") -> Resource:
    """An encoder of the hub, for dense retrieval or to begin a training from."""
    return Resource(name=name, kind="encoder", source=hub, parameters=parameters, note=note)


_LLAMA = "under Meta's licence"

GPT2 = (
    model("gpt2", "gpt2", 124e6),
    model("gpt2-medium", "gpt2-medium", 355e6),
    model("gpt2-large", "gpt2-large", 774e6),
    model("gpt2-xl", "gpt2-xl", 1.56e9),
)
GPT2_NAMES = ("GPT-2 S", "GPT-2 M", "GPT-2 L", "GPT-2 XL")
"""What both papers call them."""
NEO = (
    model("gpt-neo-1.3b", "EleutherAI/gpt-neo-1.3B", 1.3e9),
    model("gpt-neo-2.7b", "EleutherAI/gpt-neo-2.7B", 2.7e9),
    model("gpt-j-6b", "EleutherAI/gpt-j-6b", 6.05e9),
)
OPT = tuple(
    model(f"opt-{size}", f"facebook/opt-{size}", parameters)
    for size, parameters in (
        ("125m", 125e6),
        ("350m", 331e6),
        ("1.3b", 1.3e9),
        ("2.7b", 2.7e9),
        ("6.7b", 6.7e9),
        ("13b", 12.9e9),
        ("30b", 30e9),
        ("66b", 65.7e9),
    )
)
BLOOM = tuple(
    model(f"bloom-{size}", f"bigscience/bloom-{hub}", parameters)
    for size, hub, parameters in (
        ("560m", "560m", 559e6),
        ("1.1b", "1b1", 1.07e9),
        ("1.7b", "1b7", 1.72e9),
        ("3b", "3b", 3.0e9),
        ("7b", "7b1", 7.07e9),
    )
)
LLAMA = (
    model("llama-7b", "huggyllama/llama-7b", 6.7e9, _LLAMA),
    model("llama-13b", "huggyllama/llama-13b", 13.0e9, _LLAMA),
    model("llama-33b", "huggyllama/llama-30b", 32.5e9, _LLAMA),
)

CONTRIEVER = encoder("contriever", "facebook/contriever", 110e6)
SPIDER = encoder("spider", "tau/spider", 110e6)
BERT = encoder("bert", "bert-base-uncased", 110e6)
DPR = encoder("dpr-passages", "facebook/dpr-ctx_encoder-single-nq-base", 110e6)
DPR_QUESTIONS = encoder("dpr-questions", "facebook/dpr-question_encoder-single-nq-base", 110e6)
ROBERTA = encoder("roberta", "roberta-base", 125e6)

WIKITEXT_TEST = Resource(
    name="wikitext-103-test",
    kind="text",
    source="hf:Salesforce/wikitext:wikitext-103-v1:test",
    writes="wikitext",
    tokens=286_221,
)
WIKITEXT_DEV = Resource(
    name="wikitext-103-dev",
    kind="text",
    source="hf:Salesforce/wikitext:wikitext-103-v1:validation",
    writes="wikitext",
    tokens=249_887,
)
WIKITEXT_TRAIN = Resource(
    name="wikitext-103-train",
    kind="corpus",
    source="hf:Salesforce/wikitext:wikitext-103-v1:train",
    writes="articles",
    passages=1_030_000,
)
WIKITEXT_TITLES = Resource(
    name="wikitext-103-titles",
    kind="titles",
    writes="titles",
    of=(WIKITEXT_TEST, WIKITEXT_DEV),
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
    writes="joined",
    most=600,
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
_PILE = (
    "The Pile's own copies are no longer public; this is the Pile without the parts that are under copyright, "
    "which has this one"
)


def _pile(
    subset: str, split: str, kind: Kind, *, most: int | None = None, tokens: int = 0, passages: int = 0
) -> Resource:
    name = subset.lower().replace(" ", "-")
    return Resource(
        name=f"pile-{name}-{split}",
        kind=kind,
        source=f"hf:monology/pile-uncopyrighted:{split}",
        writes="joined" if kind == "text" else "lines",
        only=("meta.pile_set_name", subset),
        most=most,
        note=_PILE
        if most is None
        else f"{_PILE}. The paper does not say how much it reads; these are the first {most}",
        tokens=tokens,
        passages=passages,
    )


PILE_TEST = tuple(
    _pile(name, "test", "text", most=most, tokens=500_000)
    for name, most in (("ArXiv", 40), ("StackExchange", 800), ("FreeLaw", 140))
)
PILE_TRAIN = tuple(
    _pile(name, "train", "corpus", passages=passages)
    for name, passages in (("ArXiv", 60_000_000), ("StackExchange", 45_000_000), ("FreeLaw", 85_000_000))
)
_PILE_NOTE = (
    "The Pile's own copies are no longer public; this is the Pile without the parts that are under copyright. "
    "The paper "
)
PILE_ALL_TEST = Resource(
    name="pile-test",
    kind="text",
    source="hf:monology/pile-uncopyrighted:test",
    writes="joined",
    most=2_000,
    tokens=3_000_000,
    note=f"{_PILE_NOTE}does not say how much of the test data it reads; these are the first 2,000 documents",
)
PILE_ALL_TRAIN = Resource(
    name="pile-train-sample",
    kind="corpus",
    source="hf:monology/pile-uncopyrighted:train",
    writes="lines",
    most=3_000_000,
    passages=36_000_000,
    note=f"{_PILE_NOTE}samples 36 million passages of 128 tokens; these are about as many, of the first documents",
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
