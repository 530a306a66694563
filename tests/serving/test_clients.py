"""Clients as they are: openai's, our own API models, and those of lm-evaluation-harness."""

from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from ralm import Ensemble, FromRetriever, GenerationOptions, InContext, PlanOptions, Request, evaluate_text, generate
from ralm.harness.model import RalmLM
from ralm.lm import model_path
from ralm.lm.api.endpoint import ApiOptions
from ralm.lm.registry import ModelOptions, load_language_model
from ralm.lm.scoring import Scorer
from ralm.protocols import WritingModel
from ralm.reading.parts import Parts
from ralm.serving.local import LocalService
from tests.harness.local_tasks import PAGES, answers, assert_alike, evaluated, requests, save_tasks
from tests.serving.served import MODEL, PROMPTS, local, serving, tiny

pytestmark = pytest.mark.filterwarnings("ignore")
WRITTEN = {"max_tokens": 12, "temperature": 0}


def expected(service: LocalService, prompt: str, *, plain: bool = False) -> str:
    """What the library writes."""
    source = None if plain else FromRetriever.of_index(service.indexes.index("few"))
    return "".join(one.text for one in generate(prompt, tiny(), GenerationOptions(new_tokens=12), source))


@pytest.fixture
def of_openai(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)


def test_openai(of_openai: openai.OpenAI, service: LocalService) -> None:
    answer = of_openai.completions.create(model=MODEL, prompt=PROMPTS[0], logprobs=1, **WRITTEN)  # type: ignore[call-overload]
    assert answer.choices[0].text == expected(service, PROMPTS[0])
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == len(answer.choices[0].logprobs.tokens) == 12
    assert answer.ralm["index"] == "few"  # clients keep fields that they do not know
    assert [one.id for one in of_openai.models.list()] == [MODEL, f"{MODEL}:few", f"{MODEL}:plain"]
    assert of_openai.models.retrieve(MODEL).id == MODEL


def test_openai_chooses_how_it_is_read(of_openai: openai.OpenAI, service: LocalService) -> None:
    body: Any = {"model": MODEL, "prompt": PROMPTS[0], **WRITTEN}
    plain = of_openai.completions.create(**body, extra_body={"ralm": {"index": None}})
    assert plain.choices[0].text == expected(service, PROMPTS[0], plain=True)
    assert not {"ralm", "search_results"} & plain.model_extra.keys()
    with pytest.raises(openai.BadRequestError, match="`index` 'none' is not served; the indexes are: few") as refused:
        of_openai.completions.create(**body, extra_body={"ralm": {"index": "none"}})
    assert refused.value.param == "ralm.index"
    with pytest.raises(openai.NotFoundError) as unknown:
        of_openai.completions.create(**{**body, "model": "gpt-5"})
    assert unknown.value.code == "model_not_found"


def test_openai_chooses_an_index_by_the_name_of_the_model(of_openai: openai.OpenAI, service: LocalService) -> None:
    body: Any = {"prompt": PROMPTS[0], **WRITTEN}
    for name, index in (("plain", None), ("few", "few")):
        text = expected(service, PROMPTS[0], plain=index is None)
        answer = of_openai.completions.create(model=f"{MODEL}:{name}", **body)
        assert (answer.model, answer.choices[0].text) == (f"{MODEL}:{name}", text)
        assert of_openai.models.retrieve(answer.model).model_dump()["index"] == index
        same = of_openai.completions.create(model=answer.model, **body, extra_body={"ralm": {"index": index}})
        assert same.choices[0].text == text
    with pytest.raises(openai.BadRequestError, match=f"the model {MODEL}:plain reads no index: leave out") as refused:
        of_openai.completions.create(model=f"{MODEL}:plain", **body, extra_body={"ralm": {"index": "few"}})
    assert refused.value.param == "ralm.index"
    with pytest.raises(openai.BadRequestError, match=f"the model {MODEL}:few reads the index 'few': leave out"):
        of_openai.completions.create(model=f"{MODEL}:few", **body, extra_body={"ralm": {"index": None}})
    with pytest.raises(openai.NotFoundError, match=f"the models are: {MODEL}, {MODEL}:few, {MODEL}:plain"):
        of_openai.completions.create(model=f"{MODEL}:other", **body)


@pytest.mark.parametrize(("of", "name"), [("plain_url", MODEL), ("url", f"{MODEL}:plain")])
def test_our_own_api_model_is_of_the_first_tier(
    of: str, name: str, request: pytest.FixtureRequest, service: LocalService, tmp_path: Path
) -> None:
    """Scores, ensembles and generation through the server are those of the same model in this process, also if the
    server reads an index by default."""
    options = ApiOptions(answers=tmp_path / "answers.sqlite")  # the server reports the tokenizer
    model: Any = load_language_model(f"{request.getfixturevalue(of)}/v1#{name}", ModelOptions(api=options))
    try:
        assert model.backend.name == "echo"
        assert model.backend.tier.startswith("1:")
        source = FromRetriever.of_index(service.indexes.index("few"))
        plan = PlanOptions(max_length=512, document_tokens=64)
        for reader in (InContext(), Ensemble(documents=2)):
            one, other = (
                evaluate_text(PROMPTS[1], Scorer(each, progress=False), plan, source=source, parts=Parts(reader=reader))
                for each in (model, tiny())
            )
            np.testing.assert_allclose(one.reading.scored.log_probs_T, other.reading.scored.log_probs_T, atol=1e-4)
        written = [
            "".join(piece.text for piece in generate(PROMPTS[0], each, GenerationOptions(new_tokens=6), source))
            for each in (model, tiny())
        ]
        assert written[0] == written[1]
    finally:
        model.client.close()


KINDS = ("choosing", "writing", "ending", "pages")


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tasks(tmp_path_factory.mktemp("tasks"))


def of_server(url: str, batch: int = 1) -> str:
    tokenizer = {"tokenizer_backend": "huggingface", "tokenizer": model_path(MODEL)}
    said = {"base_url": f"{url}/v1/completions", "model": MODEL, **tokenizer, "max_length": 1024}
    return ",".join(f"{name}={value}" for name, value in said.items()) + f",batch_size={batch},max_retries=1"


def test_without_retrieval_the_figures_are_those_of_hf(plain_url: str, tasks: Path) -> None:
    expected = evaluated("hf", tasks, KINDS, model_args=f"pretrained={model_path(MODEL)},dtype=float32", device="cpu")
    found = evaluated("local-completions", tasks, KINDS, model_args=of_server(plain_url, batch=3))
    assert_alike(found, expected, KINDS)


def test_under_retrieval_whole_texts_are_scored_as_by_our_own_model(
    url: str, service: LocalService, tasks: Path
) -> None:
    """The harness puts an end-of-text token before a text, so that the first token is scored too."""
    found = answers(evaluated("local-completions", tasks, ["pages"], model_args=of_server(url)), "pages")
    source = FromRetriever.of_index(service.indexes.index("few"))
    ours = RalmLM(tiny(), source, plan=PlanOptions(max_length=1024))
    for page, log_prob in zip(PAGES, found, strict=True):
        [expected] = ours.loglikelihood_rolling(requests("loglikelihood_rolling", (page["page"],)))
        first = tiny().tokenizer.encode(page["page"])[:1]
        end = tiny().tokenizer.end_token
        assert end is not None
        [[of_first]] = Scorer(tiny(), progress=False).log_probs([Request(first[:0], first * 0 + end, first)])
        assert log_prob == pytest.approx(expected + float(of_first), rel=1e-4)


def test_chats_without_retrieval_are_those_of_hf(chat_folder: Path, chat_model: WritingModel, tasks: Path) -> None:
    how = {
        "apply_chat_template": True,
        "system_instruction": "Be brief.",
        "num_fewshot": 1,
        "fewshot_as_multiturn": True,
    }
    expected = evaluated(
        "hf", tasks, ["writing"], model_args=f"pretrained={chat_folder},dtype=float32", device="cpu", **how
    )
    with serving(local(chat_model)) as url:
        arguments = f"base_url={url}/v1/chat/completions,model=tiny-chat,max_retries=1"
        found = evaluated("local-chat-completions", tasks, ["writing"], model_args=arguments, **how)
    texts = [text.replace("<s>", "") for text in answers(found, "writing")]  # `hf` leaves out special tokens
    assert texts == answers(expected, "writing")
    assert len(set(texts)) > 1
