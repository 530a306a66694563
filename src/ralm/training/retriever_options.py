"""Options of LM-supervised retrieval; importing them does not import torch."""

from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from ralm.options import Option, check_options
from ralm.training.options import TrainingOptions

StudentText = Literal["query", "prefix"]

REPLUG: Final = TrainingOptions(steps=25_000, batch=64, learning_rate=2e-5)
"""The paper's steps, batch and learning rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LSROptions:
    """The loss of LM-supervised retrieval (REPLUG, section 4): KL(Q to P), with P = softmax(scores / `gamma`) and
    Q = softmax(mean log-probability of a token of the continuation / `beta`) over the candidates of an example.

    Raises UsageError if a temperature is not above 0.
    """

    gamma: Annotated[float, Option("Temperature of the retriever's scores.", above=True)] = 0.1
    beta: Annotated[
        float, Option("Temperature of the language model's mean log-probability of a token.", above=True)
    ] = 0.1

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryEncoderOptions:
    """How a query encoder is trained to passage vectors that stay as they are.

    `init`: the query encoder to begin from, a hub name or folder; None is the one that the index names. It must be the
    one that belongs to the vectors, or one that was trained for them. `vectors`: the name of the vectors in the index.
    `reads`: what it reads of an example, the query that the candidates were retrieved with, or the whole prefix.
    """

    init: Annotated[
        str | None,
        Option("Query encoder to begin from: a hub name or folder.", default_said="the one that the index names"),
    ] = None
    vectors: Annotated[
        str | None, Option("Train for the vectors of this name.", default_said="the default ones of the index")
    ] = None
    reads: Annotated[StudentText, Option("What the encoder reads of an example: its query, or the whole prefix.")] = (
        "query"
    )
    loss: Annotated[LSROptions, Option("The two temperatures.")] = field(default_factory=LSROptions)

    def __post_init__(self) -> None:
        check_options(self)
