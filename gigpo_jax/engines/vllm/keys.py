"""Config keys of vLLM servers that a run starts."""

from ml_collections import ConfigDict

from gigpo_jax.config.key_types import KeySet
from gigpo_jax.config.keys import declare, named_keys
from gigpo_jax.config.requirements import require
from gigpo_jax.core.settings import POSITIVE

MAX_RANK = 512  # largest rank of an adapter that vLLM serves

KEYS = named_keys(
    declare("engine.vllm.servers", "number of servers to start", POSITIVE, may_change=True),
    declare("engine.vllm.python", "interpreter of vLLM's virtual environment", may_change=True),
    # For everything that vLLM has an option for.
    declare("engine.vllm.args", "more arguments for the servers to start", may_change=True),
)


def check(config: ConfigDict, trains: bool) -> None:
    """Checks that vLLM can serve the adapter."""
    del trains
    if config.engine.name == "vllm":
        is_served = config.model.lora.rank <= MAX_RANK
        require(is_served, config, "model.lora.rank", f"vLLM takes {MAX_RANK} at most")


KEY_SET = KeySet(KEYS, check=check)
