"""sentence-transformers: a tiny random encoder and a static embedding."""

from __future__ import annotations

from pathlib import Path

import sentence_transformers.base.modules.module as client
import torch
from conftest import Spy
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Pooling,
    StaticEmbedding,
    Transformer,
)
from tiny import assert_files_hold, assert_same_outputs, assert_same_tensors, randomize
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import BertConfig, BertModel, BertTokenizerFast

WORDS = ["the", "cat", "sat", "on", "a", "mat", "dog", "ran"]
SENTENCES = ["the cat sat on a mat", "a dog ran", "the mat sat", "cat"]


def random_encoder(folder: Path) -> SentenceTransformer:
    """Build BERT, pooling and a dense layer, all random."""
    folder.mkdir()
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    bert = BertModel(
        BertConfig(
            vocab_size=len(vocabulary),
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=32,
        )
    )
    randomize(bert)
    bert.save_pretrained(folder)
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    transformer = Transformer(str(folder), max_seq_length=16)
    dense = Dense(in_features=32, out_features=8)
    randomize(dense)
    return SentenceTransformer(modules=[transformer, Pooling(32), dense], device="cpu")


def test_encoder(tmp_path: Path, spy: Spy) -> None:
    """Modules with weights of their own are saved by save_model and loaded by load_model."""
    model = random_encoder(tmp_path / "parts")
    saved = spy(client, "save_safetensors_model")
    loaded = spy(client, "load_safetensors_model")
    expected = model.encode(SENTENCES, convert_to_tensor=True)
    model.save(str(tmp_path / "model"))
    assert saved.count == 1
    dense = tmp_path / "model" / "2_Dense" / "model.safetensors"
    assert_files_hold([dense], model[2].state_dict())

    again = SentenceTransformer(str(tmp_path / "model"), device="cpu", local_files_only=True)
    assert loaded.count == 1
    assert_same_tensors(again.state_dict(), model.state_dict())
    assert_same_outputs(again.encode(SENTENCES, convert_to_tensor=True), expected)


def test_encoder_in_half_precision(tmp_path: Path) -> None:
    """The encoder's weights load as bfloat16."""
    model = random_encoder(tmp_path / "parts")
    model.save(str(tmp_path / "model"))
    half = SentenceTransformer(
        str(tmp_path / "model"),
        device="cpu",
        local_files_only=True,
        model_kwargs={"dtype": torch.bfloat16},
    )
    expected = {name: value.bfloat16() for name, value in model[0].state_dict().items()}
    assert_same_tensors(half[0].state_dict(), expected)


def test_static_embedding(tmp_path: Path) -> None:
    """A table of word vectors is saved by save_file and loaded by load_file."""
    tokenizer = Tokenizer(
        WordLevel({word: number for number, word in enumerate(["[UNK]", *WORDS])}, "[UNK]")
    )
    tokenizer.pre_tokenizer = Whitespace()
    table = torch.randn(1 + len(WORDS), 12)
    model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, table)], device="cpu")
    expected = model.encode(SENTENCES, convert_to_tensor=True)
    model.save(str(tmp_path / "static"))
    (file,) = (tmp_path / "static").rglob("model.safetensors")
    assert_files_hold([file], {"embedding.weight": table})
    again = SentenceTransformer(str(tmp_path / "static"), device="cpu", local_files_only=True)
    assert_same_outputs(again.encode(SENTENCES, convert_to_tensor=True), expected)
