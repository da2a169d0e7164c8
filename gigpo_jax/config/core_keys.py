"""The keys that every run has."""

from typing import get_args

from gigpo_jax.config.key_types import Key
from gigpo_jax.core.settings import (
    FRACTION,
    NOT_NEGATIVE,
    POSITIVE,
    Rule,
    at_least,
    one_of,
    tuple_of,
)
from gigpo_jax.rl.algorithms import ALGORITHMS, PRESETS
from gigpo_jax.rl.optimizer import SCHEDULES
from gigpo_jax.rl.ratios import Correction, Ratio

# jax keeps 32 bits of a seed, so larger ones would repeat; numpy takes no negative ones.
SEED = Rule(f"from 0 to {2**31 - 1}", lambda value: 0 <= value < 2**31)
COUNT = Rule("-1 or at least 1", lambda value: value == -1 or value > 0)
RATIOS = get_args(Ratio)
CORRECTIONS = get_args(Correction)
DTYPE = one_of("float32", "bfloat16")

CORE: dict[str, Key] = {
    "seed": Key(0, "seed of the task order, the sampling keys and the initial weights", SEED),
    # For pods and clusters: a process cannot know that others start with it.
    "distributed": Key(False, "whether several hosts run this program together (jax.distributed)"),
    "log.to": Key(
        ("tensorboard",),
        "loggers beside metrics.jsonl: tensorboard, wandb, module:NAME (docs/loggers.md)",
        # `bool` accepts every text but the empty one.
        tuple_of(Rule("a name", bool), str),
        may_change=True,
    ),
    "compilation.cpu_threads": Key(
        0,
        "number of XLA's threads on CPUs, which decides the last bits of sums; 0: one a core",
        NOT_NEGATIVE,
        may_change=True,
    ),
    # environment
    "env.name": Key(
        "alfworld",
        "environment of gigpo_jax.envs.registry, gymnasium:ID, mcp:COMMAND_OR_URL, "
        "openenv:URL_OR_IMAGE, verifiers:MODULE, or module:NAME",
        mixes=True,
    ),
    "env.split": Key("train", "split of the training tasks", mixes=True),
    "env.max_steps": Key(50, "largest number of actions in an episode", POSITIVE, mixes=True),
    "env.history": Key(
        2, "number of past (observation, action) pairs in a prompt", NOT_NEGATIVE, mixes=True
    ),
    "env.prompt": Key(
        "full",
        "style of prompts: full (instructions), tagged (tags in thoughts), compact (tiny models); "
        "chat or chat_STYLE: one conversation an episode; or module:NAME",
        mixes=True,
    ),
    "env.show_admissible": Key(True, "whether prompts list the admissible actions", mixes=True),
    "env.invalid_penalty": Key(
        0.1,
        "penalty that a step with an invalid response loses from its reward",
        NOT_NEGATIVE,
        mixes=True,
    ),
    "env.anchor": Key(
        "",
        'anchor state of steps; "": the first one that gigpo keys anchor names, as published',
        mixes=True,
    ),
    "env.workers": Key(2, "number of environment processes", POSITIVE, may_change=True),
    # model
    "model.path": Key(
        "",
        'Hugging Face folder, or ORG/NAME of the Hub; "": random weights of model.shape (only '
        "gigpo sft)",
    ),
    # For an adapter of a model that does not fit in float32.
    "model.param_dtype": Key(
        "float32", "type of stored parameters; training all of them requires float32", DTYPE
    ),
    "model.compute_dtype": Key("bfloat16", "type of activations", DTYPE),
    "model.unroll": Key(
        1,
        "number of layers in one step of the scan over layers; more: longer compilation",
        POSITIVE,
    ),
    "model.remat": Key(
        "full",
        "activations that are recomputed; offload: all, with layer inputs in host memory "
        "(docs/scaling.md)",
        one_of("none", "dots", "attention", "full", "offload"),
    ),
    # generation
    "engine.name": Key(
        "jax",
        "engine of rollouts; jax: in this process; jax_server: the same on other machines "
        "(docs/engine_server.md); vllm: servers beside it (docs/scaling.md)",
        one_of("jax", "jax_server", "vllm"),
    ),
    "engine.slots": Key(
        128,
        "number of sequences that a host decodes together, spread over its devices; auto: 128, or "
        "less where an iteration has fewer episodes",
        POSITIVE,
        auto=True,
    ),
    "engine.dtype": Key(
        "bfloat16", "type of activations and KV cache; servers: of weights too", DTYPE
    ),
    "engine.prefill_buckets": Key(
        (), "prompt lengths to compile for; (): powers of two", tuple_of(POSITIVE, int)
    ),
    "engine.prefill_rows": Key(
        (16,),
        "number of prompts (or chunks) in one prefill on a device; several sizes: repeatable "
        "only to rounding",
        tuple_of(POSITIVE, int),
    ),
    "engine.prefill_chunk": Key(
        0,
        "number of tokens in the chunks of prompts, shared ones read once; 0: whole prompts "
        "in buckets; auto: 32, or 0 with engine.prefill_buckets",
        NOT_NEGATIVE,
        auto=True,
    ),
    "engine.decode_steps": Key(16, "number of decode steps per device call", POSITIVE),
    "sampling.temperature": Key(1.0, "temperature of training rollouts", POSITIVE),
    "sampling.max_prompt_tokens": Key(
        2048,
        "largest number of tokens in a prompt; longer ones lose history, then text of the "
        "observation",
        at_least(4),
        mixes=True,
    ),
    "sampling.max_response_tokens": Key(
        512,
        "largest number of tokens in a response; longer ones are truncated",
        POSITIVE,
        mixes=True,
    ),
    "sampling.stop": Key(
        ("</action>",),
        "texts that end a response; the first of them in a response counts",
        tuple_of(Rule("a text that is not empty", bool), str),
    ),
    # objective
    "rl.algorithm": Key(
        "gigpo",
        "algorithm that computes advantages (docs/choosing.md)",
        Rule(
            f"one of {', '.join(ALGORITHMS)}, or module:NAME",
            lambda value: value in ALGORITHMS or ":" in value,
        ),
    ),
    "rl.preset": Key(
        "verl_agent",
        "variant of the advantages: the paper's or that of published code (docs/algorithm.md)",
        one_of(*PRESETS),
    ),
    "rl.gamma": Key(
        0.95,
        "discount factor of step returns, also in saved rollouts and the credit oracle",
        FRACTION,
        auto=True,
    ),
    "rl.step_weight": Key(
        1.0, "weight omega of the step advantage (equation 8)", NOT_NEGATIVE, auto=True
    ),
    "rl.normalize": Key(
        "mean_std",
        "normalization of advantages; mean_std divides by the standard deviation",
        one_of("mean_std", "mean"),
        auto=True,
    ),
    # For asymmetric clips, as in DAPO and GSPO.
    "rl.clip_low": Key(
        0.2,
        "lower clip of the ratio: it is clipped to [1 - clip_low, 1 + clip_high]",
        NOT_NEGATIVE,
        auto=True,
    ),
    "rl.clip_high": Key(0.2, "upper clip of the ratio", NOT_NEGATIVE, auto=True),
    "rl.ratio": Key(
        "token", "probability ratio that is clipped (docs/loss.md)", one_of(*RATIOS), auto=True
    ),
    "rl.kl_coef": Key(
        0.01, "coefficient of the KL term; 0: no reference policy is kept", NOT_NEGATIVE, auto=True
    ),
    "rl.entropy_coef": Key(0.0, "coefficient of the entropy bonus", NOT_NEGATIVE),
    "rl.old_logprobs": Key(
        "auto",
        "source of the ratio's old log-probabilities: the engine, or recomputed by the learner",
        one_of("auto", "engine", "recompute"),
    ),
    "rl.importance_correction": Key(
        "auto",
        "weights of tokens or responses by learner / engine, or masks of responses (docs/loss.md)",
        one_of("auto", *CORRECTIONS),
    ),
    # optimizer, in float32
    "optim.lr": Key(
        1e-6,
        "peak learning rate; bfloat16 parameters cannot take steps this small, hence "
        "model.param_dtype=float32",
        POSITIVE,
    ),
    "optim.schedule": Key(
        "constant",
        "schedule of the learning rate after the warm-up; linear and cosine end at 0",
        one_of(*SCHEDULES),
    ),
    "batch.row_length": Key(
        4096,
        "number of tokens in a packed row, at most 32 texts (long rows more); must hold a prompt "
        "and its response, or a conversation",
        POSITIVE,
    ),
    "batch.rows": Key(4, "number of rows in a microbatch, over all devices", POSITIVE),
    "batch.fit_rows": Key(
        True,
        "whether rows are shorter and fewer where the samples of an iteration need less; "
        "batch.row_length and batch.rows are then limits (docs/performance.md)",
    ),
    "batch.logprob_chunk": Key(1024, "number of tokens whose logits exist at a time", POSITIVE),
    # training
    "train.iterations": Key(
        150, "number of iterations: a rollout, followed by updates", POSITIVE, may_grow=True
    ),
    "train.groups": Key(16, "number of tasks in an iteration", POSITIVE),
    "train.group_size": Key(8, "number of episodes of a task", POSITIVE),
    "train.minibatch": Key(
        256,
        "number of environment steps in an optimizer update; steps of a conversation stay together",
        POSITIVE,
    ),
    "train.epochs": Key(1, "number of passes over an iteration's steps", POSITIVE),
    "train.save_rollouts": Key(
        10, "number of iterations between saved rollouts; 0: none", NOT_NEGATIVE, may_change=True
    ),
    "eval.every": Key(
        5,
        "number of iterations between evaluations; 0: before and after training only",
        NOT_NEGATIVE,
    ),
    "eval.panel": Key(
        "", "frozen evaluation set: its name or JSON file (docs/alfworld.md)", mixes=True
    ),
    "eval.tasks": Key(0, "number of the panel's first tasks to evaluate; 0: all", NOT_NEGATIVE),
    "eval.temperature": Key(0.4, "temperature of evaluation; 0: greedy", NOT_NEGATIVE),
    "eval.greedy": Key(False, "whether greedy evaluations are added before and after training"),
    "checkpoint.every": Key(
        10, "number of iterations between checkpoints", POSITIVE, may_change=True
    ),
    # For runs of which an earlier state is evaluated afterwards.
    "checkpoint.keep": Key(2, "number of checkpoints kept", POSITIVE, may_change=True),
}
