"""The options that several commands share. Defaults are those of the library's own option records."""

from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from ralm.reading import plan

PLAN: Final = plan.PlanOptions()

Index = Annotated[Path, typer.Option("--index", help="Folder that `ralm index` made.", show_default=False)]
Model = Annotated[
    str,
    typer.Option("--lm", help="Causal language model: a hub name, a local folder, or ralm-tiny.", show_default=False),
]
Retriever = Annotated[
    Literal["bm25", "random"], typer.Option(help="random is the control: any passage, whatever the query.")
]
Dtype = Annotated[
    Literal["auto", "float32", "bfloat16", "float16"],
    typer.Option(help="Number format of the weights; auto: as the model was saved."),
]
Device = Annotated[
    str,
    typer.Option(
        help="cpu, cuda, cuda:N; auto: a GPU if there is one; several with commas, or all GPUs, share the scoring; "
        "map: one copy spread over all."
    ),
]
Compile = Annotated[
    bool, typer.Option("--compile", help="Let torch compile the model's layers: slower to start, faster on long runs.")
]
Stride = Annotated[int, typer.Option(help="Retrieve every so many tokens.")]
QueryTokens = Annotated[int, typer.Option(help="Ask with the last so many tokens.")]
DocumentTokens = Annotated[int, typer.Option(help="Cut a passage to so many tokens.")]
MaxLength = Annotated[int, typer.Option(help="Tokens that the model reads at once, passage included.")]
Windows = Annotated[
    plan.Windows,
    typer.Option(help="sliding: all the context that fits, for every stride; blocked: it advances a block at a time."),
]
Block = Annotated[int, typer.Option(help="Tokens in a block of blocked windows.")]
Semantics = Annotated[
    plan.Semantics,
    typer.Option(help="paper or official: follow the paper's text, or its published code, where they differ."),
]
LimitTokens = Annotated[
    int | None, typer.Option(min=2, help="Take the beginning of the text only.", show_default="the whole text")
]
Force = Annotated[bool, typer.Option("--force", help="Replace an output that ralm wrote before.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Seed = Annotated[int, typer.Option(help="Seed of whatever is drawn at random.")]
