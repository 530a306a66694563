"""An index (`ralm info`), a folder or the installation (`ralm check`), a server (`ralm probe`), parts (`ralm help`)."""

from collections.abc import Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args, get_origin

from pydantic import JsonValue

import ralm
from ralm.cli import flags, options
from ralm.corpus.documents import Fields
from ralm.environment import Environment, read_environment
from ralm.errors import UsageError
from ralm.grammar import as_text, keys_of
from ralm.lm.api.endpoint import is_api
from ralm.options import Declared, Option, annotation, without_none
from ralm.retrieval.dense.options import EncoderArguments
from ralm.serving.options import Limits
from ralm.settings import CATALOGUES
from ralm.validation import MAX_COUNT

if TYPE_CHECKING:
    from ralm.retrieval.index import DocumentSummary

_LABEL: Final = 12
_SYNC: Final = {True: "possible", False: "not possible: a program built it"}


def info_command(
    *,
    index: options.IndexArgument,
    documents: Annotated[
        bool, Option("List the documents instead: passages, characters, id and title of each.")
    ] = False,
) -> flags.Output:
    """Say what an index is: how many documents it has, of which sources, how it was built, and its size.

    Example: `ralm info my-index`
    """
    from ralm.retrieval.index import summarise_documents, summarise_index

    if documents:
        listed = summarise_documents(ralm.open_index(index).passages)
        return flags.Output(lambda: {"documents": [row._asdict() for row in listed]}, lambda: _print_documents(listed))
    summary = summarise_index(ralm.open_index(index))
    return flags.Output(lambda: summary, lambda: _print_summary(summary))


def _print_summary(summary: dict[str, Any]) -> None:
    from ralm.cli.output import print_line
    from ralm.terminal import one_line

    def show(what: str, text: str) -> None:
        print_line(f"  {what:<{_LABEL}}{one_line(text)}")

    print_line(one_line(summary["index"]))
    for what, count in summary["counts"].items():
        show(what, f"{count:,}")
    size = summary["bytes"]
    show("size", f"{size / 1e6:,.1f} MB" if size >= 1e6 else f"{size / 1e3:,.1f} kB")
    show("built", f"{summary['created']}, ralm {summary['ralm_version']}")
    for source in summary["sources"]:
        missing = " (not found)" if source["found"] is False else ""
        show("source", source["name"] + (f": {source['path']}{missing}" if source["path"] else ""))
    show("ralm sync", _SYNC[summary["can_sync"]])
    show("splitting", _settings(summary["splitting"]))
    show("BM25", _settings(summary["bm25"]))
    for vectors in summary["vectors"]:
        default = " (default)" if vectors["default"] else ""
        show("vectors", f"{vectors['name']}{default}: {_settings({**vectors['encoder'], 'faiss': vectors['faiss']})}")
    for reason, count in summary["skipped"].items():
        show("left out", f"{reason}: {count:,}")
    for reason, counts in summary["decontaminated"].items():
        show("left out", f"for {reason}: {counts['passages']:,} passages")


def _settings(record: dict[str, Any] | None) -> str:
    """Return the settings of a record that are no records and not null."""
    if record is None:
        return "none"
    return ", ".join(f"{name} {value}" for name, value in record.items() if not isinstance(value, dict | list | None))


def _print_documents(documents: "Iterable[DocumentSummary]") -> None:
    from ralm.cli.output import document_name, print_line

    for document in documents:
        name = document_name(document.document_id, document.title)
        print_line(f"{document.passages:>8,} {document.characters:>12,}  {name}")


def check_command(
    folder: Annotated[
        Path | None, options.argument("Folder of an index, a run, a sweep, signals or a trained model.", "DIR")
    ] = None,
    environment: Annotated[
        bool, Option("Check the installation instead: versions, extras and what they lack, device.")
    ] = False,
) -> flags.Output:
    """Read every byte of a folder that ralm wrote, and report damage. The exit status is 1 if anything is damaged.

    Opening a folder reads files up to 64 MiB, and compares the sizes of larger ones. This command reads all files, and
    checks that they are consistent with each other. With --environment, the exit status is 1 if a package is missing
    that ralm itself needs, or has a version that ralm does not allow.

    Example: `ralm check my-index`
    """
    if environment == (folder is not None):
        raise UsageError("give a folder to check, or `environment`.")

    from ralm.cli.output import print_line
    from ralm.runs.run import verify_folder

    if folder is None:
        installed = read_environment()
        lines = partial(_print_environment, installed)
        return flags.Output(lambda: asdict(installed), lines, status=int(not installed.is_sound))
    kind, damaged = verify_folder(folder)
    shown = partial(print_line, "\n".join(damaged or [f"{folder}: this {kind} is whole"]))
    result: dict[str, JsonValue] = {"folder": str(folder), "kind": kind, "damaged": [*damaged]}
    return flags.Output(lambda: result, shown, status=int(bool(damaged)))


def _print_environment(installed: Environment) -> None:
    from ralm.cli.output import print_line

    print_line(
        f"ralm {installed.ralm}, Python {installed.python}, {installed.platform}, {installed.processors} processors"
    )
    print_line(installed.device or "no torch, so no local models: pip install 'ralm[lm]'")
    print_line(f"extras: {', '.join(installed.extras) or 'none'}")
    for extra, packages in installed.missing.items():
        where = f"ralm[{extra}]" if extra else "ralm"
        if extra != "all":
            print_line(f"{where} lacks {', '.join(packages)}: pip install '{where}'")
    for misfit in installed.misfits:
        print_line(f"another version is needed: {misfit}")


def probe_command(
    lm: Annotated[str, options.argument("Model behind an API; or PROVIDER:MODEL.", "URL#MODEL")],
    model_options: options.Model,
) -> flags.Output:
    """Probe a server of a language model: which log-probabilities it returns.

    The server scores and continues a known text in several ways, and its figures must agree with each other. Other
    commands probe on first contact; this one always does, and prints the result.

    Example: `ralm probe http://localhost:8000#my-model`
    """
    if not is_api(lm):
        raise UsageError(f"{lm} is not a model behind an API; write URL#MODEL.")

    from ralm.cli.output import print_line
    from ralm.lm.registry import probe_language_model

    model_options.check_effect(lm)
    model = probe_language_model(lm, model_options.api)
    from ralm.lm.api.probe import cache_difference  # needs the extra, like the line before

    with model.client:
        difference = cache_difference(model)
    probed, config, scores_prompts = model.capabilities, model.capabilities.config, model.backend.scores_prompts
    length = f"{probed.max_length:,} tokens" if probed.max_length else "not reported; write --lm-args context_length=N"
    capabilities = {
        "backend": f"{config.backend}, with {'token ids' if config.as_ids else 'text'} as prompts",
        "prompt's log-probs": "yes" if scores_prompts else "no",
        "chosen tokens": "yes" if model.backend.max_chosen else "no",
        "most likely tokens": config.top_logprobs or "none",
        "BOS": "put before text by the server" if config.begin is not None else "none added",
        "reads at once": length,
        "asked again": "no figures" if difference is None else f"figures differ by at most {difference:.2g} nats",
    }

    def print_capabilities() -> None:
        print_line(f"{model.name}\n  tier {model.backend.tier}")
        for what, value in capabilities.items():
            print_line(f"  {what:<20}{value}")
        for what, reason in probed.ruled_out:
            print_line(f"  not {what}: {reason}")
        print_line(f"  {model.client.usage.describe()}")

    result = {"name": model.name, **asdict(probed), "tier": model.backend.tier, "cache_difference": difference}
    return flags.Output(lambda: result, print_capabilities)


RECORDS: Final[dict[str, dict[str, type]]] = {
    **{kind: dict(catalogue.records) for kind, catalogue in CATALOGUES.items()},
    "lm-args": {"": ralm.ModelOptions},
    "encoder-args": {"": EncoderArguments},
    "fields": {"": Fields},
    "question-fields": {"": ralm.QuestionFields},
    "limits": {"": Limits},
}
"""The record of each part, by its kind and name; options that name no part, such as `--limits`, have it under ""."""


def help_command(
    part: Annotated[str | None, options.argument(f"Kind of part: {', '.join(RECORDS)}.", "PART")] = None,
) -> None:
    """List the parts of a kind and their keys, each with its default and bounds.

    A part is written NAME:key=value,key=value: `--reader ensemble:documents=4`. A value that holds a comma stands in
    quotes. A class of your own is module:Class:key=value.

    Example: `ralm help mixer`
    """
    from ralm.cli.output import print_line

    if part not in (*RECORDS, None):
        raise UsageError(
            f"there is no kind of part {part!r}: give one of {', '.join(RECORDS)}; for a command, ralm NAME --help."
        )
    for kind in RECORDS if part is None else (part,):
        for name, record in RECORDS[kind].items():
            print_line("--fields of ralm qa" if kind == "question-fields" else f"--{kind} {name}".rstrip())
            for key, declaration in keys_of(record).items():
                print_line(f"    {key + '=' + default_of(declaration):<28} {meaning_of(declaration)}")


def default_of(declaration: Declared) -> str:
    """Return the default of a key as it is written, or "..." if it is no fixed value."""
    value: Any = declaration.default
    if declaration.option.default_text is not None or not isinstance(value, bool | int | float | str):
        return "..."
    return as_text(value)


def meaning_of(declaration: Declared) -> str:
    """Return the help of a key with its default in words, its choices and its bounds."""
    option, kind = declaration.option, without_none(annotation(declaration.kind)[0])
    notes = [f"default: {option.default_text}"] if option.default_text else []
    if get_origin(kind) is Literal:
        notes.append("one of " + ", ".join(get_args(kind)))
    elif kind in (int, float):
        highest = "" if option.maximum >= MAX_COUNT else f" to {option.maximum:g}"
        notes.append(f"{'above' if option.above else 'from'} {option.lowest(whole=kind is int):g}{highest}")
    return option.help + (f" [{'; '.join(notes)}]" if notes else "")
