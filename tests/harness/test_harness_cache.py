"""Caches of lm-evaluation-harness: answers of different models, indexes and readers are never taken for each other."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lm_eval
import pytest
from lm_eval.api.instance import Instance
from lm_eval.api.model import CacheHook, CachingLM
from lm_eval.tasks import TaskManager

from ralm.errors import UsageError
from ralm.harness.model import RalmLM
from tests.cli.program import ralm

pytestmark = pytest.mark.filterwarnings("ignore")

KINDS = ("choosing", "writing", "pages")
TEXTS = [
    "Whales sing in the deep blue sea; nobody in town keeps sheep there.",
    "The dog keeps the sheep; the sheep of the town never see the sea, and none sings.",
    "Fish and wool are sold in the town by the sea, where a dog keeps watch and sings.",
]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("index")
    rows = [{"id": str(number), "text": text} for number, text in enumerate(TEXTS)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert ralm("index", folder / "corpus.jsonl", "--out", folder / "index").status == 0
    return folder / "index"


def answers(model: Any, tasks: Path, arguments: Any = None, **more: Any) -> dict[str, Any]:
    """What a model answers to every request, by task."""
    found = lm_eval.simple_evaluate(
        model=model,
        model_args=arguments,
        tasks=[f"local_{kind}" for kind in KINDS],
        task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
        bootstrap_iters=0,
        **more,
    )
    return {task: [one["resps"] for one in samples] for task, samples in found["samples"].items()}


@pytest.mark.slow
def test_settings_do_not_share_answers_in_one_file(
    tiny_folders: dict[str, Path], index: Path, tasks: Path, tmp_path: Path
) -> None:
    lm = {"lm": str(tiny_folders["bloom"]), "dtype": "float32"}
    settings: list[tuple[str, Mapping[str, Any]]] = [
        ("hf", {"pretrained": str(tiny_folders["bloom"]), "dtype": "float32"}),
        ("ralm", lm),
        ("ralm", {**lm, "index": str(index)}),
        ("ralm", {**lm, "index": str(index), "reader": "ensemble", "documents": 2}),
        ("ralm", {**lm, "index": str(index), "reader": "ensemble", "documents": 3}),
        ("ralm", {**lm, "index": str(index), "document_tokens": 9}),
        ("ralm", {**lm, "index": str(index), "retriever": "random"}),
        ("ralm", {**lm, "lm": str(tiny_folders["llama"])}),
    ]
    plain = [answers(model, tasks, arguments, device="cpu") for model, arguments in settings]
    assert len({json.dumps(one["local_choosing"]) for one in plain[1:]}) == len(settings) - 1
    for _ in range(2):
        for (model, arguments), expected in zip(reversed(settings), reversed(plain), strict=True):
            assert answers(model, tasks, arguments, device="cpu", use_cache=str(tmp_path / "cache")) == expected


def test_cached_answers_are_not_computed_again(
    tiny_folders: dict[str, Path], index: Path, tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = {"lm": str(tiny_folders["bloom"]), "index": str(index)}
    first = answers("ralm", tasks, arguments, use_cache=str(tmp_path / "cache"))
    monkeypatch.setattr(RalmLM, "_scored", None)
    monkeypatch.setattr(RalmLM, "_evaluated", None)
    monkeypatch.setattr(RalmLM, "_written", None)
    assert answers("ralm", tasks, arguments, use_cache=str(tmp_path / "cache")) == first


def test_an_interrupted_run_has_kept_what_it_scored(
    tiny_folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = RalmLM.create_from_arg_obj({"lm": str(tiny_folders["bloom"])})
    asked = [Instance("loglikelihood", {}, ("The", f" sea {number}"), 0, ("local", number, 1)) for number in range(3)]
    monkeypatch.setattr("ralm.harness.model._ENDINGS_AT_ONCE", 1)
    scored, calls = RalmLM._scored, list[Any]()

    def once(self: RalmLM, endings: Any) -> Any:
        calls.append(endings)
        if len(calls) > 2:
            raise KeyboardInterrupt
        return scored(self, endings)

    monkeypatch.setattr(RalmLM, "_scored", once)
    with pytest.raises(KeyboardInterrupt):
        CachingLM(ours, str(tmp_path / "cache.db")).loglikelihood(asked)
    monkeypatch.setattr(RalmLM, "_scored", scored)
    again = CachingLM(
        ours_again := RalmLM.create_from_arg_obj({"lm": str(tiny_folders["bloom"])}), str(tmp_path / "cache.db")
    )
    found = again.loglikelihood(asked)
    assert ours_again._scorer.asked == 1
    assert found == RalmLM.create_from_arg_obj({"lm": str(tiny_folders["bloom"])}).loglikelihood(asked)


def test_a_question_that_is_not_in_the_prompt_is_refused_with_a_cache(
    tiny_folders: dict[str, Path], index: Path, tmp_path: Path
) -> None:
    """The harness finds an answer by the prompt: it could not tell two questions with one prompt apart."""
    ours = RalmLM.create_from_arg_obj({"lm": str(tiny_folders["bloom"]), "index": str(index)})
    asked = [
        Instance(kind, {"question": "what sings?"}, ("Answer:", more), 0, ("local", 0, 1))
        for kind, more in (("loglikelihood", " a whale"), ("generate_until", {"max_gen_toks": 3}))
    ]
    assert ours.loglikelihood(asked[:1])
    kept = CachingLM(ours, str(tmp_path / "cache.db"))
    with pytest.raises(UsageError, match="^`use_cache` finds answers by the prompt, .* question .'what sings"):
        kept.loglikelihood(asked[:1])
    with pytest.raises(UsageError, match="^`use_cache` finds answers by the prompt"):
        kept.generate_until(asked[1:])


def test_a_cache_of_another_kind_is_refused(tiny_folders: dict[str, Path]) -> None:
    ours = RalmLM.create_from_arg_obj({"lm": str(tiny_folders["bloom"])})
    hook = CacheHook(None)
    hook.dbdict = {}
    with pytest.raises(UsageError, match="cannot keep the answers of several settings apart"):
        ours.set_cache_hook(hook)


def test_cached_requests_are_those_of_any_setting(
    tiny_folders: dict[str, Path], index: Path, tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The harness keeps the requests of a task, with its documents: they hold nothing of retrieval."""
    monkeypatch.setattr("lm_eval.caching.cache.PATH", str(tmp_path / "requests"))
    lm = {"lm": str(tiny_folders["bloom"])}
    for arguments in (lm, {**lm, "index": str(index)}):
        expected = answers("ralm", tasks, arguments)
        for _ in range(2):
            assert answers("ralm", tasks, arguments, cache_requests=True) == expected
    assert any((tmp_path / "requests").iterdir())


def test_draws_that_a_cache_would_make_equal_are_refused(tiny_folders: dict[str, Path], tmp_path: Path) -> None:
    """The harness leaves requests out of its cache only for `do_sample=True`."""
    ours = RalmLM.create_from_arg_obj({"lm": str(tiny_folders["bloom"])})
    drawn = {"temperature": 0.8, "max_gen_toks": 3}
    asked = [
        Instance("generate_until", {}, ("The sea", more), 0, ("local", 0, 1))
        for more in (drawn, {**drawn, "do_sample": True})
    ]
    kept = CachingLM(ours, str(tmp_path / "cache.db"))
    with pytest.raises(UsageError, match="^`use_cache` would give every draw of a request the same answer"):
        kept.generate_until(asked[:1])
    assert len(kept.generate_until(asked[1:])) == 1
    assert len(ours.generate_until(asked[1:])) == 1
