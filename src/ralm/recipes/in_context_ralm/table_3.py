"""Table 3: a smaller model chooses the passage for a larger one."""

from typing import Final

from ralm.recipes.in_context_ralm.readings import SEMANTICS, Readings, wikipedia
from ralm.recipes.recipe import Cell, Recipe, Scale
from ralm.recipes.resources import GPT2, REALNEWS_DEV, REALNEWS_TRAIN, WIKITEXT_TEST
from ralm.recipes.steps import index

_PUBLISHED: Final = {
    "GPT-2 M": ((20.8, 12.1), (20.8, 12.0)),
    "GPT-2 L": ((17.7, 10.7), (17.6, 10.6)),
    "GPT-2 XL": ((16.2, 9.9), (16.1, 9.8)),
}


def recipe(scale: Scale) -> Recipe:
    """The table."""
    wikitext = Readings(scale=scale, text=WIKITEXT_TEST, index=wikipedia(), tokenizer=GPT2[0])
    news = Readings(scale=scale, text=REALNEWS_DEV, index=index(REALNEWS_TRAIN), tokenizer=GPT2[0], per="token")
    columns = (("WikiText-103, word perplexity", wikitext), ("RealNews, token perplexity", news))
    cells = []
    for (name, rows), lm in zip(_PUBLISHED.items(), GPT2[1:], strict=True):
        for how, ranker, published in zip(
            ("ranked by GPT-2 S", "ranked by itself"), (GPT2[0], None), rows, strict=True
        ):
            cells += [
                Cell(model=name, how=how, column=column, measure=readings.zero_shot(lm, ranker), published=value)
                for (column, readings), value in zip(columns, published, strict=True)
            ]
    return Recipe(
        name="in-context-ralm/table-3",
        paper="In-Context RALM, Table 3",
        about="Zero-shot reranking by GPT-2 S against reranking by the model that reads.",
        cells=tuple(cells),
        differs=(SEMANTICS, "RealNews is C4's part that is like it."),
    )
