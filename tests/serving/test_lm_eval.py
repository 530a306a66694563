"""lm-evaluation-harness's own clients ask the server: the figures are those of `hf` and of our own LM."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lm_eval
import pytest
from lm_eval.tasks import TaskManager

from ralm import FromRetriever, PlanOptions, Request
from ralm.harness.model import RalmLM
from ralm.lm import model_folder
from ralm.lm.registry import ModelOptions, load_language_model
from ralm.lm.scoring import Scorer
from ralm.serving.service import Service
from tests.chat_models import save_chat_model
from tests.harness.local_tasks import PAGES, save_tasks
from tests.serving.served import MODEL, serving, tiny

pytestmark = pytest.mark.filterwarnings("ignore")
KINDS = ("choosing", "writing", "ending", "pages")


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tasks(tmp_path_factory.mktemp("tasks"))


def evaluated(model: str, arguments: str, tasks: Path, kinds: Sequence[str], **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = lm_eval.simple_evaluate(
        model=model,
        model_args=arguments,
        tasks=[f"local_{kind}" for kind in kinds],
        task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
        bootstrap_iters=0,
        **more,
    )
    return found


def answers(found: dict[str, Any], kind: str) -> list[Any]:
    return [response for sample in found["samples"][f"local_{kind}"] for (response,) in sample["resps"]]


def of_server(url: str, batch: int = 1) -> str:
    said = {"base_url": f"{url}/v1/completions", "model": MODEL, "tokenizer_backend": "remote", "max_length": 1024}
    return ",".join(f"{name}={value}" for name, value in said.items()) + f",batch_size={batch},max_retries=1"


@pytest.mark.parametrize("batch", [1, 3])
def test_without_retrieval_the_figures_are_those_of_hf(plain_url: str, tasks: Path, batch: int) -> None:
    expected = evaluated("hf", f"pretrained={model_folder(MODEL)},dtype=float32", tasks, KINDS, device="cpu")
    found = evaluated("local-completions", of_server(plain_url, batch), tasks, KINDS)
    for kind in KINDS:
        ours, theirs = answers(found, kind), answers(expected, kind)
        assert len(ours) == len(theirs) > 0
        for one, other in zip(ours, theirs, strict=True):
            assert one == (other if isinstance(other, str) else pytest.approx(other, rel=1e-4)), kind
        for name, value in expected["results"][f"local_{kind}"].items():
            if isinstance(value, float):
                assert found["results"][f"local_{kind}"][name] == pytest.approx(value, rel=1e-4), (kind, name)


def test_under_retrieval_whole_texts_are_scored_as_by_our_own_model(url: str, service: Service, tasks: Path) -> None:
    """The harness puts an end-of-text token before a text, so that the first token is scored too."""
    found = answers(evaluated("local-completions", of_server(url), tasks, ["pages"]), "pages")
    source = FromRetriever.of_index(service.indexes.index("few"))
    ours = RalmLM(tiny(), source, plan=PlanOptions(max_length=1024))
    for page, log_prob in zip(PAGES, found, strict=True):
        [expected] = ours.loglikelihood_rolling([_Asked(page["page"])])
        first = tiny().tokenizer.encode(page["page"])[:1]
        end = tiny().tokenizer.end_token
        assert end is not None
        [[of_first]] = Scorer(tiny(), progress=False).log_probs([Request(first[:0], first * 0 + end, first)])
        assert log_prob == pytest.approx(expected + float(of_first), rel=1e-4)


def test_chats_without_retrieval_are_those_of_hf(tmp_path: Path, tasks: Path) -> None:
    folder = save_chat_model(tmp_path / "tiny-chat")
    how = {
        "apply_chat_template": True,
        "system_instruction": "Be brief.",
        "num_fewshot": 1,
        "fewshot_as_multiturn": True,
    }
    expected = evaluated("hf", f"pretrained={folder},dtype=float32", tasks, ["writing"], device="cpu", **how)
    model = load_language_model(str(folder), ModelOptions(dtype="float32"))
    with serving(Service(model)) as url:
        arguments = f"base_url={url}/v1/chat/completions,model=tiny-chat,max_retries=1"
        found = evaluated("local-chat-completions", arguments, tasks, ["writing"], **how)
    texts = [text.replace("<s>", "") for text in answers(found, "writing")]  # `hf` leaves out special tokens
    assert texts == answers(expected, "writing")
    assert len(set(texts)) > 1


class _Asked:
    """A request of the harness for a whole text."""

    def __init__(self, text: str) -> None:
        self.args = (text,)
        self.doc: dict[str, str] = {}
