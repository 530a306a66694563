"""Requests for a token of an ensemble, with drafts that each document reads in one request, and token by token."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from benchmarks.api.certified import DOCUMENTS
from benchmarks.api.material import Material, asked_model
from ralm.lm.api.model import ApiContinuations, ApiModel
from ralm.reading.ensemble import Ensemble
from ralm.reading.generate import TokenWriter
from ralm.reading.parts import Parts
from ralm.reading.sampling import GenerationOptions
from ralm.records import IntArray, TextsAhead


class TokenByToken(ApiModel):
    """The same model, without reading ahead."""

    def continuations(self) -> ApiContinuations:
        return _OneAhead(self)


class _OneAhead(ApiContinuations):
    def read_ahead(self, several: Sequence[TextsAhead]) -> None:
        """Not more than the next token."""
        super().read_ahead([replace(one, max_tokens=1) for one in several])


def token_by_token(model: ApiModel) -> TokenByToken:
    """A model without reading ahead, with the same client."""
    return TokenByToken(model.name, model.client, model.backend, model.tokenizer, model.capabilities)


def written(
    material: Material, model: ApiModel, prompts: Sequence[IntArray], reader: Ensemble, options: GenerationOptions
) -> list[list[int]]:
    """The tokens that are written behind each prompt, one prompt after the other."""
    found = []
    for prompt in prompts:
        writer = TokenWriter(model, options, material.source, parts=Parts(reader=reader))
        writer.add(prompt)
        found.append([token.token for step in iter(writer.step, []) for _, token in step])
    return found


def ahead_table(material: Material, server: str, prompts: int, new_tokens: int) -> Iterator[dict[str, object]]:
    """A row for each number of documents and stride; the last stride is as long as the text."""
    given = material.prompts(prompts)
    for documents in DOCUMENTS:
        for stride in (4, 16, new_tokens):
            options = GenerationOptions(new_tokens=new_tokens, stride=stride)
            found, requests, read = [], [], []
            for ahead in (False, True):
                with asked_model(server) as model:
                    before = model.client.usage
                    asked = model if ahead else token_by_token(model)
                    found.append(written(material, asked, given, Ensemble(documents=documents), options))
                    spent = model.client.usage
                tokens = sum(map(len, found[-1]))
                requests.append((spent.requests - before.requests) / tokens)
                read.append((spent.tokens_in - before.tokens_in) / tokens)
            yield {
                "documents": documents,
                "stride": stride if stride < new_tokens else "none",
                "tokens": tokens,
                "equal": found[0] == found[1],
                "requests a token": requests[0],
                "reading ahead": requests[1],
                "ratio": requests[0] / requests[1],
                "tokens read a token": read[0],
                "tokens read, reading ahead": read[1],
            }
