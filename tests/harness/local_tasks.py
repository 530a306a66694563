"""Tasks of lm-evaluation-harness over local files, one of each kind, and what they are asked with."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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
