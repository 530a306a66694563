"""What models behind an API cost, and what they tell.

    python -m benchmarks.api [--part requests certified scored ahead] [--demo FOLDER] [--server URL#MODEL] ...

requests   an ensemble of 10 over 1,000 strides: requests that are merged and sent, and how many a second are answered
           by a server that takes 50 ms for each: 16 at once against one by one, on a sample of them
certified  ensembles that write greedy tokens where each document lists its k likeliest only: how many are certified,
           and how many of the others are right all the same
scored     the same of scoring: targets that every document lists, so that their figure is exact, and those that none
           lists, so that nothing but an upper bound is known
ahead      requests for a token of an ensemble with drafts that are read ahead, against token by token, on a server that
           tells the log-probabilities of prompts: `--server`, or else an imitation of vLLM with ralm-tiny behind it

All read the demonstration with ralm-tiny: its held-out text, passages by BM25. `--demo` is a folder of `ralm demo`;
without it, one is made.
"""

import argparse
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from benchmarks.api.certified import certified_table, scored_table
from benchmarks.api.material import Material, material_of, print_table
from benchmarks.api.reading_ahead import ahead_table
from benchmarks.api.requests import requests_table
from ralm.terminal import no_progress
from tests.api.backings import OfModel
from tests.api.dialects import VLLM
from tests.api.scripted_server import ScriptedServer

UNFINISHED_INDEX = ("requests", "certified", "scored", "ahead")


@contextmanager
def server_of(name: str | None, material: Material) -> Iterator[str]:
    """The server that is named, or an imitation of vLLM."""
    if name is not None:
        yield name
        return
    with ScriptedServer(OfModel(material.model), VLLM()) as server:
        yield f"{server.root}#{server.model}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", nargs="+", choices=UNFINISHED_INDEX, default=UNFINISHED_INDEX)
    parser.add_argument("--demo", type=Path)
    parser.add_argument("--strides", type=int, default=1000, help="requests: strides of the plan")
    parser.add_argument("--sample", type=int, default=640, help="requests: how many are sent, several at once")
    parser.add_argument("--alone", type=int, default=64, help="requests: how many are sent one by one")
    parser.add_argument("--seconds", type=float, default=0.05, help="requests: what the server takes for each")
    parser.add_argument("--at-once", type=int, default=16, help="requests: how many are under way at once")
    parser.add_argument("--prompts", type=int, default=24, help="certified: prompts, 32 tokens behind each")
    parser.add_argument("--scored-strides", type=int, default=64, help="scored: strides, of 4 targets each")
    parser.add_argument("--server", help="ahead: the model, as `URL#MODEL`")
    parser.add_argument("--ahead-prompts", type=int, default=2, help="ahead: prompts, 32 tokens behind each")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with no_progress(), material_of(args.demo) as material:
        gc.freeze()  # as the program does once its models are loaded
        if "requests" in args.part:
            sizes = {name: getattr(args, name) for name in ("strides", "seconds", "at_once", "sample", "alone")}
            print_table([*requests_table(material, documents=10, **sizes)])
        if "certified" in args.part:
            print_table([*certified_table(material, args.prompts)])
        if "scored" in args.part:
            print_table([*scored_table(material, args.scored_strides)])
        if "ahead" in args.part:
            with server_of(args.server, material) as name:
                print_table([*ahead_table(material, name, args.ahead_prompts, 32)])


if __name__ == "__main__":
    main()
