"""Three passages, and a source that gives them in an order that differs from question to question."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from pydantic import JsonValue

from ralm.answering.questions import Question
from ralm.records import Hits, Passage, Passages

PASSAGES = [
    Passage(0, "hill", "The Hill", "The dog keeps the sheep together on the green hill."),
    Passage(1, "sea", "The Sea", "The whales sing in the deep blue sea by night."),
    Passage(2, "town", "", "Fish, wool and bread are sold in the town."),
]


def order_for(question_id: str) -> list[int]:
    """The passages of a question: question `a` has the first one first, `b` the second."""
    order: list[int] = np.roll([0, 1, 2], ord("a") - ord(question_id)).tolist()
    return order


class Given:
    """It remembers what it was asked."""

    config: ClassVar[dict[str, JsonValue]] = {"passages": "given"}

    def __init__(self) -> None:
        self.asked: list[str] = []

    def find(self, questions: Sequence[Question], k: int) -> tuple[Hits, Passages]:
        self.asked += [one.text for one in questions]
        orders = [order_for(one.id)[:k] for one in questions]
        return Hits.from_pairs([[(n, 3.0 - rank) for rank, n in enumerate(order)] for order in orders]), PASSAGES
