"""Caches of lm-evaluation-harness: answers of different models, indexes and readers are never taken for each other."""

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from lm_eval.api.model import CachingLM

from ralm.errors import UsageError
from ralm.harness.model import RalmLM
from ralm.reading import score
from ralm.records import Document
from tests.harness.local_tasks import evaluated, of, requests
from tests.serving.served import save_index

pytestmark = pytest.mark.filterwarnings("ignore")

KINDS = ("choosing", "writing", "pages")
TEXTS = [
    "Whales sing in the deep blue sea; nobody in town keeps sheep there.",
    "The dog keeps the sheep; the sheep of the town never see the sea, and none sings.",
    "Fish and wool are sold in the town by the sea, where a dog keeps watch and sings.",
]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    texts = [Document(str(number), "", text) for number, text in enumerate(TEXTS)]
    return save_index(tmp_path_factory.mktemp("index") / "index", texts)


def answers(model: Any, tasks: Path, arguments: Any = None, **more: Any) -> dict[str, Any]:
    """What a model answers to every request, by task."""
    found = evaluated(model, tasks, KINDS, model_args=arguments, **more)
    return {task: [one["resps"] for one in samples] for task, samples in found["samples"].items()}


@pytest.mark.slow
def test_settings_do_not_share_answers_in_one_file(
    tiny_folders: dict[str, Path], index: Path, tasks: Path, tmp_path: Path
) -> None:
    lm = {"lm": str(tiny_folders["bloom"]), "lm_args": "dtype=float32"}
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
    monkeypatch.setattr(score, "read_endings", None)
    monkeypatch.setattr(RalmLM, "_evaluated", None)
    monkeypatch.setattr(RalmLM, "_written", None)
    assert answers("ralm", tasks, arguments, use_cache=str(tmp_path / "cache")) == first


def test_an_interrupted_run_has_kept_what_it_scored(
    tiny_folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = of(tiny_folders["bloom"])
    asked = requests("loglikelihood", *(("The", f" sea {number}") for number in range(3)))
    read, were_read = score.read_endings, list[int]()

    def interrupted(endings: Any, *options: Any) -> Any:
        yield from itertools.islice(read(endings, *options), 2)
        raise KeyboardInterrupt

    def counted(endings: Any, *options: Any) -> Any:
        were_read.append(len(endings))
        return read(endings, *options)

    monkeypatch.setattr(score, "read_endings", interrupted)
    with pytest.raises(KeyboardInterrupt):
        CachingLM(ours, str(tmp_path / "cache.db")).loglikelihood(asked)
    monkeypatch.setattr(score, "read_endings", counted)
    found = CachingLM(of(tiny_folders["bloom"]), str(tmp_path / "cache.db")).loglikelihood(asked)
    assert were_read == [1]
    for one, expected in zip(found, of(tiny_folders["bloom"]).loglikelihood(asked), strict=True):
        assert one == (pytest.approx(expected[0], rel=1e-5), expected[1])


def test_a_question_that_is_not_in_the_prompt_is_refused_with_a_cache(
    tiny_folders: dict[str, Path], index: Path, tmp_path: Path
) -> None:
    """The harness finds an answer by the prompt: it could not tell two questions with one prompt apart."""
    ours = of(tiny_folders["bloom"], index=index)
    document = {"question": "what sings?"}
    scored = requests("loglikelihood", ("Answer:", " a whale"), document=document)
    assert ours.loglikelihood(scored)
    kept = CachingLM(ours, str(tmp_path / "cache.db"))
    with pytest.raises(UsageError, match="^`use_cache` finds answers by the prompt, .* question .'what sings"):
        kept.loglikelihood(scored)
    with pytest.raises(UsageError, match="^`use_cache` finds answers by the prompt"):
        kept.generate_until(requests("generate_until", ("Answer:", {"max_gen_toks": 3}), document=document))


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
    ours = of(tiny_folders["bloom"])
    drawn = {"temperature": 0.8, "max_gen_toks": 3}
    asked = requests("generate_until", ("The sea", drawn), ("The sea", {**drawn, "do_sample": True}))
    kept = CachingLM(ours, str(tmp_path / "cache.db"))
    with pytest.raises(UsageError, match="^`use_cache` would give every draw of a request the same answer"):
        kept.generate_until(asked[:1])
    assert len(kept.generate_until(asked[1:])) == 1
    assert len(ours.generate_until(asked[1:])) == 1
