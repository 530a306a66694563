"""The corpus of the demo: Python's language reference and the docstrings of its standard library.

Source files are parsed with `ast`; nothing is imported or run.
"""

import ast
import hashlib
import inspect
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from ralm.records import Document

MIN_WORDS = 30
"""Shorter documents are skipped: they contain almost nothing to retrieve."""

_HELD_OUT_SHARE = 0.1

_NOT_DOCUMENTATION = frozenset(
    {"test", "tests", "testing", "idle_test", "idlelib", "lib2to3", "turtledemo", "ensurepip", "pydoc_data"}
    | {"site-packages", "dist-packages", "__pycache__", "_vendor", "vendor"}
)
"""Folders that hold tests, bundled programs or other people's packages."""

_Routine: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


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
    held_out = [_position(document.id) < share for document in documents]
    pairs = list(zip(documents, held_out, strict=True))
    return [document for document, out in pairs if not out], [document for document, out in pairs if out]


def _position(identifier: str) -> float:
    """Return a pseudo-random number in [0, 1), always the same for the same id."""
    digest = hashlib.sha256(f"0:{identifier}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


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
