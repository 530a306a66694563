"""Tasks of lm-evaluation-harness over local files, one of each kind, and what they are asked with."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lm_eval
import pytest
from lm_eval.api.instance import Instance
from lm_eval.tasks import TaskManager

from ralm.harness.model import RalmLM

QUESTIONS = [
    {"question": "Who keeps the sheep?", "choices": ["a dog", "whales", "wool"], "gold": 0, "answer": "a dog"},
    {"question": "What sings in the sea?", "choices": ["the dog", "whales"], "gold": 1, "answer": "whales"},
    {"question": "What is sold in the town?", "choices": ["night", "fish", "a hill"], "gold": 1, "answer": "fish"},
]
PAGES = [
    {"page": "The dog keeps the sheep together on the green hill. The whales sing in the deep blue sea by night."},
    {"page": "Fish, wool and bread are sold in the town."},
]
KINDS: dict[str, dict[str, Any]] = {
    "choosing": {
        "output_type": "multiple_choice",
        "doc_to_text": "Question: {{question}}\nAnswer:",
        "doc_to_target": "gold",
        "doc_to_choice": "choices",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    },
    "writing": {
        "output_type": "generate_until",
        "doc_to_text": "Question: {{question}}\nAnswer:",
        "doc_to_target": "answer",
        "generation_kwargs": {"until": ["\n", "e"], "max_gen_toks": 12, "do_sample": False},
        "metric_list": [{"metric": "exact_match"}],
    },
    "ending": {
        "output_type": "loglikelihood",
        "doc_to_text": "Question: {{question}}\nAnswer:",
        "doc_to_target": " {{answer}}",
        "metric_list": [{"metric": "perplexity"}, {"metric": "acc"}],
    },
    "pages": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{page}}",
        "metric_list": [{"metric": "word_perplexity"}, {"metric": "byte_perplexity"}, {"metric": "bits_per_byte"}],
    },
}


def save_tasks(folder: Path, documents: Mapping[str, Sequence[Mapping[str, Any]]] | None = None) -> Path:
    """A folder of tasks, one of each of `KINDS`; `documents` replace those of a kind."""
    folder.mkdir(parents=True, exist_ok=True)
    for kind, said in KINDS.items():
        rows = (documents or {}).get(kind, PAGES if kind == "pages" else QUESTIONS)
        (folder / f"{kind}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        task = {
            "task": f"local_{kind}",
            "dataset_path": "json",
            "dataset_kwargs": {
                "data_files": {"test": str(folder / f"{kind}.jsonl")},
                "cache_dir": str(folder / "datasets"),
            },
            "test_split": "test",
            "fewshot_split": "test",
            "fewshot_config": {"sampler": "first_n"},
            **said,
        }
        (folder / f"{kind}.yaml").write_text(json.dumps(task))  # JSON is YAML
    return folder


def of(lm: object, **arguments: Any) -> RalmLM:
    """Our model of these arguments."""
    return RalmLM.create_from_arg_obj({"lm": str(lm), **{name: _plain(one) for name, one in arguments.items()}})


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def requests(kind: str, *arguments: tuple[Any, ...], document: Mapping[str, Any] | None = None) -> list[Instance]:
    """Requests of one kind, of the same document."""
    return [Instance(kind, document or {}, one, 0, ("local", number, 1)) for number, one in enumerate(arguments)]


def evaluated(model: Any, tasks: Path, kinds: Sequence[str], **more: Any) -> dict[str, Any]:
    """What the harness finds for some kinds of tasks."""
    found: dict[str, Any] = lm_eval.simple_evaluate(
        model=model,
        tasks=[f"local_{kind}" for kind in kinds],
        task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
        bootstrap_iters=0,
        **more,
    )
    return found


def answers(found: Mapping[str, Any], kind: str) -> list[Any]:
    """What the model answered to each request of a task."""
    return [response for sample in found["samples"][f"local_{kind}"] for (response,) in sample["resps"]]


def assert_alike(found: Mapping[str, Any], expected: Mapping[str, Any], kinds: Sequence[str]) -> None:
    """The same figures and answers, within 1e-4."""
    for kind in kinds:
        ours, others = answers(found, kind), answers(expected, kind)
        assert len(ours) == len(others) > 0
        for one, other in zip(ours, others, strict=True):
            assert one == (other if isinstance(other, str) else pytest.approx(other, rel=1e-4)), kind
        figures = expected["results"][f"local_{kind}"]
        for name, value in figures.items():
            if isinstance(value, float):
                assert found["results"][f"local_{kind}"][name] == pytest.approx(value, rel=1e-4), (kind, name)
