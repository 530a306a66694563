"""Write docs/python-api.md from the public names and their docstrings.

Run it as `python -m tools.python_api_page > docs/python-api.md`; `make docs` writes both generated pages. griffe reads
the source, so the page shows signatures as they are in the code. A test fails if the page and the code differ.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from math import inf
from pathlib import Path
from textwrap import dedent
from typing import Any, Final

import griffe

import ralm
from ralm.options import declared

ROOT: Final = Path(__file__).parents[1]
PACKAGE: Final = ROOT / "src" / "ralm"
WIDTH: Final = 100
HEAD: Final = """# Python API

Generated from the docstrings by `make docs`; do not edit.

`import ralm` provides all of these names and loads each on first use. Any other name must be imported from its module
and may move. The suffix of an array's name is its shape: `log_probs_T` has one number per token. Every error that ralm
raises on purpose derives from [`RalmError`](../src/ralm/errors.py).

    pipe = ralm.open("my-index", lm="smollm2", reader="ensemble:documents=4", mixer="posterior")
    pipe.score(text)                        # the perplexity with passages and without, and the gain of each token
    pipe.generate("Radium was")             # the continuation
    pipe.ask("Who discovered radium?")      # the answer with its sources
"""
TOPICS: Final = {
    "pipeline": "The pipeline",
    "corpus": "Corpus",
    "retrieval": "Indexes and retrieval",
    "lm": "Language models",
    "reading": "Plans, reading and generation",
    "reranking": "Reranking",
    "evaluation": "Evaluation",
    "answering": "Question answering",
    "worth": "Whether a corpus helps a model",
    "training": "Learning from a language model",
    "runs": "Runs on disk",
    "records": "Records",
    "protocols": "Protocols",
}
"""The headings, in order, by the package that defines a name; names of other packages come last."""
OTHERS: Final = "Everything else"
SECTION: Final = re.compile(r"^(Args|Returns|Raises|Example):\n((?:    .*\n?|\n)+)", re.M)
MODULES: Final = {file.stem for file in PACKAGE.rglob("*.py")}


def page() -> str:
    """Return the whole page."""
    package = griffe.load("ralm", search_paths=[ROOT / "src"], resolve_aliases=True)
    topics: dict[str, list[Any]] = defaultdict(list)
    for name in sorted(dir(ralm), key=str.lower):
        public: Any = package[name].final_target if package[name].is_alias else package[name]
        folder = public.filepath.relative_to(PACKAGE).with_suffix("").parts[0]
        topics[TOPICS.get(folder, OTHERS)].append(public)
    ordered = [topic for topic in (*TOPICS.values(), OTHERS) if topic in topics]
    contents = [
        f"- {topic}: " + ", ".join(f"[`{public.name}`](#{public.name.lower()})" for public in topics[topic])
        for topic in ordered
    ]
    sections = ["\n\n".join([f"## {topic}", *map(_section, topics[topic])]) for topic in ordered]
    return "\n".join([HEAD, *contents, "", "\n\n".join(sections)]) + "\n"


def _section(public: Any) -> str:
    heading = f"`{public.name}`" if public.name.startswith("_") else public.name  # bold without the quotes
    source = f"[Source](../{public.filepath.relative_to(ROOT).as_posix()})"
    members = "\n".join(_members(public)) if public.is_class else ""
    parts = [f"### {heading}", f"```python\n{_signature(public)}\n```", _doc(public), members, source]
    return "\n\n".join(part for part in parts if part)


def _signature(public: Any) -> str:
    if public.is_attribute:
        return _attribute(public)
    if public.is_function:
        return f"def {_call(public, WIDTH)}"
    if "__init__" in public.members:
        return f"class {_call(public['__init__'], WIDTH)}"
    bases = ", ".join(_written(base) for base in public.bases)
    return f"class {public.name}({bases})" if bases else f"class {public.name}"


def _call(function: Any, width: float = inf) -> str:
    """Return a signature on one line, or with one line per argument if it is too long."""
    makes = function.name == "__init__"
    name = function.parent.name if makes else function.name
    after = f" -> {_written(function.returns)}" if function.returns and not makes else ""
    arguments = [*_arguments(function)]
    line = f"{name}({', '.join(arguments)}){after}"
    if len(line) <= width:
        return line
    return "\n".join([f"{name}(", *(f"    {argument}," for argument in arguments), f"){after}"])


def _arguments(function: Any) -> Iterator[str]:
    """Yield the arguments as they are written, without the object or class that a method is bound to."""
    bound = function.parent.is_class and "staticmethod" not in function.labels
    kinds = griffe.ParameterKind
    starred = any(parameter.kind is kinds.var_positional for parameter in function.parameters)
    for parameter in [*function.parameters][1 if bound else 0 :]:
        if parameter.name.startswith("_") or str(parameter.annotation).startswith("ClassVar"):
            continue
        if parameter.kind is kinds.keyword_only and not starred:
            starred = True
            yield "*"
        star = {kinds.var_positional: "*", kinds.var_keyword: "**"}.get(parameter.kind)
        kind = f": {_written(parameter.annotation)}" if parameter.annotation is not None else ""
        default = f" = {_written(parameter.default)}" if parameter.default is not None and star is None else ""
        yield f"{star or ''}{parameter.name}{kind}{default}"


def _attribute(attribute: Any) -> str:
    kind = f": {_written(attribute.annotation)}" if attribute.annotation is not None else ""
    return f"{attribute.name}{kind}" + (f" = {_written(attribute.value)}" if attribute.value is not None else "")


def _members(public: Any) -> Iterator[str]:
    """Yield a line for each option, public attribute with a docstring, property and method."""
    is_record = "dataclass" in public.labels
    declarations = declared(getattr(ralm, public.name)) if is_record else ()
    options = {declaration.name: declaration.option.help for declaration in declarations}
    for name, member in public.members.items():
        if name.startswith("_") or member.is_alias:
            continue
        if member.is_function:
            yield _line(_call(member), _doc(member))
        elif member.is_attribute and name in options:
            yield _line(name, " ".join(filter(None, [options[name], _doc(member)])))
        elif member.is_attribute and (member.docstring or (not is_record and member.annotation and not member.value)):
            yield _line(_attribute(member), _doc(member))


def _line(written: str, doc: str) -> str:
    text = doc.replace("\n", "\n  ").replace("\n  \n", "\n\n")
    return f"- `{written}`" + (f": {text}" if text else "")


def _doc(public: Any) -> str:
    """Return a docstring as Markdown: sections with a heading, arguments and errors as lists, an example as code."""
    return SECTION.sub(_markdown, public.docstring.value).rstrip() if public.docstring else ""


def _markdown(section: re.Match[str]) -> str:
    name, text = section[1], dedent(section[2]).rstrip()
    if name == "Example":
        return f"```python\n{text}\n```\n"
    text = re.sub(r"\n +", " ", text)
    return f"{name}:\n\n" + (text if name == "Returns" else re.sub(r"^(\S+): ", r"- `\1`: ", text, flags=re.M)) + "\n\n"


def _written(expression: Any) -> str:
    """Return an expression as a reader needs it: the type of `Annotated`, and names without their module in ralm."""
    match expression:
        case griffe.ExprSubscript(left=griffe.ExprName(name="Annotated"), slice=griffe.ExprTuple(elements=[kind, *_])):
            return _written(kind)
    text = re.sub(r"\b(\w+)\.(?=\w)", lambda name: "" if name[1] in MODULES else name[0], str(expression))
    return text.replace("'", '"')


if __name__ == "__main__":
    print(page(), end="")
