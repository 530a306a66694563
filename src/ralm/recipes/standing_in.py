"""What stands in for the papers' data and models: Python's documentation, ralm-tiny, an encoder with random weights.

A tenth of the documentation is the text to evaluate, the rest the corpus. Questions ask which function does what a
docstring says; the choices are four functions, with subjects of MMLU in turn. The encoder's vectors are sums of random
vectors of words, so that it finds passages with the same words, and there is something to learn.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import numpy as np

from ralm.answering.multiple_choice import CATEGORIES
from ralm.demo.demonstration import held_out_text
from ralm.demo.documentation import split_held_out, standard_library_documentation
from ralm.lm.named import model_folder
from ralm.recipes.resources import Kind
from ralm.records import Document
from ralm.storage.manifest import read_manifest, write_manifest
from ralm.storage.outputs import MANIFEST, new_folder

KIND: Final = "stand-ins"
FORMAT_VERSION: Final = 1
MODEL: Final = "ralm-tiny"
FILES: Final[dict[Kind, str]] = {
    "text": "text.txt",
    "corpus": "corpus.jsonl",
    "titles": "titles.txt",
    "questions": "questions.jsonl",
    "demonstrations": "demonstrations.jsonl",
    "choices": "choices.jsonl",
    "choice-demonstrations": "choice-demonstrations.jsonl",
    "encoder": "encoder",
}
"""The files and the folder of stand-ins, by what they stand in for."""

_CHOICES: Final = 4
_DEMONSTRATIONS: Final = 40
_DOCUMENTED: Final = re.compile(r"^(?:async )?def (\w+)\(.*\):\n    (\w.{20,140}?\.)$", re.MULTILINE)


def stand_in(kind: Kind, folder: Path) -> str:
    """What stands in for a resource of a kind: ralm-tiny, or a file in the folder that `make_stand_ins` made."""
    return MODEL if kind == "model" else str(folder / FILES[kind])


def make_stand_ins(folder: Path) -> None:
    """Write the folder of stand-ins, unless it is there. The same Python gives the same files.

    Raises NotAFolderOfThisKindError or DamagedFolderError if something else is there, or if a file was changed.
    """
    if (folder / MANIFEST).exists():
        read_manifest(folder, kind=KIND, format_version=FORMAT_VERSION)
        return
    corpus, held_out = split_held_out(standard_library_documentation())
    asked = [*_described(corpus)]
    np.random.default_rng(0).shuffle(asked)
    choices = [*_with_choices(asked)]
    with new_folder(folder, kind=KIND, force=False) as partial:
        (partial / FILES["text"]).write_text(held_out_text(held_out), encoding="utf-8")
        _write(partial / FILES["corpus"], [{"id": one.id, "title": one.title, "text": one.text} for one in corpus])
        (partial / FILES["titles"]).write_text("".join(f"{one.title}\n" for one in held_out), encoding="utf-8")
        for kind, rows in (("demonstrations", asked), ("choice-demonstrations", choices)):
            _write(partial / FILES[kind], [_as_row(one) for one in rows[:_DEMONSTRATIONS]])  # type: ignore[index]
        for kind, rows in (("questions", asked), ("choices", choices)):
            _write(partial / FILES[kind], [_as_row(one) for one in rows[_DEMONSTRATIONS:]])  # type: ignore[index]
        _save_encoder(partial / FILES["encoder"])
        write_manifest(folder=partial, kind=KIND, format_version=FORMAT_VERSION, settings={}, counts={})


@dataclass(frozen=True, slots=True)
class _Asked:
    """A question about a function, its name, and four names to choose from with a subject."""

    question: str
    answer: str
    choices: tuple[str, ...] = ()
    subject: str = ""


def _as_row(asked: _Asked) -> dict[str, Any]:
    if asked.choices:
        return {
            "question": asked.question,
            "choices": [*asked.choices],
            "answer": asked.choices.index(asked.answer),
            "subject": asked.subject,
        }
    return {"question": asked.question, "answer": [asked.answer]}


def _described(documents: Sequence[Document]) -> Iterator[_Asked]:
    """A question for the first documented function of each document."""
    for document in documents:
        for name, said in _DOCUMENTED.findall(document.text)[:1]:
            yield _Asked(f"Which function of {document.title} does this: {said}", name)


def _with_choices(asked: Sequence[_Asked]) -> Iterator[_Asked]:
    """The same with four choices, and one subject of each category of MMLU in turn."""
    random, names = np.random.default_rng(1), sorted({one.answer for one in asked})
    subjects = cycle([category[0] for category in CATEGORIES.values()])
    for one, subject in zip(asked, subjects, strict=False):
        others = [name for name in random.choice(names, _CHOICES, replace=False).tolist() if name != one.answer]
        order = random.permutation(_CHOICES).tolist()
        four = [one.answer, *others[: _CHOICES - 1]]
        yield _Asked(one.question, one.answer, tuple(four[place] for place in order), subject)


def _write(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def _save_encoder(folder: Path) -> None:
    """A small BERT with ralm-tiny's tokenizer, mean pooling and weights that are drawn with a fixed seed."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertModel

    from ralm.lm.local.files import no_bars

    tokenizer = AutoTokenizer.from_pretrained(model_folder(MODEL))
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(0)
    tokenizer.model_max_length = 512
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=512,
        pad_token_id=0,
    )
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
