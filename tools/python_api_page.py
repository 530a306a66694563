"""Write docs/python-api.md from the public names and their docstrings.

Run it as `python -m tools.python_api_page > docs/python-api.md`; `make docs` writes both generated pages. The source is
parsed, not imported, so the page shows signatures as they are in the code. A test fails if the page and the code
differ.
"""

import ast
import inspect
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "ralm"
WIDTH = 100
HEAD = """# Python API

Generated from the docstrings by `make docs`; do not edit.

`import ralm` provides all of these names and loads each on first use. Any other name must be imported from its module
and may move. The suffix of an array's name is its shape: `log_probs_T` has one number per token. Every error that ralm
raises on purpose derives from [`RalmError`](../src/ralm/errors.py).

    pipe = ralm.open("my-index", lm="smollm2", reader="ensemble:documents=4", mixer="posterior")
    pipe.score(text)                        # the perplexity with passages and without, and the gain of each token
    pipe.generate("Radium was")             # the continuation
    pipe.ask("Who discovered radium?")      # the answer with its sources
"""
TOPICS = {
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
OTHERS = "Everything else"

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Public:
    """A public name: the module that defines it, its definition and its docstring."""

    name: str
    file: Path
    node: ast.ClassDef | Function | ast.Assign | ast.AnnAssign
    doc: str

    @property
    def topic(self) -> str:
        """The heading that it is listed under."""
        return TOPICS.get(self.file.relative_to(PACKAGE).with_suffix("").parts[0], OTHERS)


def page() -> str:
    """The whole page."""
    topics: dict[str, list[Public]] = defaultdict(list)
    for public in sorted(public_names(), key=lambda one: one.name.lower()):
        topics[public.topic].append(public)
    ordered = [topic for topic in (*TOPICS.values(), OTHERS) if topic in topics]
    contents = [
        f"- {topic}: " + ", ".join(f"[`{public.name}`](#{public.name.lower()})" for public in topics[topic])
        for topic in ordered
    ]
    sections = ["\n\n".join([f"## {topic}", *map(_section, topics[topic])]) for topic in ordered]
    return "\n".join([HEAD, *contents, "", "\n\n".join(sections)]) + "\n"


def public_names() -> list[Public]:
    """The names that `__init__.pyi` lists."""
    stub = ast.parse((PACKAGE / "__init__.pyi").read_text(encoding="utf-8"))
    return [
        _found(name.name, _module(PACKAGE, node))
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    ]


def _module(folder: Path, node: ast.ImportFrom) -> Path:
    """The file of a module that is imported from a module in `folder`."""
    parts = (node.module or "").split(".")
    path = folder.joinpath(*parts) if node.level else ROOT.joinpath("src", *parts)
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _found(name: str, file: Path) -> Public:
    """The definition of a name; imports are followed."""
    body = _Unqualified(ast.parse(file.read_text(encoding="utf-8"))).module.body
    for place, node in enumerate(body):
        if isinstance(node, ast.ClassDef | Function) and node.name == name:
            return Public(name, file, node, ast.get_docstring(node) or "")
        if isinstance(node, ast.Assign | ast.AnnAssign) and name in _targets(node):
            return Public(name, file, node, _text_of(body[place + 1 : place + 2]))
        if isinstance(node, ast.ImportFrom) and any(name == (one.asname or one.name) for one in node.names):
            return _found(name, _module(file.parent, node))
    raise LookupError(f"{file} does not define {name}")


class _Unqualified(ast.NodeTransformer):
    """A module in which the names of ralm's own modules stand without their module: readers look them up here."""

    def __init__(self, module: ast.Module) -> None:
        imports = (node for node in module.body if isinstance(node, ast.ImportFrom))
        own = (one.name for node in imports if (node.module or "").startswith("ralm") for one in node.names)
        self._modules = {name for name in own if name.islower()}
        self.module: ast.Module = self.visit(module)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """The name alone if it belongs to a module of ralm."""
        match node.value:
            case ast.Name(id=name) if name in self._modules:
                return ast.copy_location(ast.Name(node.attr), node)
        return node


def _targets(node: ast.Assign | ast.AnnAssign) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _text_of(nodes: list[ast.stmt]) -> str:
    """The docstring at the beginning of some statements, which documents the statement before them."""
    match nodes:
        case [ast.Expr(value=ast.Constant(value=str() as text)), *_]:
            return inspect.cleandoc(text)
    return ""


def _section(public: Public) -> str:
    source = public.file.relative_to(ROOT).as_posix()
    heading = f"`{public.name}`" if public.name.startswith("_") else public.name  # bold without the quotes
    parts = [f"### {heading}", f"```python\n{_signature(public)}\n```", public.doc]
    if isinstance(public.node, ast.ClassDef):
        parts.append("\n".join(_members(public)))
    return "\n\n".join(part for part in (*parts, f"[Source](../{source})") if part)


def _signature(public: Public) -> str:
    node = public.node
    if isinstance(node, ast.Assign | ast.AnnAssign):
        return ast.unparse(node).replace("'", '"')  # as the formatter writes it
    if not isinstance(node, ast.ClassDef):
        return f"def {_call(node.name, _arguments(node), node.returns)}"
    bases = [ast.unparse(base) for base in node.bases]
    made_by = next((one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"), None)
    if made_by is not None:
        return f"class {_call(node.name, _arguments(made_by, bound=True), None)}"
    if _is_dataclass(node):
        first = ["*"] if "kw_only=True" in ast.unparse(node.decorator_list[0]) else []
        return f"class {_call(node.name, [*first, *(_field(one) for one in _fields(node))], None)}"
    return f"class {node.name}" + (f"({', '.join(bases)})" if bases else "")


def _call(name: str, arguments: list[str], returns: ast.expr | None) -> str:
    """A signature on one line, or with one line per argument if it is too long."""
    after = "" if returns is None else f" -> {_kind(returns)}"
    line = f"{name}({', '.join(arguments)}){after}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{name}(", *(f"    {argument}," for argument in arguments), f"){after}"])


def _arguments(node: Function, *, bound: bool = False) -> list[str]:
    """The arguments as they are written; for a method that is `bound`, without the first."""
    given = node.args
    plain = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(plain) - len(given.defaults)) + list(given.defaults)
    written = [_argument(one, default) for one, default in zip(plain, defaults, strict=True)][1 if bound else 0 :]
    if given.vararg is not None:
        written.append("*" + _argument(given.vararg, None))
    elif given.kwonlyargs:
        written.append("*")
    written += [_argument(one, default) for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    return written + (["**" + _argument(given.kwarg, None)] if given.kwarg else [])


def _argument(one: ast.arg, default: ast.expr | None) -> str:
    written = ast.unparse(one)
    return written if default is None else f"{written} = {ast.unparse(default)}"


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)


def _fields(node: ast.ClassDef) -> Iterator[ast.AnnAssign]:
    """The public fields that a record is created with."""
    for one in node.body:
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and not one.target.id.startswith("_"):
            yield one


def _field(one: ast.AnnAssign) -> str:
    """A field as an argument of the record."""
    written = f"{ast.unparse(one.target)}: {_kind(one.annotation)}"
    return written if one.value is None else f"{written} = {ast.unparse(one.value)}"


def _members(public: Public) -> Iterator[str]:
    """One line for each option, public attribute with a docstring, property and method."""
    node = public.node
    assert isinstance(node, ast.ClassDef)
    fields = list(_fields(node))
    for place, one in enumerate(node.body):
        if isinstance(one, Function) and not one.name.startswith("_"):
            yield _member(_method(one), ast.get_docstring(one) or "")
        elif isinstance(one, ast.AnnAssign) and one in fields:
            text = _text_of(node.body[place + 1 : place + 2])
            if option := _option_help(one.annotation, public.file):
                yield _member(ast.unparse(one.target), " ".join(filter(None, [option, text])))
            elif text or not _is_dataclass(node):
                yield _member(_field(one), text)


def _option_help(annotation: ast.expr, file: Path) -> str:
    """The help of the option that an annotation declares, itself or through an alias; empty if it declares none."""
    match annotation:
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=elements)):
            for element in elements:
                match element:
                    case ast.Call(func=ast.Name(id="Option"), args=[ast.Constant(value=str() as text), *_]):
                        return text
        case ast.Name(id=name):
            with suppress(LookupError, FileNotFoundError):  # a built-in type, or one of another package
                alias = _found(name, file)
                if isinstance(alias.node, ast.Assign):
                    return _option_help(alias.node.value, alias.file)
    return ""


def _method(node: Function) -> str:
    decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
    if decorators & {"property", "cached_property"}:
        return f"{node.name}: {_kind(node.returns)}" if node.returns else node.name
    call = f"{node.name}({', '.join(_arguments(node, bound='staticmethod' not in decorators))})"
    return call if node.returns is None else f"{call} -> {_kind(node.returns)}"


def _kind(annotation: ast.expr) -> str:
    """An annotation as a reader needs it: only the type of `Annotated`, and a forward reference without its quotes."""
    match annotation:
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[kind, *_])):
            return _kind(kind)
        case ast.Constant(value=str() as name):
            return name
    return ast.unparse(annotation)


def _member(written: str, doc: str) -> str:
    text = inspect.cleandoc(doc).replace("\n", "\n  ").replace("\n  \n", "\n\n")
    return f"- `{written}`" + (f": {text}" if text else "")


if __name__ == "__main__":
    print(page(), end="")
