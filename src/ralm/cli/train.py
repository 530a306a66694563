"""`ralm signals` scores retrieved passages with a language model; `ralm train` trains small models on the scores."""

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from ralm.cli import options
from ralm.cli.corpus import KINDS
from ralm.cli.flags import Flags, Given
from ralm.cli.models import encoding_on, open_model
from ralm.corpus.documents import Fields
from ralm.errors import UsageError
from ralm.lm.registry import ModelOptions
from ralm.options import Needs, Option
from ralm.retrieval.retriever import RetrieverOptions
from ralm.training.options import (
    REPLUG,
    REPLUG_EXAMPLES,
    CandidateOptions,
    ExampleOptions,
    QueryEncoderOptions,
    RerankerOptions,
    RetrieverTrainingOptions,
    TrainingOptions,
    WeightingOptions,
)

_TRAINING, _READING = TrainingOptions(), RerankerOptions()
_TUNED, _BOTH = QueryEncoderOptions(), RetrieverTrainingOptions()
_CANDIDATES, _MODEL, _FIELDS = CandidateOptions(), ModelOptions(), Fields()
_WEIGHTING, _RETRIEVAL, _EXAMPLES = WeightingOptions(), RetrieverOptions(), ExampleOptions()
_SignalFolders = Annotated[
    list[Path], typer.Argument(metavar="SIGNALS", help="Folders that `ralm signals` made.", show_default=False)
]


def reranker_command(
    signals: _SignalFolders,
    init: Annotated[str, Option("Language model, encoder or cross-encoder to begin from: hub name or folder.")],
    out: Annotated[Path, Option("Folder for the reranker.")],
    index: Annotated[
        Path | None, Option("Index that the signals were measured with.", default_text="the one that they name")
    ] = None,
    reading: RerankerOptions = _READING,
    training: TrainingOptions = _TRAINING,
    force: options.Force = False,
    json: options.PrintJson = False,
) -> None:
    """Train a predictive reranker: a cross-encoder that learns which passage helps the language model most.

    Use it with `ralm eval --rerank predictive --reranker DIR`, or with sentence-transformers. Rerun the command after
    an interruption to resume at the last checkpoint.
    """

    from ralm.cli.output import print_json
    from ralm.cli.results import print_reranker
    from ralm.training.reranker import train_reranker
    from ralm.training.signals import open_signals

    trained = train_reranker(open_signals(*signals), out, init, training, reading, index=index, force=force)
    if json:
        print_json(
            {
                "reranker": str(out),
                "steps": trained.steps,
                "best_step": trained.best_step,
                "rank_weight": trained.rank_weight,
                "likelihood": trained.likelihood,
                "losses": [*trained.losses],
                "held_out": None if trained.held_out is None else {**trained.held_out},
            }
        )
    else:
        print_reranker(trained)


def _is_from_signals(command: Any) -> bool:
    from ralm.training.signals import is_signals

    return any(is_signals(Path(source)) for source in command.sources)


_FROM_SIGNALS: Final = Needs("SIGNALS", _is_from_signals)
_FROM_TEXT: Final = Needs("training text", lambda own: not _is_from_signals(own))


def retriever_command(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SIGNALS|SOURCE",
            help="Folders that `ralm signals` made, or training text as for `ralm signals`.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, Option("Folder for the trained encoder.")],
    index: Annotated[
        Path | None,
        Option("Index whose passages are found; training text needs it.", default_text="the one that the signals name"),
    ] = None,
    lm: Annotated[
        str | None,
        Option("Training text: the language model that scores it, as for `ralm signals`.", needs=_FROM_TEXT),
    ] = None,
    tuned: Annotated[QueryEncoderOptions, Option("The query encoder.", needs=_FROM_SIGNALS)] = _TUNED,
    both: Annotated[RetrieverTrainingOptions, Option("Both encoders.", needs=_FROM_TEXT)] = _BOTH,
    training: TrainingOptions = REPLUG,
    sampled: Annotated[ExampleOptions, Option("The examples.", needs=_FROM_TEXT)] = REPLUG_EXAMPLES,
    candidates: Annotated[
        CandidateOptions, Option("The candidates.", needs=_FROM_TEXT), Flags(without=("candidates",))
    ] = _CANDIDATES,
    model: Annotated[
        ModelOptions,
        Option("How the model runs.", needs=_FROM_TEXT),
        Flags(without=("device", "dry_run"), needs=options.MODEL_NEEDS),
    ] = _MODEL,
    fields: Annotated[
        Fields, Option("Which fields make a document.", needs=_FROM_TEXT), Flags(without=("metadata",))
    ] = _FIELDS,
    skip_bad: Annotated[bool, Option(options.SKIP_BAD, needs=_FROM_TEXT)] = False,
    ray: Annotated[
        str | None,
        Option(
            "Encode passages on the Ray cluster at this address, HOST:PORT or auto; training stays on this machine.",
            needs=_FROM_TEXT,
        ),
    ] = None,
    force: options.Force = False,
    json: options.PrintJson = False,
) -> None:
    """Train a retriever to find the passages that help the language model (REPLUG LSR).

    From SIGNALS, the query encoder alone is trained. The passages keep their vectors: search the same index with
    `--query-encoder OUT`. From training text, the encoders of queries and passages are trained together, as in the
    paper: passages are retrieved and scored on the way, and encoded again every `--refresh-every` steps by another
    process. The new vectors are added to the index. Rerun the command after an interruption to resume.
    """
    from ralm.cli.output import print_json
    from ralm.cli.results import print_encoders, print_query_encoder
    from ralm.training.signals import is_signals, open_signals

    kinds = {is_signals(Path(one)): one for one in sources}
    from_signals = True in kinds
    if len(kinds) == 2:
        raise UsageError(
            f"{kinds[True]} is a folder of signals, and {kinds[False]} is none: give only such folders, or only "
            "training text."
        )
    if from_signals:
        from ralm.training.retriever import train_query_encoder

        trained = train_query_encoder(open_signals(*sources), out, tuned, training, index=index, force=force)
        print_result = partial(print_query_encoder, trained)
    else:
        from ralm.retrieval.index import open_index
        from ralm.training.candidates import OnlineExamples
        from ralm.training.retriever import train_retriever

        if index is None or lm is None:
            raise UsageError(f"{' '.join(sources)} is training text: give `index` and `lm` too.")
        ahead = encoding_on(ray, both.refresh_device)
        opened = open_index(index)
        scoring = open_model(lm, replace(model, device=training.device))
        examples = OnlineExamples(sources, opened, scoring, sampled, candidates, fields=fields, skip_bad=skip_bad)
        trained = train_retriever(examples, opened, out, both, training, force=force, ahead=ahead)
        print_result = partial(print_encoders, trained, index, both.save_as or out.resolve().name)
    if json:
        print_json(
            {
                "retriever": str(out),
                "steps": trained.steps,
                "best_step": trained.best_step,
                "losses": [*trained.losses],
                "held_out": None if trained.held_out is None else {**trained.held_out},
                "refreshes": [*trained.refreshes],
            }
        )
    else:
        print_result()


def bm25_command(
    signals: _SignalFolders,
    lm: options.ModelName,
    out: Annotated[Path, Option("Folder for the weights.")],
    index: Annotated[
        Path | None, Option("Index that the signals were measured with.", default_text="the one that they name")
    ] = None,
    learning: WeightingOptions = _WEIGHTING,
    model: Annotated[ModelOptions, Flags(needs=options.MODEL_NEEDS)] = _MODEL,
    force: options.Force = False,
    json: options.PrintJson = False,
) -> None:
    """Learn how much more the last words of a query count, so that BM25's first passage helps the language model most.

    Searching with the weights (`--weighting OUT`) stays exact. If they gain nothing on held-out examples, the result is
    plain BM25. Rerun the command after an interruption to resume.
    """

    from ralm.cli.output import print_json
    from ralm.cli.results import print_weighting
    from ralm.training.bm25 import train_bm25
    from ralm.training.signals import open_signals

    learned = train_bm25(open_signals(*signals), open_model(lm, model), out, learning, index=index, force=force)
    if json:
        print_json(learned.as_json())
    else:
        print_weighting(out, learned)


def signals_command(
    given: Given,
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help=f"Training text: files ({KINDS}), folders, or hf:NAME, as for `ralm index`.",
            show_default=False,
        ),
    ],
    index: options.IndexFolder,
    lm: options.ModelName,
    out: Annotated[Path, Option("Folder to write.")],
    sampled: Annotated[ExampleOptions, Flags(default_text=options.QUERY_TOKENS_TEXT)] = _EXAMPLES,
    candidates: CandidateOptions = _CANDIDATES,
    retrieval: RetrieverOptions = _RETRIEVAL,
    model: Annotated[ModelOptions, Flags(needs=options.MODEL_NEEDS)] = _MODEL,
    fields: Annotated[Fields, Flags(without=("metadata",))] = _FIELDS,
    ray: options.ModelRay = None,
    skip_bad: options.SkipBad = False,
    force: options.Force = False,
    json: options.PrintJson = False,
) -> None:
    """Measure how likely each retrieved passage makes the next tokens of training text, for `ralm train`.

    Rerun the command to resume after it was stopped. Start it several times to share the work among processes. At the
    end it prints what choosing among the passages can gain.
    """
    sampled = options.with_query_tokens(sampled, retrieval, given)

    from ralm.cli.output import print_json
    from ralm.cli.results import print_worth
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
        print_json(asdict(signal_statistics(made)))
    else:
        print_worth(out, signal_statistics(made))
