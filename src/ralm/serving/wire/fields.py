"""What the bodies of requests have in common: unknown fields are refused, and what a request chooses in `ralm`."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator
from pydantic_core import PydanticCustomError

from ralm.serving.errors import RequestError
from ralm.serving.settings import choices


class Body(BaseModel):
    """The body of a request: JSON types are not converted, and unknown fields are errors."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _checked(cls, value: Any) -> Any:
        """The same value; PydanticCustomError if it is no text that can be sent on."""
        if not isinstance(value, dict):
            return value  # pydantic says what is wrong
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise PydanticCustomError("surrogates", "holds half a character, a lone surrogate") from None
        except (RecursionError, ValueError):
            raise PydanticCustomError("nested", "is nested too deeply, or has a number that is too long") from None
        return value


class StreamOptions(Body):
    """What a stream tells beside the text."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


def _chosen() -> type[Body]:
    fields: dict[str, Any] = {name: (Annotated[one.kind | None, one.option], None) for name, one in choices().items()}
    own = {
        "index": "The name of the index to read with; null: none.",
        "query": "What the retriever is asked with, instead of the end of the text.",
    }
    for name, said in own.items():
        fields[name] = (Annotated[str | None, Field(description=said)], None)
    said = "Also tell what passages changed for each token, in nats."
    fields["gain"] = (Annotated[bool | None, Field(description=said)], None)
    return create_model("Chosen", __base__=Body, __doc__="What a request chooses of how it is read.", **fields)


if TYPE_CHECKING:
    Chosen = Body
else:
    Chosen = _chosen()


def chosen(given: Chosen | None) -> dict[str, Any]:
    """What a request chooses, by name; null is a choice of the index alone, and the default elsewhere."""
    if given is None:
        return {}
    values = {name: getattr(given, name) for name in given.model_fields_set}
    return {name: value for name, value in values.items() if value is not None or name == "index"}


def refuse_idle(body: Body, idle: Mapping[str, tuple[Any, ...]], where: str = "") -> None:
    """Raise RequestError if a field that does nothing has another value than those that clients send for nothing."""
    for name, nothing in idle.items():
        if getattr(body, name) not in nothing:
            raise RequestError(f"`{where}{name}` is not supported: leave it out.", param=f"{where}{name}")


def check_stream(body: Any) -> None:
    """Raise RequestError if a request has options of a stream and wants none."""
    if body.stream_options is not None and not body.stream:
        raise RequestError("`stream_options` goes with `stream`: true.", param="stream_options")


def count(name: str, given: int | None, least: int, most: int, default: int) -> int:
    """A number of a request, or the default; RequestError if it is out of range."""
    value = default if given is None else given
    if not least <= value <= most:
        raise RequestError(f"`{name}` must be from {least} to {most:,}.", param=name)
    return value
