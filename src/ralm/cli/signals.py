"""`ralm signals`: measures what a language model makes of retrieved passages, to learn from it."""

from pathlib import Path
from typing import Annotated

import typer

from ralm.cli import options
from ralm.cli.corpus import KINDS
from ralm.cli.flags import Flags
from ralm.cli.idle import Use, given_options, refuse_idle
from ralm.cli.models import open_model
from ralm.corpus.documents import Fields
from ralm.lm.options import ModelOptions
from ralm.options import Option
from ralm.retrieval.retriever import RetrieverOptions
from ralm.training.options import CandidateOptions, ExampleOptions

_RETRIEVAL, _MODEL, _FIELDS = RetrieverOptions(), ModelOptions(), Fields()
_EXAMPLES, _CANDIDATES = ExampleOptions(), CandidateOptions()


def signals(
    context: typer.Context,
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help=f"Training text: files ({KINDS}), folders, or hf:NAME, as for `ralm index`.",
            show_default=False,
        ),
    ],
    index: options.Index,
    lm: options.Model,
    out: Annotated[Path, Option("Folder to write.")],
    sampled: Annotated[ExampleOptions, Flags(default_said=options.QUERY_TOKENS_SAID)] = _EXAMPLES,
    candidates: CandidateOptions = _CANDIDATES,
    retrieval: RetrieverOptions = _RETRIEVAL,
    model: ModelOptions = _MODEL,
    fields: Annotated[Fields, Flags(without=("metadata",))] = _FIELDS,
    ray: options.Ray = None,
    skip_bad: options.SkipBad = False,
    force: options.Force = False,
    json: options.Json = False,
) -> None:
    """Measure how likely each retrieved passage makes the next tokens of training text, for `ralm train`.

    Rerun the command to resume after it was stopped. Start it several times to share the work among processes. At the
    end it prints what choosing among the passages can gain.
    """
    refuse_idle(context, Use(retrieval), Use(sampled), Use(model), *options.model_uses(lm))
    sampled = options.with_query_tokens(sampled, retrieval, given_options(context))

    from ralm.cli.output import print_json, print_worth
    from ralm.retrieval.index import open_index
    from ralm.retrieval.retriever import open_retriever
    from ralm.training.signal_writer import check_early, make_signals
    from ralm.training.signals import signal_statistics

    check_early(out, force=force)
    opened = open_index(index)
    made = make_signals(
        out,
        sources,
        opened,
        open_model(lm, model, ray),
        sampled,
        candidates,
        retriever=open_retriever(opened, retrieval),
        fields=fields,
        skip_bad=skip_bad,
        force=force,
    )
    if json:
        print_json(signal_statistics(made).as_json())
    else:
        print_worth(out, signal_statistics(made))
