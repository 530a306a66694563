r"""Checks what recipes read, and writes files of it: data sets of the hub, and stand-ins.

    python -m ralm.recipes.inputs RESOURCE FILE [TEXT]...    the file of a resource, from its data set or from texts
    python -m ralm.recipes.inputs stand-ins FOLDER           the folder of stand-ins

WikiText's rows are lines. Its text is all of them, an empty one as ` \n`, as in the official code of In-Context RALM.
Rows of other data sets are documents, with two line breaks between them.

Stand-ins are Python's documentation, ralm-tiny and an encoder with random weights. A tenth of the documentation is the
text to evaluate, the rest the corpus. Questions ask which function does what a docstring says; the choices are four
functions, with subjects of MMLU in turn. The encoder's vectors are sums of random vectors of words, so that it finds
passages with the same words, and there is something to learn.
"""

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from ralm.answering.multiple_choice import CATEGORIES
from ralm.corpus.files import read_text
from ralm.corpus.folder import HUB_PREFIX
from ralm.corpus.formats.arrow import dataset_records
from ralm.demo import held_out_text, split_held_out, standard_library_documentation
from ralm.errors import CorpusError, InputError, RalmError
from ralm.lm import TINY, model_path
from ralm.recipes.recipe import RESOURCES, Resource, ResourceKind, Step
from ralm.records import Document
from ralm.storage import manifest, outputs, remote

_KIND: Final = outputs.FolderKind("stand-ins")
_SUFFIXES: Final[dict[ResourceKind, str]] = {"text": ".txt", "titles": ".txt", "encoder": ""}
"""The ends of names of stand-ins, which begin with the kind of resource; all others are JSON Lines."""
_Row: TypeAlias = dict[str, Any]
_CHOICES: Final = 4
_DEMONSTRATIONS: Final = 40
_DOCUMENTED: Final = re.compile(r"^(?:async )?def (\w+)\(.*\):\n    (\w.{20,140}?\.)$", re.MULTILINE)
_HUB_SECONDS: Final = 10
_HEADING: Final = re.compile(r"^ = ([^=].*[^=]) = $", re.MULTILINE)
_JOINED: Final = re.compile(r" @(.)@ ")
_BEFORE: Final = re.compile(r" ([,.;:?!)%']|'s\b)")
_AFTER: Final = re.compile(r"([($]) ")


def write_input(name: str, path: Path, texts: Sequence[Path]) -> None:
    """Write the file of a resource, from its data set or from the texts that it is made of, or the stand-ins."""
    if name == "stand-ins":
        make_stand_ins(path)
    else:
        write_resource(RESOURCES[name], path, map(read_text, texts))


def write_resource(resource: Resource, path: Path, texts: Iterable[str] = ()) -> None:
    """Write the file of a resource atomically, from its data set or from the `texts` that it is made of."""
    with outputs.replaced_file(path) as stream:
        stream.writelines(_written(resource, texts if resource.made_of else _texts(resource)))
        if not (resource.made_of or stream.tell()):
            raise CorpusError(f"{resource.source} has nothing for {resource.name}.")


def plain_title(title: str) -> str:
    """Return a title as it was before WikiText's tokenization: `Ise @-@ class battleship` is `Ise-class battleship`."""
    joined = _JOINED.sub(r"\1", title)
    return _AFTER.sub(r"\1", _BEFORE.sub(r"\1", joined))


def articles(rows: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the title and text of each article in rows of WikiText."""
    title, lines = "", list[str]()
    for row in rows:
        if heading := _HEADING.fullmatch(row.rstrip("\n")):
            if lines:
                yield title, "".join(lines)
            title, lines = heading[1], []
        elif row.strip():
            lines.append(row)
    if lines:
        yield title, "".join(lines)


def _texts(resource: Resource) -> Iterator[str]:
    path, value = resource.only or ("", "")
    column, _, field = path.partition(".")

    def is_chosen(record: Mapping[str, Any]) -> bool:
        entry = record.get(column)
        return not resource.only or (isinstance(entry, Mapping) and entry.get(field) == value)

    source = resource.source.removeprefix(HUB_PREFIX)
    records = dataset_records(source, lambda schema: [name for name in schema.names if name in ("text", column)])
    for record in islice(filter(is_chosen, records), resource.max_rows):
        if not isinstance(record.get("text"), str):
            raise CorpusError(f"{resource.source} has a record without a text.")
        yield str(record["text"])


def _written(resource: Resource, texts: Iterable[str]) -> Iterator[str]:
    """Yield the parts of the file."""
    match resource.form:
        case "wikitext":
            yield from (text or " \n" for text in texts)
        case "joined":
            for number, text in enumerate(texts):
                yield f"\n\n{text}" if number else text
        case "articles":
            for title, text in articles(texts):
                yield json.dumps({"title": title, "text": text}, ensure_ascii=False) + "\n"
        case "lines":
            yield from (json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
        case "titles":  # as WikiText writes them, and as Wikipedia does
            titles = [title for text in texts for title in _HEADING.findall(text)]
            variants = dict.fromkeys(variant for title in titles for variant in (title, plain_title(title)))
            yield from (f"{title}\n" for title in variants)
        case _:
            raise AssertionError(resource.form)


def check_resources(steps: Sequence[Step]) -> None:
    """Raise InputError with the models and data of steps to be done that are neither here nor on the hub."""
    undone = [step for step in steps if not step.is_done]
    made = {needed.path for step in undone for needed in step.needs}
    pairs = dict.fromkeys((part.name, source) for step in undone for part, source in step.reads)
    read = [(name, source) for name, source in pairs if not {Path(source), Path(source).parent} & made]
    with ThreadPoolExecutor() as several:
        reached = dict(zip(read, several.map(_is_reached, (source for _, source in read)), strict=True))
    if missing := [f"{name} ({source})" for (name, source), is_there in reached.items() if not is_there]:
        raise InputError(
            f"neither here nor on the hub: {', '.join(missing)}. Give your own with `use` NAME=PATH; `ralm recipe "
            "show` of the recipe describes them."
        )


def _is_reached(source: str) -> bool:
    """Return whether a model or data set is on this machine, or the hub answers for it; URLs are taken for there."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.file_download import repo_folder_name

    kind, name = "model", source
    if source.startswith(HUB_PREFIX):
        kind, name = "dataset", source.removeprefix(HUB_PREFIX).partition(":")[0]
    if name == TINY or remote.is_url(source) or Path(name).exists():
        return True
    try:
        if not (Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=name, repo_type=kind)).exists():
            HfApi().repo_info(name, repo_type=kind, timeout=_HUB_SECONDS)
    except Exception:  # noqa: BLE001  # the hub and its client raise many kinds
        return False
    return True


def stand_in(kind: ResourceKind, folder: Path) -> Path:
    """Return the stand-in for a resource of a kind, in the folder of `make_stand_ins`."""
    return folder / f"{kind}{_SUFFIXES.get(kind, '.jsonl')}"


def make_stand_ins(folder: Path) -> None:
    """Write the folder of stand-ins; the same Python gives the same files."""
    corpus, held_out = split_held_out(standard_library_documentation())
    questions = [*_described(corpus)]
    np.random.default_rng(0).shuffle(questions)
    choices = [*_with_choices(questions)]
    rows: dict[ResourceKind, Sequence[_Row]] = {
        "corpus": [{"id": document.id, "title": document.title, "text": document.text} for document in corpus],
        "demonstrations": questions[:_DEMONSTRATIONS],
        "choice-demonstrations": choices[:_DEMONSTRATIONS],
        "questions": questions[_DEMONSTRATIONS:],
        "choices": choices[_DEMONSTRATIONS:],
    }
    with outputs.new_folder(folder, kind=_KIND, force=False) as partial:
        stand_in("text", partial).write_text(held_out_text(held_out), encoding="utf-8")
        titles = "".join(f"{document.title}\n" for document in held_out)
        stand_in("titles", partial).write_text(titles, encoding="utf-8")
        for kind, table in rows.items():
            lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in table)
            stand_in(kind, partial).write_text("".join(lines), encoding="utf-8")
        _save_encoder(stand_in("encoder", partial))
        manifest.write_manifest(partial, kind=_KIND, settings={}, counts={})


def _described(documents: Sequence[Document]) -> Iterator[_Row]:
    """Yield a question for the first documented function of each document."""
    for document in documents:
        for name, description in _DOCUMENTED.findall(document.text)[:1]:
            question = f"Which function of {document.title} does this: {description}"
            yield {"question": question, "answer": [name]}


def _with_choices(questions: Sequence[_Row]) -> Iterator[_Row]:
    """Yield the questions with four choices, and one subject of each category of MMLU in turn."""
    random, names = np.random.default_rng(1), sorted({row["answer"][0] for row in questions})
    subjects = cycle([category[0] for category in CATEGORIES.values()])
    for row, subject in zip(questions, subjects, strict=False):
        [right] = row["answer"]
        wrong = [name for name in random.choice(names, _CHOICES, replace=False).tolist() if name != right]
        choices = random.permutation([right, *wrong[: _CHOICES - 1]]).tolist()
        answer = choices.index(right)
        yield {"question": row["question"], "choices": choices, "answer": answer, "subject": subject}


def _save_encoder(folder: Path) -> None:
    """Write a small BERT with ralm-tiny's tokenizer, mean pooling and weights that are drawn with a fixed seed."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertModel

    from ralm.lm.local.loading import no_bars

    tokenizer = AutoTokenizer.from_pretrained(model_path(TINY))
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(0)
    tokenizer.model_max_length = 512
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=512, pad_token_id=0, **sizes)
    model = BertModel(config, add_pooling_layer=False)
    draws = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if weights.dim() > 1:
                wide = 1.0 if "word_embeddings" in name else 0.01
                weights.copy_(torch.randn(weights.shape, generator=draws) * wide)
    with no_bars():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    try:
        write_input(sys.argv[1], Path(sys.argv[2]), [*map(Path, sys.argv[3:])])
    except RalmError as error:
        sys.exit(str(error))
