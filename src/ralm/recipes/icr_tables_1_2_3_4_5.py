"""In-Context RALM: Tables 1 (with Figure 2), 2, 3 and 5, perplexity with BM25 and with reranking; Table 4, open-domain
questions with DPR's first passages in the prompt."""

from collections.abc import Mapping, Sequence
from typing import Final

from ralm.reading import ReadingOptions
from ralm.recipes import measures, resources
from ralm.recipes.readings import DENSE_SEARCH, ICR_SEMANTICS, TextReadings, wikipedia
from ralm.recipes.recipe import Entries, Figure, Order, Scale, cells_of, orders_of, recipe
from ralm.recipes.steps import Step, index_step, qa_step

Published = dict[tuple[str, str], tuple[float, ...]]

_TABLE_1: Final[Published] = {
    ("GPT-2 S", "none"): (37.5, 21.3, 12.0, 12.8, 13.0),
    ("GPT-2 S", "BM25"): (29.6, 16.1, 10.9, 11.3, 9.6),
    ("GPT-2 S", "zero-shot"): (28.6, 15.5, 10.1, 10.6, 8.8),
    ("GPT-2 S", "predictive"): (26.8,),
    ("GPT-2 M", "none"): (26.3, 15.7, 9.3, 8.8, 9.6),
    ("GPT-2 M", "BM25"): (21.5, 12.4, 8.6, 8.1, 7.4),
    ("GPT-2 M", "zero-shot"): (20.8, 12.0, 8.0, 7.7, 6.9),
    ("GPT-2 M", "predictive"): (19.7,),
    ("GPT-2 L", "none"): (22.0, 13.6, 8.4, 8.5, 8.7),
    ("GPT-2 L", "BM25"): (18.1, 10.9, 7.8, 7.8, 6.8),
    ("GPT-2 L", "zero-shot"): (17.6, 10.6, 7.3, 7.4, 6.4),
    ("GPT-2 L", "predictive"): (16.6,),
    ("GPT-2 XL", "none"): (20.0, 12.4, 7.8, 8.0, 8.0),
    ("GPT-2 XL", "BM25"): (16.6, 10.1, 7.2, 7.4, 6.4),
    ("GPT-2 XL", "zero-shot"): (16.1, 9.8, 6.8, 7.1, 6.0),
    ("GPT-2 XL", "predictive"): (15.4,),
}
_TABLE_2: Final[Published] = {
    ("LLaMA-7B", "none"): (9.9,),
    ("LLaMA-7B", "BM25"): (8.8,),
    ("LLaMA-13B", "none"): (8.5,),
    ("LLaMA-13B", "BM25"): (7.6,),
    ("LLaMA-33B", "none"): (6.3,),
    ("LLaMA-33B", "BM25"): (6.1,),
}
_TABLE_3: Final = {
    "GPT-2 M": ((20.8, 20.8), (12.1, 12.0)),
    "GPT-2 L": ((17.7, 17.6), (10.7, 10.6)),
    "GPT-2 XL": ((16.2, 16.1), (9.9, 9.8)),
}
"""Ranked by GPT-2 S and by itself, on both texts."""
_TABLE_5: Final[Published] = {
    ("GPT-Neo 1.3B", "none"): (17.5, 12.3),
    ("GPT-Neo 1.3B", "BM25"): (14.6, 9.9),
    ("GPT-Neo 2.7B", "none"): (15.1, 11.0),
    ("GPT-Neo 2.7B", "BM25"): (12.8, 9.0),
    ("GPT-J 6B", "none"): (11.6, 9.2),
    ("GPT-J 6B", "BM25"): (10.0, 7.7),
}
_TABLE_4: Final = {
    "LLaMA-7B": ((10.3, 28.0), (47.5, 56.0)),
    "LLaMA-13B": ((12.0, 31.0), (54.8, 60.1)),
    "LLaMA-33B": ((13.7, 32.3), (58.3, 62.7)),
}
"""Closed book and with passages, on both sets of questions."""
FIRST_OF_BM25: Final = ("none", "BM25")
QUESTIONS: Final = {"NQ": resources.NQ, "TriviaQA": resources.TRIVIA_QA}
REALNEWS: Final = "RealNews is C4's part that is like it."
ICR_CODE: Final = "Prompts are cut as in the published code (`--semantics official`), which made the paper's figures."


@recipe(
    "in-context-ralm/table-1",
    "Table 1 and Figure 2",
    figure=Figure("bars", over="reading"),
    differs=(
        ICR_SEMANTICS,
        f"{REALNEWS} ArXiv, Stack Exchange and FreeLaw are those of the Pile without the parts under copyright.",
        "Which 300,000 examples the reranker learned from is not published. Here they are drawn from all of "
        "WikiText-103's training set, 16 in a row, with prefixes of 128 to 252 tokens; candidates that share 13 "
        "words with the text at the continuation are left out.",
    ),
)
def icr_table_1(scale: Scale) -> Entries:
    """Perplexity of GPT-2 on five corpora: without retrieval, with BM25's first passage, and with the best of
    {candidates} by zero-shot and by predictive reranking."""
    texts = texts_of(scale, resources.GPT2[0])
    for column, text, corpus in zip(
        ("ArXiv", "Stack Exchange", "FreeLaw"), resources.PILE_TEST, resources.PILE_TRAIN, strict=True
    ):
        texts[column] = _readings(scale, text, index_step(corpus), resources.GPT2[0])
    return perplexities(texts, resources.GPT2, ("none", "BM25", "zero-shot", "predictive"), _TABLE_1)


@recipe(
    "in-context-ralm/table-2",
    differs=(ICR_SEMANTICS, "LLaMA's weights are copies on the hub, under Meta's licence."),
)
def icr_table_2(scale: Scale) -> Entries:
    """Word perplexity of LLaMA on WikiText-103, without retrieval and with BM25's first passage."""
    texts = {"WikiText-103": texts_of(scale, resources.LLAMA[0])["WikiText-103"]}
    return perplexities(texts, resources.LLAMA, FIRST_OF_BM25, _TABLE_2)


@recipe("in-context-ralm/table-3", differs=(ICR_SEMANTICS, REALNEWS))
def icr_table_3(scale: Scale) -> Entries:
    """Zero-shot reranking by GPT-2 S against reranking by the model that reads."""
    for lm in resources.GPT2[1:]:
        for place, (how, ranker) in enumerate((("ranked by GPT-2 S", resources.GPT2[0]), ("ranked by itself", None))):
            for (column, readings), published in zip(
                texts_of(scale, resources.GPT2[0]).items(), _TABLE_3[lm.label], strict=True
            ):
                measured = {how: readings.zero_shot(lm, ranker)}
                yield from cells_of(lm.label, f"{column}, {readings.per} perplexity", measured, published[place:][:1])


@recipe(
    "in-context-ralm/table-4",
    differs=(ICR_CODE, "TriviaQA's test answers are not public; this is the development set."),
)
def icr_table_4(scale: Scale) -> Entries:
    """Questions that LLaMA answers without demonstrations, closed book and with two of DPR's passages. The
    log-probability of the right answer is ours: it shows what passages do for models that rarely answer."""
    two = ReadingOptions(reader="concatenation", documents=2)
    for lm in resources.LLAMA:
        for (column, questions), published in zip(QUESTIONS.items(), _TABLE_4[lm.label], strict=True):
            none = qa_step(questions, lm, prompt="in-context-ralm", semantics="official", limit=scale.limit)
            steps = {"none": none, "DPR": answered_with_dpr(scale, questions, lm, two)}
            exact = {how: measures.exact_matches(step) for how, step in steps.items()}
            likely = {how: measures.gold_log_probs_of(step) for how, step in steps.items()}
            yield from cells_of(lm.label, f"{column}, exact match, %", exact, published)
            yield from cells_of(lm.label, f"{column}, log-probability of a token of the answer", likely)
            label = f"{column}, {lm.label}"
            yield Order(exact["DPR"], exact["none"], f"{label}: exact match with passages > without")
            yield Order(likely["DPR"], likely["none"], f"{label}: right answer more likely with passages")


@recipe("in-context-ralm/table-5", differs=(ICR_SEMANTICS, REALNEWS))
def icr_table_5(scale: Scale) -> Entries:
    """Perplexity of GPT-Neo and GPT-J on WikiText-103 and RealNews, without retrieval and with BM25's first passage."""
    return perplexities(texts_of(scale, resources.NEO[0]), resources.NEO, FIRST_OF_BM25, _TABLE_5)


def _readings(scale: Scale, text: resources.Resource, index: Step, tokenizer: resources.Resource) -> TextReadings:
    return TextReadings(scale=scale, text=text, index=index, tokenizer=tokenizer, per="token")


def texts_of(scale: Scale, tokenizer: resources.Resource) -> dict[str, TextReadings]:
    """The readings of WikiText-103 and RealNews."""
    wikitext = TextReadings(scale=scale, text=resources.WIKITEXT_TEST, index=wikipedia(), tokenizer=tokenizer)
    return {
        "WikiText-103": wikitext,
        "RealNews": _readings(scale, resources.REALNEWS_DEV, index_step(resources.REALNEWS_TRAIN), tokenizer),
    }


def perplexities(
    texts: Mapping[str, TextReadings], models: Sequence[resources.Resource], hows: Sequence[str], published: Published
) -> Entries:
    """A cell for each text, model and way of reading, and the orders among the ways; the predictive reranker was
    trained for WikiText-103 alone."""
    for place, (column, readings) in enumerate(texts.items()):
        ways = {
            "none": readings.plain,
            "BM25": readings.bm25,
            "zero-shot": readings.zero_shot,
            "predictive": readings.predictive,
        }
        read = [how for how in hows if how != "predictive" or column == "WikiText-103"]
        for lm in models:
            measured = {how: ways[how](lm) for how in read}
            figures = [published.get((lm.label, how), ()) for how in read]
            known = [figure[place] if place < len(figure) else None for figure in figures]
            yield from cells_of(lm.label, f"{column}, {readings.per} perplexity", measured, known)
            pairs = (("BM25", "none"), ("zero-shot", "BM25"), ("predictive", "zero-shot"))
            yield from orders_of(f"{column}, {lm.label}", measured, *pairs)


def answered_with_dpr(
    scale: Scale,
    questions: resources.Resource,
    lm: resources.Resource,
    reading: ReadingOptions,
    numbers: tuple[int, ...] = (),
) -> Step:
    """Answers with DPR's passages of Wikipedia."""
    return qa_step(
        questions,
        lm,
        index=index_step(resources.WIKIPEDIA, encoder=resources.DPR, query_encoder=resources.DPR_QUESTIONS),
        retrieval=DENSE_SEARCH,
        reading=reading,
        prompt="in-context-ralm",
        semantics="official",
        numbers=numbers,
        limit=scale.limit,
    )
