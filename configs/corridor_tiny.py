"""GiGPO in a corridor with a sign, on a laptop: 12 iterations of 16 tasks x 8 episodes.

    gigpo train --config=configs/corridor_tiny.py --workdir=runs/corridor

Run it in a clone: the environment is examples/corridor/env.py. The door that the sign names must be
opened 6 steps later, one of four. A conversation of 72 tokens is full after three steps. Variants:

    summary   the policy writes a summary of at most 4 tokens (env.context=summary)
    drop      the oldest steps of the conversation are dropped
    window    every step has a prompt of its own, with the last two steps
    subgoal   the same, and responses state a subgoal that the next prompt shows (env.plan)
    strategy  the same, and the policy writes a strategy before it acts, four for two episodes each
    belief    as window, and responses state what they know as JSON, which the next prompt shows

The warm start is corridor_tiny_sft.py; window, subgoal, strategy and belief have one each.

Hardware: one of 2 cores that other programs kept busy, 2 minutes. Result with seeds 0, 1 and 2: the
panel of 128 other corridors 29, 26 and 27% before and 98, 98 and 98% after with summary,
22, 22 and 23% after with drop, 24, 24 and 19% after with window (docs/conversations.md).
"""

from ml_collections import ConfigDict

from configs.tiny import tiny_config, train_config

VARIANTS = {
    "summary": {"prompt": "chat_compact", "context": "summary"},
    "drop": {"prompt": "chat_compact"},
    "window": {"prompt": "compact"},
    "subgoal": {"prompt": "compact", "plan": "subgoal"},
    "strategy": {"prompt": "compact", "plan": "strategy"},
    "belief": {"prompt": "compact", "plan": "belief"},
}


def corridor_config(variant: str) -> ConfigDict:
    """The base of this experiment and its warm start, unlocked."""
    if variant not in VARIANTS:
        choices = ", ".join(VARIANTS)
        raise ValueError(f"no such variant; choose {choices}")
    config = tiny_config()
    config.compilation.cpu_threads = 1
    config.env.name = "examples.corridor.env:CORRIDOR"
    config.env.generate = ConfigDict()
    config.env.max_steps = 8
    config.env.history = 2
    config.env.update(VARIANTS[variant])
    config.sampling.max_prompt_tokens = 72
    config.sampling.max_response_tokens = 8
    if variant == "summary":
        config.sampling.max_summary_tokens = 4
    if variant in ("subgoal", "belief"):
        config.sampling.max_response_tokens = 24
    if variant == "strategy":
        config.sampling.max_summary_tokens = 6
    config.model.shape.update(
        hidden_size=64, intermediate_size=192, num_layers=2, num_heads=2, num_kv_heads=1
    )
    config.model.shape.initializer_range = 0.1  # imitation finds positions sooner than from 0.02
    config.model.unroll = 2
    config.engine.slots = 128
    config.engine.decode_steps = 8
    config.engine.prefill_buckets = (40, 72)
    return config


def get_config(variant: str = "summary") -> ConfigDict:
    """The config of a variant: summary, drop, window, subgoal, strategy or belief."""
    config = train_config(corridor_config(variant))
    config.model.path = "runs/corridor_sft2/model"
    config.train.iterations = 12
    config.optim.lr = 6e-4
    config.eval.panel = "test"
    config.eval.temperature = 1.0  # as in training, whose summaries are learnt from
    config.eval.every = 6
    config.eval.greedy = False
    config.checkpoint.every = 6
    return config.lock()
