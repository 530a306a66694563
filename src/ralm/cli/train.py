"""`ralm signals` scores retrieved passages with a language model; `ralm train` trains small models on the scores."""

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import JsonValue

import ralm
from ralm.cli import options
from ralm.cli.flags import Output, UserFlags, check_unused
from ralm.cli.process import open_model
from ralm.corpus.documents import Fields
from ralm.errors import UsageError
from ralm.options import Option, options_of
from ralm.settings import LM_ARGS, PipelineOptions
from ralm.training.options import REPLUG, REPLUG_EXAMPLES


def reranker_command(
    *,
    signals: Annotated[Path, options.argument("Folder that `ralm signals` made.", "SIGNALS")],
    out: Annotated[Path, Option("Folder for the reranker.")],
    index: Annotated[
        Path | None, Option("Index that the signals were measured with.", default_text="the one that they name")
    ] = None,
    init: Annotated[str, Option("Language model, encoder or cross-encoder to begin from: hub name or folder.")],
    reading: ralm.RerankerOptions,
    training: Annotated[ralm.TrainingOptions, Option("How the training runs.")],
    force: options.Force = False,
) -> Output:
    """Train a reranker, a cross-encoder that chooses the passages that help the language model most.

    Use it with `--rerank predictive:cross_encoder=DIR`, or with sentence-transformers. Rerun the command after an
    interruption to resume at the last checkpoint.

    Example: `ralm train reranker my-signals --init cross-encoder/ms-marco-MiniLM-L6-v2 -o my-reranker`
    """
    from ralm.cli.results import print_reranker

    trained = ralm.train_reranker(signals, out, init, training, reading, index=index, force=force)
    return Output(partial(_as_json, "reranker", trained), partial(print_reranker, trained))


def _as_json(name: str, trained: Any) -> dict[str, JsonValue]:
    """Return the outcome of a training; `name` is the key of its folder."""
    fields = asdict(trained)
    return {name: str(fields.pop("out")), **fields}


def _keys(*records: type) -> set[str]:
    return {option.key for record in records for option in options_of(record)}


_OF_SIGNALS: Final = _keys(ralm.QueryEncoderOptions) - _keys(ralm.RetrieverTrainingOptions)
_OF_TEXT: Final = (
    _keys(ralm.RetrieverTrainingOptions, ralm.ExampleOptions, ralm.CandidateOptions)
    - _keys(ralm.QueryEncoderOptions, ralm.TrainingOptions)
) | {"lm", "lm_args", "fields", "skip_bad"}
"""Options of `ralm train retriever` that have an effect with signals, or with training text, alone."""


def retriever_command(
    *,
    user_flags: UserFlags,
    sources: Annotated[
        list[str],
        options.argument("Folder that `ralm signals` made, or training text as for `ralm signals`.", "SIGNALS|SOURCE"),
    ],
    out: Annotated[Path, Option("Folder for the trained encoder.")],
    index: Annotated[
        Path | None,
        Option("Index whose passages are found; training text needs it.", default_text="the one that the signals name"),
    ] = None,
    lm: Annotated[
        str | None, Option("Training text: the language model that scores it, as for `ralm signals`.")
    ] = None,
    tuned: Annotated[ralm.QueryEncoderOptions, Option("The query encoder.")],
    both: Annotated[ralm.RetrieverTrainingOptions, Option("Both encoders.")],
    training: Annotated[ralm.TrainingOptions, Option("How the training runs.")] = REPLUG,
    sampled: Annotated[ralm.ExampleOptions, Option("The examples.")] = REPLUG_EXAMPLES,
    candidates: Annotated[ralm.CandidateOptions, Option("The candidates.", without=("candidates",))],
    model: Annotated[ralm.ModelOptions, LM_ARGS],
    fields: Annotated[Fields, options.FIELDS],
    skip_bad: Annotated[bool, options.SKIP_BAD] = False,
    force: options.Force = False,
) -> Output:
    """Train a retriever to find the passages that help the language model (REPLUG LSR).

    From SIGNALS, the query encoder alone is trained. The passages keep their vectors: search the same index with
    `--retriever dense:query_encoder=OUT`. From training text, the encoders of queries and passages are trained
    together, as in the paper: passages are retrieved and scored on the way, and encoded again every `--refresh-every`
    steps. The new vectors are added to the index. Rerun the command after an interruption to resume.

    Example: `ralm train retriever my-signals -o my-encoder`
    """
    from ralm.cli.results import print_retriever
    from ralm.training.signals import is_signals

    from_signals = any(is_signals(Path(source)) for source in sources)
    if from_signals:
        check_unused(user_flags, _OF_TEXT, " without training text")
        if len(sources) > 1:
            raise UsageError("a training reads one folder of signals, or training text: give only one of them.")
        trained = ralm.train_query_encoder(sources[0], out, tuned, training, index=index, force=force)
        what, before = "query encoder", tuned.init or "the encoder that the index names"
        use = f"search the same index with --retriever dense:query_encoder={trained.out}"
    else:
        check_unused(user_flags, _OF_SIGNALS, " without SIGNALS")
        if index is None or lm is None:
            raise UsageError(f"{' '.join(sources)} is training text: give `index` and `lm` too.")
        if model.device != "auto":
            raise UsageError("the model runs where the training does: give `device`, and leave it out of `model`.")
        model.check_effect(lm)
        opened = ralm.open_index(index)
        scoring = open_model(lm, replace(model, device=training.device))
        examples = ralm.OnlineExamples(sources, opened, scoring, sampled, candidates, fields=fields, skip_bad=skip_bad)
        trained = ralm.train_retriever(examples, opened, out, both, training, force=force)
        what, before = "encoders", "the vectors that the training began with"
        use = f"search {index} with --retriever dense:vectors={out.resolve().name}"
    return Output(partial(_as_json, "retriever", trained), partial(print_retriever, trained, what, before, use))


def signals_command(
    *,
    user_flags: UserFlags,
    sources: Annotated[
        list[str],
        options.argument(
            f"Training text: files ({options.KINDS}), folders, or hf:NAME, as for `ralm index`.", "SOURCE..."
        ),
    ],
    index: options.IndexFolder,
    lm: options.ModelName,
    out: Annotated[Path, Option("Folder to write.")],
    sampled: Annotated[ralm.ExampleOptions, Option("The examples.")],
    candidates: Annotated[ralm.CandidateOptions, Option("The candidates.")],
    retrieval: Annotated[ralm.RetrieverOptions, Option("How passages are retrieved.")],
    model: options.Model,
    fields: Annotated[Fields, options.FIELDS],
    skip_bad: options.SkipBad = False,
    force: options.Force = False,
) -> Output:
    """Measure how likely each retrieved passage makes the next tokens of training text, for `ralm train`.

    Rerun the command to resume after it was stopped. At the end it prints what choosing among the passages can gain.

    Example: `ralm signals my-texts/ -m smollm2 -i my-index -o my-signals`
    """
    from ralm.cli.results import print_worth
    from ralm.pipeline import open_pipeline
    from ralm.storage.outputs import check_output
    from ralm.training.signals import SIGNALS_KIND

    check_output(out, kind=SIGNALS_KIND, force=force)
    opened = ralm.open_index(index)
    source = ralm.FromRetriever.of_index(opened, retrieval)
    pipeline = open_pipeline(PipelineOptions(lm=lm, model=model), source=source, load=open_model)
    made = ralm.make_signals(
        out,
        sources,
        opened,
        pipeline.model,
        options.with_query_tokens(sampled, retrieval, user_flags),
        candidates,
        retriever=source.retriever,
        fields=fields,
        skip_bad=skip_bad,
        force=force,
    )
    statistics = ralm.signal_statistics(made)
    return Output(partial(asdict, statistics), partial(print_worth, out, statistics))
