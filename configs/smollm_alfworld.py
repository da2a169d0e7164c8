"""GiGPO with SmolLM2-135M-Instruct on generated ALFWorld games, on one GPU.

    gigpo sft --config=configs/smollm_alfworld_sft.py --workdir=runs/alf_sft \
        --out=models/smollm2_alfworld
    gigpo train --config=configs/smollm_alfworld.py --workdir=runs/alf

The published group sizes (16 tasks x 8 episodes), prompts with history and admissible actions, the
model's chat template; small rooms and 30 actions an episode. `benchmarks/real_model.py` runs both
within a time limit. On a CPU an iteration takes hours.
"""

from ml_collections import ConfigDict

from configs.smollm import smollm_config


def alfworld_config() -> ConfigDict:
    """The base of this experiment and its warm start, unlocked."""
    config = smollm_config()
    config.env.name = "alfworld"
    config.env.prompt = "full"
    config.env.max_steps = 30
    config.env.workers = 8
    config.env.generate = ConfigDict(
        {
            "splits": {"train": 4000, "valid_unseen": 128},
            "size": "small",
            "seed": 0,
            "receptacles": 8,
            "objects": 4,
        }
    )
    config.model.compute_dtype = "bfloat16"
    config.engine.dtype = "bfloat16"
    config.engine.slots = 128
    config.sampling.max_prompt_tokens = 1024
    config.sampling.max_response_tokens = 48
    config.batch.rows = 8
    config.batch.row_length = 4096
    return config


def get_config() -> ConfigDict:
    """The config."""
    config = alfworld_config()
    config.model.path = "models/smollm2_alfworld"
    config.optim.lr = 2e-4
    config.train.iterations = 150
    config.train.groups = 16
    config.train.group_size = 8
    config.train.save_rollouts = 10
    config.eval.panel = "long_unseen"
    config.eval.every = 5
    config.eval.greedy = False
    config.checkpoint.every = 5
    return config.lock()
