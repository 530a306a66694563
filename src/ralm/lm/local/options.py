"""How a model runs here; knows nothing of torch, so that a command line can name it at once."""

from dataclasses import dataclass
from typing import Annotated, Literal

from ralm.options import Option, check_options

Dtype = Literal["auto", "float32", "bfloat16", "float16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """How to run a model.

    `dtype` auto is as it was saved. `device` is cpu, cuda, cuda:N, auto (a GPU if there is one), several of them with
    commas (a copy on each, which share the scoring), all (a copy on every GPU), or map (one copy spread over all
    devices, for models too large for one). `compile`: let torch compile the layers, which takes minutes and pays on
    long runs.

    Raises UsageError where `dtype` is none of the choices.
    """

    dtype: Annotated[Dtype, Option("Number format of the weights; auto: as the model was saved.")] = "auto"
    device: Annotated[
        str,
        Option(
            "cpu, cuda, cuda:N; auto: a GPU if there is one; several with commas, or all GPUs, share the scoring; "
            "map: one copy spread over all."
        ),
    ] = "auto"
    compile: Annotated[bool, Option("Let torch compile the model's layers: slower to start, faster on long runs.")] = (
        False
    )

    def __post_init__(self) -> None:
        check_options(self)
