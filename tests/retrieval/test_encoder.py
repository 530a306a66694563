"""Encoders against the models they are made of: pooling, lengths, titles, DPR's pair; folders that are none."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Router, Transformer
from tokenizers import Tokenizer
from transformers import AutoTokenizer, BertModel, DPRContextEncoder, DPRQuestionEncoder

from ralm.errors import FolderError, ModelError, UsageError
from ralm.records import FloatArray, Passage
from ralm.retrieval.build import build_index
from ralm.retrieval.dense.encoder import SentenceEncoder
from ralm.retrieval.dense.options import EncoderOptions, load_encoder
from ralm.retrieval.index import open_index
from tests.fakes import passages_of
from tests.tiny_encoders import POSITIONS, WIDTH, drop_weights, save_tiny_bert, save_tiny_dpr, save_tiny_static

TEXTS = ["a red fox", "the sea", "green hills, and sheep on the hills", "x"]
LONG = "fox and sea " * 30


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("encoders")
    save_tiny_bert(root / "bert")
    save_tiny_dpr(root / "question", question=True, seed=1)
    save_tiny_dpr(root / "context", question=False, seed=2)
    save_tiny_dpr(root / "context16", question=False, seed=2, projection=16)
    return root


def encoder(folders: Path, name: str = "bert", **options: Any) -> SentenceEncoder:
    return SentenceEncoder(EncoderOptions(encoder=str(folders / name), **options))


def hidden_states(folder: Path, text: str, **tokenizing: Any) -> FloatArray:
    """The last hidden states (float32, tokens x D) of a text read alone."""
    tokens = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt", **tokenizing)
    with torch.inference_mode():
        states: FloatArray = BertModel.from_pretrained(folder)(**tokens).last_hidden_state[0].numpy()
    return states


def close(ours: FloatArray, theirs: Any) -> None:
    np.testing.assert_allclose(ours, np.asarray(theirs), rtol=1e-4, atol=1e-4)


def test_pooling_is_over_the_tokens_of_the_text_alone(folders: Path) -> None:
    """Each text as if it were read alone, whatever it is padded to."""
    states = [hidden_states(folders / "bert", text) for text in TEXTS]
    means, firsts = [state.mean(axis=0) for state in states], [state[0] for state in states]
    close(encoder(folders).encode_passages(passages_of(*TEXTS)), means)
    close(encoder(folders).encode_queries(TEXTS), means)
    close(encoder(folders, pooling="mean").encode_queries(TEXTS), means)
    close(encoder(folders, pooling="cls").encode_queries(TEXTS), firsts)
    close(encoder(folders, normalize=True).encode_queries(TEXTS), [mean / np.linalg.norm(mean) for mean in means])


def test_a_passage_keeps_its_beginning_and_a_query_its_end(folders: Path) -> None:
    """A token a letter, and two special ones."""
    limited, unlimited = encoder(folders, query_length=8, passage_length=11), encoder(folders)
    close(limited.encode_passages(passages_of(LONG))[0], unlimited.encode_queries(["fox and sea"])[0])
    close(limited.encode_queries([LONG, "fox"]), unlimited.encode_queries(["and sea", "fox"]))
    first = encoder(folders, query_length=8, query_keeps="first")
    close(first.encode_queries([LONG, "fox"]), unlimited.encode_queries(["fox and", "fox"]))
    assert (first.config["query_keeps"], limited.config["query_keeps"]) == ("first", "last")


def test_without_lengths_as_much_as_the_encoder_takes(folders: Path) -> None:
    whole = hidden_states(folders / "bert", LONG, truncation=True, max_length=POSITIONS)
    assert len(whole) == POSITIONS
    close(encoder(folders).encode_passages(passages_of(LONG))[0], whole.mean(axis=0))
    odd = encoder(folders).encode_queries(["\ud800 fox", "\0", "fox " * 10_000])
    assert np.isfinite(odd).all()
    close(odd[0], encoder(folders).encode_queries(["\ufffd fox"])[0])


def test_titles_in_and_out(folders: Path) -> None:
    passages = [Passage(number=0, document_id="d", title="Fox", text="red"), *passages_of("sea")]
    close(encoder(folders).encode_passages(passages), encoder(folders).encode_queries(["fox red", "sea"]))
    close(encoder(folders, titles=False).encode_passages(passages), encoder(folders).encode_queries(["red", "sea"]))


@pytest.mark.parametrize("context", ["context", "context16"])
def test_dpr_gives_the_vectors_of_its_own_classes(folders: Path, context: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folders / context)
    model = DPRContextEncoder.from_pretrained(folders / context)
    ours = encoder(folders, context)
    for passage in [Passage(number=0, document_id="d", title="Fox", text="red and quick"), *passages_of("sea")]:
        pair = (passage.title, passage.text) if passage.title else (passage.text,)
        tokens = tokenizer(*pair, return_tensors="pt")
        with torch.inference_mode():
            theirs = model(tokens["input_ids"], tokens["attention_mask"]).pooler_output
        close(ours.encode_passages([passage]), theirs)


def test_dprs_pair(folders: Path, tmp_path: Path) -> None:
    pair = encoder(folders, "context", query_encoder=str(folders / "question"))
    model = DPRQuestionEncoder.from_pretrained(folders / "question")
    tokens = AutoTokenizer.from_pretrained(folders / "question")("who is the fox?", return_tensors="pt")
    with torch.inference_mode():
        close(pair.encode_queries(["who is the fox?"]), model(**tokens).pooler_output)
    assert pair.config["query_fingerprint"] != pair.config["passage_fingerprint"]
    with pytest.raises(ModelError, match="vectors of 16 dimensions, that of queries .* of 32"):
        _ = encoder(folders, "context16", query_encoder=str(folders / "question")).config
    passages = passages_of(*TEXTS)
    build_index(passages, tmp_path / "index", bm25=False, encoder=pair)
    hits = open_index(tmp_path / "index").dense().retrieve(["red"], 4)
    scores = (
        encoder(folders, "context").encode_passages(passages) @ encoder(folders, "question").encode_queries(["red"])[0]
    )
    np.testing.assert_array_equal(hits.numbers_QK[0], np.argsort(-scores))


def test_a_model_of_sentence_transformers_with_its_prompts(folders: Path, tmp_path: Path) -> None:
    own = SentenceTransformer(str(folders / "bert"), prompts={"query": "query: ", "document": "passage: "})
    own.save(str(tmp_path / "own"), create_model_card=False)
    ours = SentenceEncoder(EncoderOptions(encoder=str(tmp_path / "own")))
    close(ours.encode_queries(TEXTS), own.encode(TEXTS, prompt="query: "))
    close(ours.encode_passages(passages_of(*TEXTS)), own.encode(TEXTS, prompt="passage: "))


def test_two_encoders_in_one_model(folders: Path, tmp_path: Path) -> None:
    """A model of sentence-transformers that takes queries one way and documents another."""
    save_tiny_bert(tmp_path / "other", seed=1)
    ways = [[Transformer(str(name)), Pooling(WIDTH, "cls")] for name in (folders / "bert", tmp_path / "other")]
    SentenceTransformer(modules=[Router.for_query_document(*ways)]).save(
        str(tmp_path / "both"), create_model_card=False
    )
    for query, passage in ((None, None), (8, 11)):
        lengths: dict[str, Any] = {"query_length": query, "passage_length": passage}
        both, other = encoder(tmp_path, "both", **lengths), encoder(tmp_path, "other", pooling="cls", **lengths)
        one = encoder(folders, pooling="cls", **lengths)
        close(both.encode_queries([*TEXTS, LONG]), one.encode_queries([*TEXTS, LONG]))
        close(both.encode_passages(passages_of(*TEXTS)), other.encode_passages(passages_of(*TEXTS)))


def test_an_encoder_without_layers_reads_texts_of_any_length(tmp_path: Path) -> None:
    static = save_tiny_static(tmp_path / "static")
    texts = [*TEXTS, LONG * 9]
    build_index(passages_of(*texts), tmp_path / "index", encoder=load_encoder(EncoderOptions(encoder=str(static))))
    found = open_index(tmp_path / "index").dense().retrieve(texts, 1)
    np.testing.assert_array_equal(found.numbers_QK[:, 0], np.arange(len(texts)))
    own = SentenceEncoder(EncoderOptions(encoder=str(static)))
    close(own.encode_queries(texts), SentenceTransformer(str(static)).encode(texts))
    with pytest.raises(UsageError, match="`passage_length` has no effect: this encoder reads texts of any length"):
        SentenceEncoder(EncoderOptions(encoder=str(static), passage_length=8)).encode_passages(passages_of(*texts))


def test_the_same_weights_read_otherwise_are_another_encoder(folders: Path, tmp_path: Path) -> None:
    """Pooling, prompts and normalisation stand in files of their own; an index without a record of them still opens."""
    build_index(passages_of(*TEXTS), tmp_path / "index", bm25=False, encoder=encoder(folders))
    index = open_index(tmp_path / "index")
    for pooling, prompt in (("cls", ""), ("mean", "query: ")):
        transformer = Transformer(str(folders / "bert"))
        modules = [transformer, Pooling(WIDTH, pooling)]
        model = SentenceTransformer(modules=modules, prompts={"query": prompt, "document": ""})
        model.save(str(tmp_path / pooling), create_model_card=False)
        other = encoder(tmp_path, pooling)
        assert other.query_fingerprint == encoder(folders).query_fingerprint
        with pytest.raises(FolderError, match="the same weights, but (pooling|prompts) is"):
            index.dense(encoder=other)
        assert index.dense(encoder=other, any_encoder=True).config != index.dense(encoder=encoder(folders)).config
    shortened = index.dense(encoder=encoder(folders, query_length=8))
    assert shortened.config != index.dense(encoder=encoder(folders)).config
    index.vector_sets.sets["main"].query_reading.clear()  # an index of before this was recorded
    assert index.dense(encoder=encoder(tmp_path, "cls")).retrieve(["red"], 1).of(0)


def test_folders_that_are_none(folders: Path, tmp_path: Path) -> None:
    shutil.copytree(folders / "bert", tmp_path / "bare", ignore=shutil.ignore_patterns("tokenizer*", "vocab*"))
    shutil.copytree(folders / "bert", tmp_path / "broken")
    (tmp_path / "broken" / "model.safetensors").write_bytes(b"nothing of the kind")
    shutil.copytree(folders / "context", tmp_path / "reader")
    config = json.loads((tmp_path / "reader" / "config.json").read_text())
    (tmp_path / "reader" / "config.json").write_text(json.dumps({**config, "architectures": ["DPRReader"]}))
    for name, message in (
        ("none", "there is no folder"),
        ("bare", "has no tokenizer"),
        ("broken", "cannot load the encoder of"),
        ("reader", r"its architecture is \['DPRReader'\]"),
    ):
        with pytest.raises(ModelError, match=message):
            _ = SentenceEncoder(EncoderOptions(encoder=str(tmp_path / name))).dimension


def test_weights_that_are_missing(folders: Path, tmp_path: Path) -> None:
    """Transformers would fill them in at random."""
    bert = drop_weights(save_tiny_bert(tmp_path / "bert"), "layer.1.")
    with pytest.raises(ModelError, match=r"bert lacks weights that its config.json asks for: encoder.layer.1.*more\."):
        _ = SentenceEncoder(EncoderOptions(encoder=str(bert))).passage_model
    dpr = drop_weights(save_tiny_dpr(tmp_path / "dpr", question=True, seed=0), "layer.1.")
    with pytest.raises(ModelError, match="dpr lacks weights"):
        _ = SentenceEncoder(EncoderOptions(encoder=str(dpr))).passage_model
    model = encoder(folders).passage_model  # the folder has no pooler
    assert any("pooler" in name for name in model.state_dict())


@pytest.mark.parametrize("side", ["passage", "query"])
def test_lengths_that_an_encoder_cannot_read(folders: Path, side: str) -> None:
    def encode(length: int) -> FloatArray:
        lengths: dict[str, Any] = {f"{side}_length": length}
        made = encoder(folders, **lengths)
        return made.encode_queries([LONG]) if side == "query" else made.encode_passages(passages_of(LONG))

    assert encode(3).shape == encode(POSITIONS).shape == (1, WIDTH)
    for length in (1, 2):
        with pytest.raises(UsageError, match=f"`{side}_length` must be at least 3 for this encoder, not {length}"):
            encode(length)
    with pytest.raises(ModelError, match="cannot read a text .*lower or omit `passage_length`"):
        encode(POSITIONS + 1)


@pytest.mark.parametrize("static", [False, True])
def test_a_tokenizer_with_tokens_beyond_the_weights(tmp_path: Path, static: bool) -> None:
    """Texts without such tokens are read."""
    save_tiny_static(tmp_path) if static else save_tiny_bert(tmp_path)
    file = next(tmp_path.rglob("tokenizer.json"))
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.add_tokens(["zebra"])
    tokenizer.save(str(file))
    made = SentenceEncoder(EncoderOptions(encoder=str(tmp_path)))
    assert made.encode_passages(passages_of(*TEXTS)).shape == (len(TEXTS), WIDTH)
    for read in (made.encode_queries, made.query_tensor):
        with pytest.raises(ModelError, match="cannot read a text .* use the tokenizer that belongs to the weights"):
            read(["a red zebra"])
    with pytest.raises(ModelError, match="cannot read a text"):
        build_index(passages_of("a zebra"), tmp_path / "index", bm25=False, encoder=made)


def test_vectors_with_gradients_are_those_of_encoding(folders: Path, tmp_path: Path) -> None:
    """Whatever cuts a text, scales a vector or stands before a text; with prompts of a model's own."""
    prompted = SentenceTransformer(str(folders / "bert"))
    prompted.prompts = {"query": "find ", "passage": "read ", "other": "never "}
    prompted.save_pretrained(str(tmp_path / "prompted"))
    truncated = SentenceTransformer(str(folders / "bert"), truncate_dim=8)
    truncated.save_pretrained(str(tmp_path / "truncated"))
    tried = [
        encoder(folders),
        encoder(folders, query_length=8, passage_length=11, normalize=True),
        encoder(folders, "context16", query_encoder=str(folders / "context16"), query_keeps="first", query_length=9),
        SentenceEncoder(EncoderOptions(encoder=str(tmp_path / "prompted"))),
        SentenceEncoder(EncoderOptions(encoder=str(tmp_path / "truncated"))),
    ]
    passages = [Passage(n, "d", "a title", text) for n, text in enumerate([*TEXTS, LONG])]
    for one in tried:
        queries_QD = one.query_tensor([*TEXTS, LONG])
        close(queries_QD.detach().numpy(), one.encode_queries([*TEXTS, LONG]))
        passages_PD = one.passage_tensor(passages)
        close(passages_PD.detach().numpy(), one.encode_passages(passages))
        (queries_QD @ passages_PD.T).sum().backward()  # type: ignore[no-untyped-call]
        for model in (one.query_model, one.passage_model):
            lacking = [name for name, weights in model.named_parameters() if weights.grad is None]
            assert all(".pooler." in name for name in lacking)
