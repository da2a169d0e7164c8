"""The warm start of webshop_tiny.py: imitation of a mediocre demonstrator, from random weights, in three stages.

for n in 1 2 3; do python -m gigpo_jax.main --mode=sft --config=configs/webshop_tiny_sft.py:$n \
    --workdir=runs/shop$n --out=runs/shop$n/model; done

The last model is models/webshop_tiny. The first stage learns to read: it predicts prompts as well as responses, of a
demonstrator that clicks at random at times. The second learns to act, from responses alone. The third learns to copy
exactly, from one that makes a single mistake: it forgets every second option. What is left to learn is to choose them.

Hardware: 2 cores; 615, 389 and 388 updates in 46, 8 and 13 minutes on a machine that several other programs kept busy.
Result: 1.0 M parameters, held-out cross-entropy 0.077 nats a token; the header of webshop_tiny.py says what it scores.
The committed model's first stage imitated the expert as it was before its searches named options twice.
"""

from ml_collections import ConfigDict

from configs.webshop_tiny import webshop_tiny_config

STAGES = {  # random, vague and forget fraction; steps the demonstrator thinks it has; episodes, minibatch, rate
    "1": ((0.1, 0.2, 0.3), 8, (14000, 128, 2e-3)),
    "2": ((0.1, 0.3, 0.6), 8, (5000, 64, 1.2e-3)),
    "3": ((0.0, 0.0, 0.5), 6, (6000, 64, 1.2e-3)),
}


def get_config(stage: str = "1") -> ConfigDict:
    """The config of a stage, 1, 2 or 3."""
    if stage not in STAGES:
        raise ValueError(f"configs/webshop_tiny_sft.py:{stage}: no such stage; choose 1, 2 or 3")
    config = webshop_tiny_config()
    config.seed = int(stage) - 1
    config.optim.b2 = 0.98
    config.optim.schedule = "cosine"
    config.optim.warmup_fraction = 0.02
    (random, vague, forget), steps, (config.sft.episodes, config.sft.minibatch, config.optim.lr) = STAGES[stage]
    if stage == "1":
        config.sft.learn_prompts = True
    else:
        config.model.path = f"runs/shop{int(stage) - 1}/model"
    config.sft.demonstrator = ConfigDict(
        {
            "random_fraction": random,
            "vague_fraction": vague,
            "forget_fraction": forget,
            "max_steps": steps,
            "brief": True,
        }
    )
    return config.lock()
