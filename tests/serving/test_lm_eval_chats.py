"""lm-evaluation-harness's own `local-chat-completions` asks the server: its texts are those of `hf`."""

from pathlib import Path

import pytest

from ralm.lm.registry import ModelOptions, load_language_model
from ralm.serving.service import Service
from tests.chat_models import save_chat_model
from tests.harness.local_tasks import save_tasks
from tests.serving.served import serving
from tests.serving.test_lm_eval import answers, evaluated

pytestmark = pytest.mark.filterwarnings("ignore")


def test_without_retrieval_the_texts_are_those_of_hf(tmp_path: Path) -> None:
    folder, tasks = save_chat_model(tmp_path / "tiny-chat"), save_tasks(tmp_path / "tasks")
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
