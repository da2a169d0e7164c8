"""What the value of a single key may be, whatever the others are; `config.validate` looks at all of them."""

# fmt: off
POSITIVE = (
    "env.max_steps", "model.unroll", "env.workers", "env.start_timeout_s", "env.step_timeout_s", "engine.slots",
    "engine.decode_steps", "model.lora.alpha",
    "engine.vllm.servers", "engine.vllm.cache_gib", "engine.vllm.gpu_memory_fraction", "engine.vllm.start_timeout_s",
    "engine.vllm.connect_timeout_s", "engine.vllm.request_timeout_s", "engine.vllm.push_timeout_s", "rl.importance_cap",
    "sampling.temperature", "sampling.max_prompt_tokens", "sampling.max_response_tokens",
    "rl.dual_clip", "optim.lr", "optim.grad_clip", "batch.row_length", "batch.rows", "batch.logprob_chunk",
    "train.iterations", "train.groups", "train.group_size", "train.minibatch", "train.epochs", "sft.episodes",
    "sft.epochs", "sft.minibatch", "sft.checkpoint_every", "checkpoint.every", "checkpoint.keep",
)
NOT_NEGATIVE = (
    "env.history", "env.invalid_penalty", "rl.step_weight", "rl.clip_low", "rl.clip_high", "rl.kl_coef",
    "rl.entropy_coef", "optim.weight_decay", "train.save_rollouts", "eval.every", "eval.tasks", "eval.temperature",
    "seed", "model.lora.rank", "engine.vllm.port", "engine.vllm.weights_port", "engine.vllm.restarts",
)
FREE = ("env.options.", "env.generate.", "sft.demonstrator.")  # what is in them is the environment's affair
SHARE = (
    "env.max_aborted_fraction", "engine.vllm.gpu_memory_fraction", "sampling.top_p", "rl.gamma", "rl.similarity",
    "optim.warmup_fraction", "optim.b1", "optim.b2",
)
# fmt: on
ONE_OF = {
    "engine.name": ("jax", "vllm"),
    "model.param_dtype": ("float32", "bfloat16"),
    "model.compute_dtype": ("float32", "bfloat16"),
    "model.remat": ("none", "dots", "full"),
    "engine.dtype": ("float32", "bfloat16"),
    "rl.preset": ("paper", "verl_agent"),
    "rl.normalize": ("mean_std", "mean"),
    "rl.old_logprobs": ("auto", "engine", "recompute"),
    "rl.importance_correction": ("auto", "none", "truncated"),
    "rl.anchor_match": ("exact", "similar"),
    "train.max_staleness": (0, 1),
    "optim.schedule": ("constant", "linear", "cosine"),
}
