"""The kinds of servers that a scripted server imitates, a file each."""

from tests.api.dialects.base import Call as Call, Dialect as Dialect, Handler as Handler, chat_text as chat_text
from tests.api.dialects.llamacpp import LlamaCpp as LlamaCpp
from tests.api.dialects.llamacpp_python import LlamaCppPython as LlamaCppPython
from tests.api.dialects.openai import OpenAI as OpenAI, error as error
from tests.api.dialects.text_only import TextOnly as TextOnly, TransformersServe as TransformersServe
from tests.api.dialects.vllm import VLLM as VLLM
