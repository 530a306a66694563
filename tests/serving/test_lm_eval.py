"""lm-evaluation-harness's own clients ask the server: the figures are those of `hf` and of our own LM."""

from pathlib import Path

import pytest

from ralm import FromRetriever, PlanOptions, Request
from ralm.harness.model import RalmLM
from ralm.lm import model_path
from ralm.lm.scoring import Scorer
from ralm.protocols import WritingModel
from ralm.serving.local import LocalService
from tests.harness.local_tasks import PAGES, answers, assert_alike, evaluated, requests, save_tasks
from tests.serving.served import MODEL, local, serving, tiny

pytestmark = pytest.mark.filterwarnings("ignore")
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
