"""Small model folders with a tokenizer of bytes, laid out as published ones are."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import tokenizers
from tokenizers import AddedToken, decoders, pre_tokenizers, processors
from tokenizers.models import BPE

from gigpo_jax.models import decoder
from gigpo_jax.models.decoder_config import DecoderConfig
from gigpo_jax.models.files.save_weights import save_hf

END_OF_TEXT = "<|endoftext|>"
TURN = "<|im_start|>"
END_OF_TURN = "<|im_end|>"
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
GENERATION_PROMPT = f"{TURN}assistant\\n"
CHATML = (
    "{% for m in messages %}"
    f"{{{{ '{TURN}' + m['role'] + '\\n' + m['content'] + '{END_OF_TURN}' + '\\n' }}}}"
    f"{{% endfor %}}{{% if add_generation_prompt %}}{{{{ '{GENERATION_PROMPT}' }}}}{{% endif %}}"
)


def opens_response(text: str) -> str:
    """The template of `CHATML` with a text that begins every response in the prompt."""
    return CHATML.replace(GENERATION_PROMPT, GENERATION_PROMPT + text.replace("\n", "\\n"))


def write_tokenizer(
    folder: Path,
    *,
    template: str | None = CHATML,
    eos: str = END_OF_TURN,
    bos: str = "",
    special: Sequence[str] = (END_OF_TEXT, TURN, END_OF_TURN),
    tags: Sequence[str] = TAGS,
    generation: Mapping[str, Any] | None = None,
) -> Path:
    """Writes the files of a tokenizer; with `bos` it begins plain texts."""
    folder.mkdir(parents=True, exist_ok=True)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(BPE({letter: i for i, letter in enumerate(letters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    names = [*special, *([bos] if bos else [])]
    backend.add_special_tokens([AddedToken(name, normalized=False) for name in names])
    backend.add_tokens([AddedToken(tag, normalized=False) for tag in tags])
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": eos,
        "pad_token": special[0],
        "clean_up_tokenization_spaces": False,
    }
    if template is not None:
        config["chat_template"] = template
    if bos:
        config["bos_token"] = bos
        backend.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, backend.token_to_id(bos))]
        )
    (folder / "tokenizer.json").write_text(backend.to_str())
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(dict(generation)))
    return folder


def write_model(
    folder: Path,
    *,
    more_rows: int = 0,
    seed: int = 0,
    shape: Mapping[str, Any] = {},
    **tokenizer: Any,
) -> DecoderConfig:
    """Writes a random model whose embedding has `more_rows` rows beyond its tokenizer's ids."""
    write_tokenizer(folder, **tokenizer)
    ids = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size()
    fields = {"vocab_size": ids + more_rows, "hidden_size": 32, "intermediate_size": 64}
    fields |= {"num_layers": 2, "num_heads": 2, "num_kv_heads": 1, "head_dim": 16}
    config = DecoderConfig(**(fields | dict(shape)))
    (folder / "config.json").write_text("{}")  # a folder of a model is replaced
    save_hf(folder, config, decoder.init_params(config, jax.random.key(seed)), dtype="float32")
    (folder / "generation_config.json").unlink()
    write_tokenizer(folder, **tokenizer)
    return config
