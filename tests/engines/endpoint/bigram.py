"""A policy of known weights: the next token depends on the last one alone, with the probabilities
of a table.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tokenizers

from gigpo_jax.models import decoder
from gigpo_jax.models.text.tokenizer import Tokenizer

START = "<|im_start|>"
END = "<|im_end|>"
REPLY = "assistant\n"  # the last token of a prompt
NEVER = -40.0
# A template in the manner of Qwen2.5's.
TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>system\\n' }}"
    "{% for t in tools %}{{ t | tojson }}{% endfor %}{{ '<|im_end|>\\n' }}"
    "{% endif %}{% for m in messages %}"
    "{{ '<|im_start|>' + ('user' if m.role == 'tool' else m.role) + '\\n' + m.content }}"
    "{% for call in m.tool_calls %}{{ '\\n' if m.content or not loop.first }}"
    '{{ \'<tool_call>\\n{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{ (call.function.arguments | tojson) + '}\\n</tool_call>' }}"
    "{% endfor %}{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{% endif %}"
)

Table = Mapping[str, Mapping[str, float]]


def tokenizer(table: Table) -> Tokenizer:
    """Has the table's pieces, all ASCII characters and all bytes as tokens; texts come back
    exactly.
    """
    pieces = dict.fromkeys([*table, *(piece for row in table.values() for piece in row)])
    characters = [chr(code) for code in (10, *range(32, 127))]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    scores = (
        dict.fromkeys(bytes_, -20.0)
        | dict.fromkeys(characters, -10.0)
        | dict.fromkeys(pieces, -1.0)
    )
    scores |= dict.fromkeys((START, END), -1.0)
    model = tokenizers.models.Unigram(
        [("<unk>", 0.0), *scores.items()], unk_id=0, byte_fallback=True
    )
    made = tokenizers.Tokenizer(model)
    made.decoder = tokenizers.decoders.Sequence(
        [tokenizers.decoders.ByteFallback(), tokenizers.decoders.Fuse()]
    )
    made.add_special_tokens([START, END])
    return Tokenizer(made, {"eos_token": END}, TEMPLATE)


def policy(table: Table, words: Tokenizer) -> tuple[decoder.DecoderConfig, Any]:
    """Layers that add nothing between one-hot embeddings and a head with the table's
    log-probabilities.
    """
    size = words.vocab_size
    config = decoder.DecoderConfig(
        vocab_size=size,
        hidden_size=size,
        intermediate_size=8,
        num_layers=1,
        num_heads=2,
        num_kv_heads=1,
        head_dim=8,
        rope_theta=1e4,
        tie_word_embeddings=False,
    )
    logits = np.full((size, size), NEVER, np.float32)
    logits[:, words.token_id(END)] = NEVER / 2
    for last, row in table.items():
        for piece, probability in row.items():
            logits[words.token_id(last), words.token_id(piece)] = np.log(probability)
    params = jax.tree.map(
        jnp.zeros_like, decoder.init_params(config, jax.random.key(0), jnp.float32)
    )
    # A one-hot vector is longer by the square root of its size when it is normalised.
    params |= {
        "embed": jnp.eye(size),
        "head": jnp.asarray(logits.T / size**0.5),
        "final_norm": {"scale": jnp.ones(size)},
    }
    return config, params
