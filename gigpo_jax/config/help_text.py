"""The text below the flags of --help: the keys that matter in a mode, commands and pages."""

from collections.abc import Iterable, Iterator

from gigpo_jax.config.keys import KEYS
from gigpo_jax.core import packaged
from gigpo_jax.core.command_help import EXAMPLES, describe_commands, describe_pages

_TRAINING = ("train.iterations", "train.groups", "train.group_size", "train.minibatch", "optim.lr")
MAIN_KEYS = {  # the ten that matter in a mode, or fewer
    "train": ("model.path", "env.name", "rl.algorithm", *_TRAINING, "eval.panel", "seed"),
    "eval": (
        "model.path",
        "env.name",
        "eval.panel",
        "eval.tasks",
        "eval.temperature",
        "eval.trials",
        "agent",
        "sampling.max_response_tokens",
        "engine.name",
        "seed",
    ),
    "sft": (
        "model.path",
        "env.name",
        "sft.episodes",
        "sft.epochs",
        "sft.minibatch",
        "optim.lr",
        "model.shape.hidden_size",
        "model.shape.num_layers",
        "sampling.max_prompt_tokens",
        "seed",
    ),
    "serve": (
        "model.path",
        "serve.host",
        "serve.port",
        "engine.request_timeout_s",
        "serve.clamp",
        "sampling.temperature",
        "sampling.max_prompt_tokens",
        "sampling.max_response_tokens",
        "engine.slots",
        "engine.name",
    ),
    "engine": (
        "model.path",
        "serve.host",
        "serve.port",
        "sampling.max_prompt_tokens",
        "sampling.max_response_tokens",
        "engine.slots",
        "engine.dtype",
        "engine.tensor",
        "engine.weights_dir",
        "engine.prefill_chunk",
    ),
    "export": ("model.path", "model.revision", "model.lora.rank", "engine.dtype"),
    "preflight": (
        "model.path",
        "mesh.data",
        "mesh.fsdp",
        "mesh.tensor",
        "batch.rows",
        "batch.row_length",
        "engine.slots",
        "model.remat",
        "sampling.max_prompt_tokens",
        "sampling.max_response_tokens",
    ),
}


def describe_mode(mode: str) -> str:
    """The text of --help below the flags."""
    pages = describe_pages(packaged.ROOT)
    more = "all keys: gigpo keys; some of them: gigpo keys PATTERN, or --help=PATTERN"
    if not mode:
        commands = f"commands:\n{describe_commands()}\n  gigpo COMMAND --help has their flags"
        return f"{commands}\n\n{EXAMPLES}\n\n{more}\n{pages}"
    keys = "\n".join(describe_keys(MAIN_KEYS[mode]))
    return f"keys that matter, with their defaults (--config.KEY=VALUE):\n{keys}\n{more}\n{pages}"


def describe_keys(names: Iterable[str] = KEYS) -> Iterator[str]:
    """A line for each key: name, default, meaning."""
    for name in names:
        key = KEYS[name]
        yield f"  {f'{name}={key.default}':<44} {key.help}"
