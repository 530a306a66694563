"""The demo: questions about Python to a small chat model, and a tenth of Python's documentation to predict.

The corpus needs no download: it is the language reference and the docstrings of the standard library of this Python,
without the tenth that is held out. Source files are parsed with `ast`; nothing is imported or run. The model answers
with passages of the corpus and without. The held-out text is read without passages, with random ones (the control),
with BM25's first, and with the recommended settings.
"""

import ast
import hashlib
import inspect
import json
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
from pydantic import JsonValue

from ralm.answering.answerer import SourcedAnswer
from ralm.corpus.files import read_text
from ralm.corpus.splitting import make_passages
from ralm.errors import FolderError, UsageError
from ralm.evaluation.perplexity import Evaluation, Reading
from ralm.evaluation.report import Report
from ralm.pipeline import Pipeline, open_pipeline
from ralm.protocols import LanguageModel
from ralm.reading import ReadingOptions
from ralm.reading.plan import PlanOptions
from ralm.records import Document
from ralm.retrieval.build import build_index
from ralm.retrieval.retriever import RetrieverOptions
from ralm.settings import PipelineOptions
from ralm.storage import manifest, outputs

_KIND: Final = outputs.FolderKind("demo")
CORPUS: Final = "corpus.jsonl"
HELD_OUT: Final = "heldout.txt"
INDEX: Final = "index"
REPORT: Final = "report.html"

PLAN: Final = PlanOptions(stride=8, windows="blocked", block=256, max_length=768)
"""Blocked windows, a longer stride and a shorter model length than in the papers, so that a laptop needs a minute."""
RECOMMENDED: Final = ReadingOptions(reader="ensemble:documents=4,temperature=8", mixer="posterior")
"""The settings of docs/ensembles.md#recommended-settings."""
QUESTIONS: Final = (
    "Which exception does graphlib raise if the graph has a cycle?",
    "Who wrote the module wsgiref.headers?",
)
"""Questions that the corpus answers, and that SmolLM2 gets wrong without it."""
NEW_TOKENS: Final = 32
"""The longest answer."""
MIN_WORDS: Final = 30
"""Shorter documents are skipped: they contain almost nothing to retrieve."""
_HELD_OUT_SHARE: Final = 0.1
_NOT_DOCUMENTATION: Final = frozenset(
    {"test", "tests", "testing", "idle_test", "idlelib", "lib2to3", "turtledemo", "ensurepip", "pydoc_data"}
    | {"site-packages", "dist-packages", "__pycache__", "_vendor", "vendor"}
)
"""Folders that hold tests, bundled programs or other people's packages."""
_Routine: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


def build_demo_folder(folder: Path) -> None:
    """Write corpus, held-out text and index, in place of an unchanged older demo; UsageError if others are there."""
    outputs.check_output(folder, kind=_KIND, force=True, also=[REPORT])
    if (folder / outputs.MANIFEST).exists():
        try:
            manifest.read_manifest(folder, kind=_KIND)
        except FolderError as error:
            raise UsageError(
                f"{folder} is kept, because it is not an unchanged demo ({error}) Choose another `folder`."
            ) from error
    corpus, held_out = split_held_out(standard_library_documentation())
    with outputs.new_folder(folder, kind=_KIND, force=True, also=[REPORT]) as partial:
        with (partial / CORPUS).open("w", encoding="utf-8") as stream:
            for document in corpus:
                row = {"id": document.id, "title": document.title, "text": document.text}
                stream.write(json.dumps(row, ensure_ascii=False) + "\n")
        (partial / HELD_OUT).write_text(held_out_text(held_out), encoding="utf-8")
        build_index(make_passages(corpus), partial / INDEX)
        counts = {"documents": len(corpus), "held_out_documents": len(held_out)}
        manifest.write_manifest(partial, kind=_KIND, settings={}, counts=counts)


def held_out_text(documents: Sequence[Document]) -> str:
    """Return the documents concatenated in random order, so that any beginning is a random sample."""
    order = np.random.default_rng(0).permutation(len(documents))
    return "\n\n".join(f"{documents[i].title}\n{documents[i].text}" for i in order) + "\n"


@dataclass(frozen=True, slots=True, eq=False)
class Demonstration:
    """The held-out text read with BM25's passages, and all readings by name in the order of the table."""

    bm25: Evaluation
    readings: dict[str, Reading]

    def report(self, model: LanguageModel) -> Report:
        """Return the report of the reading with BM25's passages."""
        perplexity, baseline = (self.readings[name].measures.token_perplexity for name in ("bm25", "none"))
        config: dict[str, JsonValue] = {
            "model": {"name": model.name},
            "passages": {"retriever": "bm25"},
            "plan": {"stride": PLAN.stride, "windows": PLAN.windows},
        }
        return Report(text=self.bm25.traced, title=HELD_OUT, config=config, perplexities=(perplexity, baseline))


def demonstrate(folder: Path, model: LanguageModel, limit_tokens: int) -> Demonstration:
    """Read the beginning of the held-out text of a demo folder in all ways."""
    text = read_text(folder / HELD_OUT)

    def read(retriever: str, reading: ReadingOptions, *, baseline: bool = False) -> Evaluation:
        retrieval = RetrieverOptions(retriever=retriever)
        options = PipelineOptions(lm=model.name, index=folder / INDEX, retrieval=retrieval, reading=reading)
        pipeline = open_pipeline(options, plan=PLAN, load=lambda *_: model)
        return pipeline.score(text, baseline=baseline, limit_tokens=limit_tokens)

    bm25 = read("bm25", ReadingOptions(), baseline=True)
    assert bm25.baseline is not None
    readings = {
        "none": bm25.baseline,
        "random": read("random", ReadingOptions()).reading,
        "bm25": bm25.reading,
        "recommended": read("bm25", RECOMMENDED).reading,
    }
    return Demonstration(bm25, readings)


def answer_questions(questions: Sequence[str], pipeline: Pipeline) -> Iterator[tuple[SourcedAnswer, SourcedAnswer]]:
    """Answer each question with the first passage of a pipeline, and without passages."""
    alone = replace(pipeline, source=None)
    for question in questions:
        yield pipeline.ask(question, new_tokens=NEW_TOKENS), alone.ask(question, new_tokens=NEW_TOKENS)


def standard_library_documentation() -> list[Document]:
    """Return the documentation of the running Python, sorted by id: topics of the reference, modules, classes.

    A topic is left out if most of it repeats a longer one, so that a held-out document leaves no copy in the corpus. On
    Python 3.11 there are about 1,000 documents with 290,000 words; other versions differ.
    """
    library = Path(sysconfig.get_path("stdlib"))
    documents = [*_topics(library / "pydoc_data" / "topics.py"), *docstrings_of_package(library)]
    return sorted(documents, key=lambda document: document.id)


def docstrings_of_package(path: Path) -> list[Document]:
    """Return the docstrings below a package or a folder of packages, sorted by id: a document per module and per class.

    A document has the docstring of the module or class, then each function or method as `def name(arguments):` and its
    docstring. Names are relative to `path` and include the package's own. Files that are not valid for this Python, and
    documents with the text of an earlier one, are left out.
    """
    root = path.parent if (path / "__init__.py").exists() else path
    seen: set[str] = set()
    documents: dict[str, Document] = {}
    for file in _sources(path):
        for document in _documents_of_module(file, _module_name(file.relative_to(root))):
            if document.text not in seen:
                seen.add(document.text)
                documents.setdefault(document.id, document)
    return sorted(documents.values(), key=lambda document: document.id)


def split_held_out(documents: list[Document], share: float = _HELD_OUT_SHARE) -> tuple[list[Document], list[Document]]:
    """Return the documents to retrieve from and the held-out ones; a document's side depends on its id alone."""
    sides: tuple[list[Document], list[Document]] = ([], [])
    for document in documents:
        digest = hashlib.sha256(f"0:{document.id}".encode()).digest()
        sides[int.from_bytes(digest[:8], "big") / 2**64 < share].append(document)
    return sides


def _topics(file: Path) -> list[Document]:
    """Return the topics of the language reference; none if the distribution does not include them."""
    if not file.exists():
        return []
    kept: list[Document] = []
    paragraphs_seen: set[str] = set()
    for name, text in sorted(_literal_topics(file).items(), key=lambda topic: (-len(topic[1]), topic[0])):
        paragraphs = [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]
        repeated = sum(len(paragraph) for paragraph in paragraphs if paragraph in paragraphs_seen)
        if repeated <= sum(map(len, paragraphs)) / 2 and _is_long_enough(text):
            kept.append(Document(id=f"topic:{name}", title=name, text=inspect.cleandoc(text).strip()))
            paragraphs_seen.update(paragraphs)
    return kept


def _literal_topics(file: Path) -> dict[str, str]:
    """Return the dictionary that the file assigns to `topics`, parsed without running the file."""
    for statement in ast.parse(file.read_text(encoding="utf-8")).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="topics")], value=value):
                topics: dict[str, str] = ast.literal_eval(value)
                return topics
    return {}


def _sources(path: Path) -> Iterator[Path]:
    """Yield the Python files below a folder in a fixed order, without tests and bundled packages."""
    for entry in sorted(path.iterdir()):
        if entry.is_dir():
            if entry.name not in _NOT_DOCUMENTATION:
                yield from _sources(entry)
        elif entry.suffix == ".py" and not entry.name.startswith(("test_", "conftest")):
            yield entry


def _module_name(file: Path) -> str:
    """Return the dotted name of a source file: `asyncio/__init__.py` is `asyncio`."""
    parts = file.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def _documents_of_module(file: Path, module: str) -> Iterator[Document]:
    """Yield the module's own document, then one for each of its classes."""
    tree = _parsed(file)
    if tree is None:
        return
    sections = [ast.get_docstring(tree) or "", *_routines(tree.body)]
    yield from _document("module", module, sections)
    yield from _documents_of_classes(tree.body, module)


def _parsed(file: Path) -> ast.Module | None:
    """Return the syntax tree; None for a template or for source of another Python version."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            return ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return None


def _documents_of_classes(body: list[ast.stmt], prefix: str) -> Iterator[Document]:
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            name = f"{prefix}.{statement.name}"
            bases = f"({', '.join(map(ast.unparse, statement.bases))})" if statement.bases else ""
            heading = _entry(f"class {statement.name}{bases}:", ast.get_docstring(statement))
            yield from _document("class", name, [heading, *_routines(statement.body)])
            yield from _documents_of_classes(statement.body, name)


def _routines(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the documented functions or methods of a body: not private ones, but those like `__init__`."""
    for statement in body:
        if isinstance(statement, _Routine):
            private = statement.name.startswith("_") and not statement.name.endswith("__")
            docstring = ast.get_docstring(statement)
            if docstring and not private:
                word = "async def" if isinstance(statement, ast.AsyncFunctionDef) else "def"
                yield _entry(f"{word} {statement.name}({ast.unparse(statement.args)}):", docstring)


def _entry(signature: str, docstring: str | None) -> str:
    """Return a signature with its docstring indented below, as in source code."""
    lines = (docstring or "").strip().splitlines()
    return "\n".join([signature, *(f"    {line}".rstrip() for line in lines)])


def _document(kind: str, name: str, sections: list[str]) -> Iterator[Document]:
    text = "\n\n".join(section for section in sections if section).strip()
    if _is_long_enough(text):
        yield Document(id=f"{kind}:{name}", title=name, text=text)


def _is_long_enough(text: str) -> bool:
    return len(text.split()) >= MIN_WORDS
