"""Settings of models that have layers with states in place of attention."""

from ml_collections import ConfigDict

from gigpo_jax.core.errors import InputError


def check_states(config: ConfigDict, *, shares_prefixes: bool) -> None:
    """Raises InputError for settings that such a model does not take."""
    # A state has read all earlier tokens: it cannot begin in the middle of a text.
    reason = "the model has layers with states, which are read from the first token on"
    if shares_prefixes:
        key = "config.batch.share_prefixes"
        raise InputError(reason, key=key, value="True", fix="leave it out")
    chunk = config.engine.prefill_chunk
    if chunk:
        raise InputError(reason, key="config.engine.prefill_chunk", value=chunk, fix="use 0")
