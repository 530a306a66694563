"""Options for running a model or asking a server; does not import torch, so that the command line starts fast."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from ralm.lm.api.options import ApiOptions
from ralm.options import Option, check_options

Dtype = Literal["auto", "float32", "bfloat16", "float16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """How to run a model.

    `dtype` auto keeps the number format that the model was saved in. `device` is cpu, cuda, cuda:N, auto (a GPU if
    there is one), several separated by commas (a copy on each; the copies share the scoring), all (a copy on every
    GPU), or map (one copy spread over all devices, for models too large for one). `compile` lets torch compile the
    layers, which takes minutes and pays off on long runs. `api` is for models behind an API, for which the others do
    nothing.

    Raises UsageError if `dtype` is not one of the choices.
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

    api: Annotated[ApiOptions, Option("How a model behind an API is asked.")] = field(default_factory=ApiOptions)

    def __post_init__(self) -> None:
        check_options(self)
