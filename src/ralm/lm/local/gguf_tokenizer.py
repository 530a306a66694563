"""Makes transformers tokenizers of the metadata of GGUF files: byte-level BPE, and SentencePiece's BPE.

Those that transformers makes differ between its versions. They split the numbers of SmolLM2, and what they do not know,
as GPT-2 does.
"""

from typing import Any, Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

# Private: transformers' merges; GGUF files against their sources.
from transformers.tokenization_utils_base import generate_merges

from ralm.errors import ModelError
from ralm.lm.local.gguf_file import GgufFile, open_gguf

_CONTRACTIONS: Final = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LETTERS: Final = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_REST_WITH_SLASH: Final = _REST.replace(r"[\r\n]*", r"[\r\n/]*")
_LLAMA_3: Final = rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}{{1,3}}|{_REST}"
_QWEN_2: Final = rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}|{_REST}"


def _by_case(ending: str, digits: str) -> str:
    """Return a pattern that splits words where upper case follows lower case."""
    before = r"[^\r\n\p{L}\p{N}]?"
    words = f"{before}{_UPPER}*{_LOWER}+{ending}|{before}{_UPPER}+{_LOWER}*{ending}"
    return f"{words}|{digits}|{_REST_WITH_SLASH}"


_TEKKEN: Final = _by_case("", r"\p{N}")
_GPT_4O: Final = _by_case(f"{_CONTRACTIONS}?", r"\p{N}{1,3}")
_GPT_2, _DIGITS = "", "digits"
_SPLITTING: Final = {
    **dict.fromkeys(("gpt-2", "phi-2", "olmo", "mpt"), _GPT_2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"), _DIGITS),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "dbrx", "smaug-bpe"), _LLAMA_3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), _QWEN_2),
    "tekken": _TEKKEN,
    **dict.fromkeys(("gpt-4o", "llama4"), _GPT_4O),
}
"""How text is split before BPE, by `tokenizer.ggml.pre`: a pattern, GPT-2's way, or that with single digits."""
_WHOLE_WORDS: Final = {"llama-bpe", "llama3", "llama-v3", "falcon3", "tekken"}
"""Those that read a word that is a token as that token, whatever the merges, and begin texts with a BOS by default."""
_NOT_STRIPPED: Final = {"<unk>", "<s>", "<|endoftext|>"}
_SPACE: Final = "\u2581"
_NO_EFFECT: Final = ("_token_id", ".huggingface.json", ".token_type_count", ".merges")
"""The ends of settings that need not be read: SentencePiece's BPE has scores instead of merges."""
_TEMPLATE: Final = "tokenizer.chat_template"


class _Vocabulary:
    """The tokens of a file and their ids: those `added`, whether special, and the `scores` of those made by merges."""

    def __init__(self, file: GgufFile) -> None:
        from gguf import TokenType

        self.file = file
        tokens = self.get("tokens") or []
        self.tokens: list[str] = [token or f"[EMPTY_{number}]" for number, token in enumerate(tokens)]
        self.ids = {token: number for number, token in enumerate(self.tokens)}
        kinds = self.get("token_type", [TokenType.NORMAL] * len(tokens))
        scores = self.get("scores", [0.0] * len(tokens))
        if not tokens or not len(self.ids) == len(tokens) == len(kinds) == len(scores):
            raise ModelError(f"{file.name} is damaged: it has no tokens, one twice, or one without a kind or score.")
        is_special = {TokenType.UNKNOWN: True, TokenType.CONTROL: True, TokenType.USER_DEFINED: False}
        of_kind = [*zip(self.tokens, kinds, scores, strict=True)]
        self.added = {token: is_special[kind] for token, kind, _ in of_kind if kind in is_special}
        merged = (TokenType.NORMAL, TokenType.UNUSED)
        self.scores: dict[str, float] = {token: score for token, kind, score in of_kind if kind in merged}

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a setting of the tokenizer."""
        return self.file.get(f"tokenizer.ggml.{key}", default)

    def special(self, name: str, default: int | None = None) -> str | None:
        """Return the text of a special token, such as bos; None if there is none."""
        number = self.get(f"{name}_token_id", default)
        return self.tokens[number] if number is not None and 0 <= number < len(self.tokens) else None


def load_gguf_tokenizer(name: str) -> PreTrainedTokenizerFast:
    """Return the tokenizer in a GGUF file; ModelError naming a kind or setting that is not supported."""
    file = open_gguf(name)
    vocabulary = _Vocabulary(file)
    kind, splitting = vocabulary.get("model"), vocabulary.get("pre")
    is_sentencepiece = kind == "llama"
    if is_sentencepiece:
        backend, defaults = _sentencepiece(vocabulary), {"bos": 1, "eos": 2, "unknown": 0}
    elif kind != "gpt2":
        raise ModelError(f"{name} has a tokenizer of the kind {kind}, which is not supported: only gpt2 and llama are.")
    elif splitting not in _SPLITTING:
        raise ModelError(
            f"{name} splits text in the way {splitting} (tokenizer.ggml.pre), which is not supported: only "
            f"{', '.join(_SPLITTING)} are."
        )
    else:
        backend, defaults = _byte_level(vocabulary, splitting), {}
    # Phi-3's take the white space after them: files do not say so, and llama.cpp goes by the name of the model
    strips = is_sentencepiece and file.architecture == "phi3"
    backend.add_tokens(
        [
            AddedToken(token, special=special, normalized=False, rstrip=strips and token not in _NOT_STRIPPED)
            for token, special in vocabulary.added.items()
        ]
    )
    special = {key: vocabulary.special(key, defaults.get(key)) for key in ("bos", "eos", "padding", "unknown")}
    begins = vocabulary.get("add_bos_token", is_sentencepiece or splitting in _WHOLE_WORDS)
    ends = vocabulary.get("add_eos_token")
    if (begins and not special["bos"]) or (ends and not special["eos"]):
        raise ModelError(f"{name} is damaged: its tokenizer adds a BOS or EOS, and has none.")
    around = (special["bos"] if begins else None, special["eos"] if ends else None)
    template = " ".join(part for part in (around[0], "$A", around[1]) if part)
    backend.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=[(token, vocabulary.ids[token]) for token in dict.fromkeys(around) if token]
    )
    templates = _chat_template(file)
    if key := file.unused("tokenizer.", _NO_EFFECT):
        raise ModelError(f"{name} has the setting {key}, which is not supported.")
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=special["bos"],
        eos_token=special["eos"],
        pad_token=special["padding"],
        unk_token=special["unknown"] if is_sentencepiece else None,
        clean_up_tokenization_spaces=False,
        chat_template=templates,
    )


def _byte_level(vocabulary: _Vocabulary, splitting: str) -> Tokenizer:
    """Return byte-level BPE, as GPT-2's. Qwen's normalises text, which llama.cpp leaves out."""
    merges = [tuple(merge.split(" ")) for merge in vocabulary.get("merges") or ()]
    if vocabulary.get("add_space_prefix"):
        raise ModelError(f"{vocabulary.file.name}: a space before the text is not supported with byte-level BPE.")
    backend = Tokenizer(models.BPE(vocabulary.ids, merges, ignore_merges=splitting in _WHOLE_WORDS))
    pattern = _SPLITTING[splitting]
    steps: list[Any] = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern in (_GPT_2, _DIGITS))]
    if pattern == _DIGITS:
        steps.insert(0, pre_tokenizers.Digits(individual_digits=True))
    elif pattern != _GPT_2:
        steps.insert(0, pre_tokenizers.Split(Regex(pattern), "isolated"))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    backend.decoder = decoders.ByteLevel()
    if pattern == _QWEN_2:
        backend.normalizer = normalizers.NFC()
    return backend


def _sentencepiece(vocabulary: _Vocabulary) -> Tokenizer:
    """Return SentencePiece's BPE with bytes for what is not in the vocabulary, as LLaMA's and Gemma's."""
    if missing := [token for token in (f"<0x{byte:02X}>" for byte in range(256)) if token not in vocabulary.ids]:
        raise ModelError(f"{vocabulary.file.name}: a vocabulary without bytes is not supported; it lacks {missing[0]}.")
    unknown = vocabulary.special("unknown", 0)
    # the ways to make a token of two others, best scores first
    merges = generate_merges(vocabulary.scores, vocabulary.scores)
    backend = Tokenizer(models.BPE(vocabulary.ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    spaces = normalizers.Replace(" ", _SPACE)
    decoding = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if vocabulary.get("add_space_prefix", True):
        backend.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces])
        decoding.append(decoders.Strip(" ", 1, 0))
    else:
        backend.normalizer = spaces
    backend.decoder = decoders.Sequence(decoding)
    return backend


def _chat_template(file: GgufFile) -> str | dict[str, str] | None:
    """Return the chat template, or several by name."""
    prefix = f"{_TEMPLATE}."
    named = {key.removeprefix(prefix): file.get(key) for key in file.metadata if key.startswith(prefix)}
    default: str | None = file.get(_TEMPLATE)
    return {**({"default": default} if default else {}), **named} if named else default
