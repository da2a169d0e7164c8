"""Config keys of a few variants of the loss and of anchor groups."""

from typing import get_args

from ml_collections import ConfigDict

from gigpo_jax.config.key_types import KeySet
from gigpo_jax.config.keys import declare, named_keys
from gigpo_jax.config.requirements import require, require_default
from gigpo_jax.core.settings import FRACTION, POSITIVE, Rule, one_of
from gigpo_jax.rl.algorithms import find_algorithm
from gigpo_jax.rl.losses import Mean
from gigpo_jax.rl.ratios import MASKS, SENSITIVE

POWER = Rule("from -2 to 2", lambda value: -2 <= value <= 2)
KEYS = named_keys(
    declare(
        "rl.dual_clip",
        "bound of the loss: dual_clip times a negative advantage; 0: off",
        Rule("greater than 1, or 0 (off)", lambda value: value > 1 or value == 0),
        auto=True,
    ),
    declare(
        "rl.loss_mean",
        "mean of the loss: over tokens, responses, responses of constant length, or episodes "
        "(docs/loss.md)",
        one_of(*get_args(Mean)),
        auto=True,
    ),
    # For HölderPO, whose schedule of the exponent differs by task.
    declare(
        "rl.hoelder_first",
        "exponent p of ratio=hoelder and hoelder_tokens in the first iteration; p then "
        "changes linearly",
        POWER,
        auto=True,
    ),
    declare("rl.hoelder_last", "exponent p after the last iteration", POWER, auto=True),
    # For PPO, whose KL penalty is in the rewards.
    declare(
        "rl.kl_in", "place of the KL term: in the loss, or in the rewards", one_of("loss", "reward")
    ),
    # For servers that round otherwise: each correction has a cap of its own in its paper.
    declare(
        "rl.importance_cap",
        "largest weight of a truncated correction; masks keep ratios from 1 / cap to cap",
        POSITIVE,
        auto=True,
    ),
    declare(
        "rl.anchor_match",
        "condition for two anchor states to be the same",
        one_of("exact", "similar"),
        auto=True,
    ),
    declare("rl.similarity", "threshold of anchor_match=similar", FRACTION, auto=True),
)


def check(config: ConfigDict, trains: bool) -> None:
    """Checks that the keys are read, and what a mask, a correction and a ratio need."""
    del trains
    rl = config.rl
    _check_old_logprobs(config)
    _check_weights(config)
    if not rl.kl_coef:
        reason = "not read with rl.kl_coef=0"
        require(rl.kl_in == "loss", config, "rl.kl_in", reason, "leave it out")
    if "hoelder" not in rl.ratio:
        require_default(config, "rl.hoelder_first", f"rl.ratio={rl.ratio}")
        require_default(config, "rl.hoelder_last", f"rl.ratio={rl.ratio}")
    if rl.importance_correction == "none":
        require_default(config, "rl.importance_cap", "rl.importance_correction=none")
    if rl.importance_correction in MASKS:
        reason = f"{rl.importance_correction} keeps ratios from 1 / cap to cap"
        fix = "use a number greater than 1"
        require(rl.importance_cap > 1, config, "rl.importance_cap", reason, fix)
    if rl.anchor_match != "similar":
        require_default(config, "rl.similarity", f"rl.anchor_match={rl.anchor_match}")


def _check_old_logprobs(config: ConfigDict) -> None:
    rl = config.rl
    require(
        rl.importance_correction == "none" or rl.old_logprobs == "recompute",
        config,
        "rl.importance_correction",
        "it compares the engine with the learner's own log-probabilities",
        "use rl.old_logprobs=recompute, or none",
    )
    if rl.ratio in SENSITIVE:
        require(
            rl.old_logprobs == "recompute" or config.engine.dtype == "float32",
            config,
            "rl.old_logprobs",
            f"rounding in a bfloat16 engine moves rl.ratio={rl.ratio} as far as its clip",
            "use recompute",
        )


def _check_weights(config: ConfigDict) -> None:
    rl = config.rl
    algorithm = find_algorithm(rl.algorithm, rl.settings)
    if algorithm.token_weights is not None or algorithm.token_advantages is not None:
        require(
            rl.ratio in ("token", "sequence"),
            config,
            "rl.ratio",
            f"one cost for all tokens of a response, so {rl.algorithm} cannot weigh them",
            "choose token or sequence",
        )


KEY_SET = KeySet(KEYS, check=check)
