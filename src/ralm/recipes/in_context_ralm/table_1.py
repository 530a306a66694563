"""Table 1, with Figure 2: five corpora, BM25, zero-shot and predictive reranking."""

from typing import Final

from ralm.recipes.in_context_ralm.readings import SEMANTICS, Readings, wikipedia
from ralm.recipes.measures import Per
from ralm.recipes.recipe import Cell, Figure, Order, Recipe, Scale, orders_of
from ralm.recipes.resources import GPT2, GPT2_NAMES, PILE_TEST, PILE_TRAIN, REALNEWS_DEV, REALNEWS_TRAIN, WIKITEXT_TEST
from ralm.recipes.steps import index

_COLUMNS: Final = ("WikiText-103", "RealNews", "ArXiv", "Stack Exchange", "FreeLaw")
_PUBLISHED: Final = {
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


def recipe(scale: Scale) -> Recipe:
    """The table."""
    texts = (WIKITEXT_TEST, REALNEWS_DEV, *PILE_TEST)
    indexes = (wikipedia(), *(index(corpus) for corpus in (REALNEWS_TRAIN, *PILE_TRAIN)))
    cells, orders = list[Cell](), list[Order]()
    for column, text, own in zip(_COLUMNS, texts, indexes, strict=True):
        per: Per = "word" if column == "WikiText-103" else "token"
        readings = Readings(scale=scale, text=text, index=own, tokenizer=GPT2[0], per=per)
        for name, lm in zip(GPT2_NAMES, GPT2, strict=True):
            measured = {
                "none": readings.plain(lm),
                "BM25": readings.bm25(lm),
                "zero-shot": readings.zero_shot(lm),
                **({"predictive": readings.predictive(lm)} if per == "word" else {}),
            }
            for how, measure in measured.items():
                published = dict(zip(_COLUMNS, _PUBLISHED[name, how], strict=False)).get(column)
                head = f"{column}, {measure.per} perplexity"
                cells.append(Cell(model=name, how=how, column=head, measure=measure, published=published))
            pairs = (("BM25", "none"), ("zero-shot", "BM25"), ("predictive", "zero-shot"))
            orders += orders_of(f"{column}, {name}", measured, pairs)
    return Recipe(
        name="in-context-ralm/table-1",
        paper="In-Context RALM, Table 1 and Figure 2",
        about="Perplexity of GPT-2 on five corpora: without retrieval, with BM25's first passage, and with the best of "
        "16 by zero-shot and by predictive reranking.",
        cells=tuple(cells),
        orders=tuple(orders),
        figure=Figure(kind="bars", over="reading"),
        differs=(
            SEMANTICS,
            "RealNews is C4's part that is like it. ArXiv, Stack Exchange and FreeLaw are those of the Pile without "
            "the parts under copyright.",
            "Which 300,000 examples the reranker learned from is not published. Here they are drawn from all of "
            "WikiText-103's training set, 16 in a row, with prefixes of 128 to 252 tokens; candidates that share 13 "
            "words with the text at the continuation are left out.",
        ),
    )
