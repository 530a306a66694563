"""What is wrong with a request: one sentence for the client, with what OpenAI's error bodies say beside it."""

from ralm.errors import UsageError


class RequestError(UsageError):
    """A request asks for something that there is not, or in a way that is not understood.

    `param` names the field of the request, `code` the kind of error for programs, `status` is that of HTTP.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.param = param
        self.code = code
        self.status = status
