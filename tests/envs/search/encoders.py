"""Tiny encoders with random weights, in folders as users have them: ONNX, and transformers."""

from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

WORDS = (
    "alda born book bridge by candles ferry founded guild in is misty on query passage river the "
    "town was who :"
)


def write_tokenizer(folder: Path) -> None:
    """A WordPiece tokenizer with [CLS] and [SEP]; it pads and cuts as a published one might."""
    vocabulary = {
        word: n for n, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS.split()])
    }
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.enable_padding(length=300)
    tokenizer.enable_truncation(4)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))


def write_onnx(
    folder: Path, *, inputs: tuple[str, ...] = ("input_ids", "attention_mask")
) -> np.ndarray:
    """Writes a model whose hidden states are rows of a table; returns the table.

    Padding ids have the first row.
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    table = np.random.default_rng(0).standard_normal((4 + len(WORDS.split()), 8)).astype(np.float32)
    wide = ["n", "t"]
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", inputs[0]], ["last_hidden_state"])],
        "encoder",
        [helper.make_tensor_value_info(name, TensorProto.INT64, wide) for name in inputs],
        [helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, [*wide, 8])],
        [numpy_helper.from_array(table, "table")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    write_tokenizer(folder)
    (folder / "onnx").mkdir(exist_ok=True)
    onnx.save(model, folder / "onnx" / "model.onnx")
    return table


def write_bert(folder: Path) -> None:
    """A BERT of two small layers."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=4 + len(WORDS.split()),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=256,
    )
    BertModel(config).save_pretrained(folder)
    write_tokenizer(folder)
