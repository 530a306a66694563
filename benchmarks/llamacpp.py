"""GGUF files read by `ralm` against llama.cpp's server: token ids, and log-probabilities of the most likely tokens.

    python -m benchmarks.llamacpp FILE.gguf TEXT URL [--positions 500]
    python -m benchmarks.llamacpp FILE.gguf --float32 OUT.gguf

URL is a server of the same file, from `python -m tools.real_servers.native FILE PORT NAME`. Token ids of the first
300,000 characters of TEXT are compared; then, after each prefix of its first tokens, the natural log-probabilities of
the five tokens that llama.cpp finds most likely. `--float32` writes the same weights as a float32 file: llama.cpp then
computes in float32 too, so a difference that it removes comes from arithmetic with quantised weights.
"""

import argparse
import sys
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np

from ralm import load_language_model
from ralm.records import FloatArray, IntArray, ScoringSequence

_CHARACTERS: Final = 300_000
_TOP: Final = 5


def compare(file: str, text: str, url: str, positions: int) -> str:
    """A line with the figures; RuntimeError if the token ids differ."""
    model: Any = load_language_model(file)
    tokens = model.tokenizer.encode(text)
    with httpx.Client(base_url=url, timeout=600) as server:
        asked = {"content": text, "add_special": False, "parse_special": False}
        given = server.post("/tokenize", json=asked).raise_for_status().json()["tokens"]
        if given != tokens.tolist():
            raise RuntimeError(f"{file}: llama.cpp reads {len(given)} other token ids than the {len(tokens)} of ralm.")
        first = model.tokenizer.special_tokens.before
        read = np.concatenate([first, tokens[: positions + 1 - len(first)]])
        log_probs_PV = _log_probs(model, read)
        differences, same = [], 0
        for place in range(1, len(read)):
            top = _top(server, read[:place])
            own_V = log_probs_PV[place - 1]
            same += int(own_V.argmax()) == top[0][0]
            differences += [abs(float(own_V[token]) - log_prob) for token, log_prob in top]
    return (
        f"{file}: {len(tokens):,} token ids equal; same most likely token {same} of {len(read) - 1}; difference mean "
        f"{np.mean(differences):.2g}, largest {max(differences):.2g} nats"
    )


def _log_probs(model: Any, tokens: IntArray) -> FloatArray:
    """The log-probabilities (float32, P x V) of the token after each prefix of the tokens."""
    [log_probs_PV] = model.distributions([ScoringSequence(tokens, np.arange(1, len(tokens), dtype=np.int64))])
    return np.asarray(log_probs_PV)


def _top(server: httpx.Client, prefix: IntArray) -> list[tuple[int, float]]:
    """The ids of llama.cpp's most likely next tokens and their log-probabilities, most likely first."""
    asked = {"prompt": prefix.tolist(), "n_predict": 1, "n_probs": _TOP, "temperature": 0}
    [answer] = server.post("/completion", json=asked).raise_for_status().json()["completion_probabilities"]
    return [(one["id"], one["logprob"]) for one in answer["top_logprobs"]]


def write_float32(file: str, out: str) -> None:
    """Write the model of a GGUF file with all its metadata and float32 weights."""
    from gguf import GGUFReader, GGUFValueType, GGUFWriter
    from gguf.quants import dequantize

    reader = GGUFReader(file)
    writer = GGUFWriter(out, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in ("general.architecture", "general.file_type"):
            kind, *items = field.types
            writer.add_key_value(name, field.contents(), kind, items[-1] if kind == GGUFValueType.ARRAY else None)
    writer.add_file_type(0)
    for tensor in reader.tensors:
        weights = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        writer.add_tensor(tensor.name, weights.reshape([*reversed(tensor.shape.tolist())]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("text", nargs="?", type=Path)
    parser.add_argument("url", nargs="?")
    parser.add_argument("--positions", type=int, default=500)
    parser.add_argument("--float32", help="write this file and compare nothing")
    given = parser.parse_args()
    if given.float32 is not None:
        write_float32(given.file, given.float32)
    elif given.url is None:
        parser.error("name a text and the URL of a server, or --float32.")
    else:
        text = given.text.read_text(encoding="utf-8")[:_CHARACTERS]
        sys.stdout.write(compare(given.file, text, given.url, given.positions) + "\n")


if __name__ == "__main__":
    main()
