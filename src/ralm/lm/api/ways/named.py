"""The ways of asking by name."""

from ralm.lm.api.capabilities import Asking
from ralm.lm.api.names import TokensByName
from ralm.lm.api.prompts import PromptForm
from ralm.lm.api.ways.chat import Chat, NewChat, NewTextChat, TextChat
from ralm.lm.api.ways.completions import Biased, Completions, Echo, TextCompletions, Vllm
from ralm.lm.api.ways.llamacpp import LlamaCpp
from ralm.lm.api.ways.ollama import Ollama, OllamaText
from ralm.lm.api.ways.sglang import SgLang
from ralm.lm.api.ways.tgi import Tgi, TgiLikeliest
from ralm.lm.api.ways.way import Way
from ralm.protocols import FullTokenizer

_CHATS = (Chat, TextChat, NewChat, NewTextChat)
_SPOKEN = {kind.name: kind for kind in (Completions, Echo, Biased, Vllm, TextCompletions, *_CHATS, Ollama, OllamaText)}
_TGI = {kind.name: kind for kind in (Tgi, TgiLikeliest)}


def way_of(asking: Asking, model: str, tokenizer: FullTokenizer, names: TokensByName) -> Way:
    """The way that `asking` describes, for a server's `model`. Raises KeyError if there is none of this name."""
    if asking.way == SgLang.name:
        return SgLang(likeliest=asking.likeliest)
    if asking.way == LlamaCpp.name:
        return LlamaCpp(likeliest=asking.likeliest, tokenizer=tokenizer, size=names.size)
    form = PromptForm(tokenizer=tokenizer, as_ids=asking.as_ids, begin=asking.begin)
    if asking.way in _TGI:
        return _TGI[asking.way](likeliest=asking.likeliest, form=form)
    return _SPOKEN[asking.way](likeliest=asking.likeliest, model=model, form=form, names=names)
