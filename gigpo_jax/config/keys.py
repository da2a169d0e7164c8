"""Every key of the config: default, meaning, allowed values, and whether a resumed run may change it."""

from dataclasses import dataclass
from typing import Any, get_args

from gigpo_jax.models.linears import TARGETS
from gigpo_jax.rl.algorithms import ALGORITHMS, PRESETS
from gigpo_jax.rl.losses import Mean
from gigpo_jax.rl.ratios import Correction, Ratio
from gigpo_jax.rl.update import SCHEDULES
from gigpo_jax.settings import FRACTION, NOT_NEGATIVE, PART, POSITIVE, Rule, Setting, at_least, each, one_of

LORA_TARGETS = tuple(TARGETS)


DECAY = Rule("at least 0 and below 1", lambda value: 0 <= value < 1)
SEED = Rule(f"from 0 to {2**31 - 1}", lambda value: 0 <= value < 2**31)
PORT = Rule("from 0 to 65535", lambda value: 0 <= value < 2**16)
COUNT = Rule("-1 or at least 1", lambda value: value == -1 or value > 0)
POWER = Rule("from -2 to 2", lambda value: -2 <= value <= 2)
RATIOS, CORRECTIONS = get_args(Ratio), get_args(Correction)
DTYPE = one_of("float32", "bfloat16")


@dataclass(frozen=True)
class Key(Setting):
    """What is known of a key.

    Attributes:
      may_change: whether a resumed run may change it: where and how a run works, not what it computes.
      may_grow: whether a resumed run may raise it.
      auto: it is unset (None) until `resolve`, which takes the algorithm's own default where there is one.
      mixes: whether an environment of `env.mix` may have another value, as env.mix.LABEL.KEY.
    """

    may_change: bool = False
    may_grow: bool = False
    auto: bool = False
    mixes: bool = False

    def allows(self, before: Any, now: Any) -> bool:
        """Whether a resumed run may have another value."""
        return self.may_change or (self.may_grow and now > before)


WEIGHT = Key(1.0, "share of the environment in the groups of an iteration, as a ratio to the other weights", POSITIVE)
KEYS: dict[str, Key] = {
    "seed": Key(0, "decides task order, sampling keys and initial weights", SEED),
    "distributed": Key(False, "several hosts run this program together (jax.distributed)"),
    "agent": Key("plain", "of --mode=eval: plain, react, reflexion, or module:NAME (docs/agents.md)"),
    "log.to": Key(
        ("tensorboard",),
        "loggers beside metrics.jsonl: tensorboard, wandb, module:NAME (docs/guide.md)",
        each(Rule("a name", bool), str),
        may_change=True,
    ),
    # environment
    "env.name": Key("alfworld", "an environment of gigpo_jax.envs.registry, or module:NAME", mixes=True),
    "env.split": Key("train", "the split of the training tasks", mixes=True),
    "env.max_steps": Key(50, "actions of an episode", POSITIVE, mixes=True),
    "env.history": Key(2, "past (observation, action) pairs in a prompt", NOT_NEGATIVE, mixes=True),
    "env.prompt": Key(
        "full",
        "style of prompts: full (instructions), tagged (rlvmr), compact (tiny models); or module:NAME",
        mixes=True,
    ),
    "env.show_admissible": Key(True, "list the admissible actions in the prompt", mixes=True),
    "env.invalid_penalty": Key(
        0.1, "subtracted from the reward of a step with an invalid response", NOT_NEGATIVE, mixes=True
    ),
    "env.overlong_buffer": Key(
        0,
        "tokens below sampling.max_response_tokens in which the reward falls; 0: off (docs/algorithm.md)",
        NOT_NEGATIVE,
        mixes=True,
    ),
    "env.overlong_penalty": Key(
        1.0, "subtracted from the reward of a step whose response has all tokens", NOT_NEGATIVE, mixes=True
    ),
    "env.require_admissible": Key(False, "an action that is not admissible is invalid too", mixes=True),
    "env.workers": Key(2, "environment processes", POSITIVE, may_change=True),
    "env.start_timeout_s": Key(120.0, "limit for the start of a worker and for a reset", POSITIVE, may_change=True),
    "env.step_timeout_s": Key(60.0, "limit for a step; then the worker is replaced", POSITIVE, may_change=True),
    "env.max_aborted_fraction": Key(0.5, "of an iteration's episodes; the run stops above it", FRACTION),
    # model
    "model.path": Key(
        "", 'a Hugging Face folder, or ORG/NAME of the Hub; "": random weights of model.shape (only --mode=sft)'
    ),
    "model.revision": Key("", 'branch, tag or commit of a model of the Hub; "": its main branch'),
    "model.enable_thinking": Key(
        True, "the switch of chat templates such as Qwen3's; False: prompts end with an empty reasoning block"
    ),
    "model.shape.hidden_size": Key(128, "width; model.shape is a Qwen2.5 architecture with a word tokenizer", POSITIVE),
    "model.shape.intermediate_size": Key(384, "inner width of the feed-forward layers", POSITIVE),
    "model.shape.num_layers": Key(4, "decoder layers", POSITIVE),
    "model.shape.num_heads": Key(4, "query heads", POSITIVE),
    "model.shape.num_kv_heads": Key(2, "key and value heads", POSITIVE),
    "model.shape.rope_theta": Key(1e6, "base of the rotary embedding", POSITIVE),
    "model.shape.initializer_range": Key(0.02, "standard deviation of random matrices, the tower's too", POSITIVE),
    "model.shape.vision.depth": Key(0, "layers of a vision tower as Qwen2.5-VL's; 0: reads text alone", NOT_NEGATIVE),
    "model.shape.vision.hidden_size": Key(64, "width of the tower", POSITIVE),
    "model.shape.vision.intermediate_size": Key(128, "inner width of its feed-forward layers", POSITIVE),
    "model.shape.vision.num_heads": Key(4, "its heads", POSITIVE),
    "model.param_dtype": Key("float32", "of stored parameters; training all of them requires float32", DTYPE),
    "model.compute_dtype": Key("bfloat16", "of activations", DTYPE),
    "model.lora.rank": Key(0, "of a trained low-rank adapter; 0: all parameters are trained", NOT_NEGATIVE),
    "model.lora.alpha": Key(32.0, "the adapter's output is scaled by alpha / rank", POSITIVE),
    "model.lora.targets": Key(
        LORA_TARGETS,
        "the linear layers with an adapter",
        Rule(
            f"one or more of {', '.join(LORA_TARGETS)}, each once",
            lambda value: 0 < len(value) == len(set(value)) and set(value) <= set(LORA_TARGETS),
        ),
    ),
    "model.lora.vision": Key(False, "the linear layers in the blocks of the vision tower have an adapter too"),
    "model.lora.path": Key("", 'an adapter in PEFT\'s layout to start from; "": one that changes nothing'),
    "model.unroll": Key(1, "layers in one step of the scan over layers; more: longer compilation", POSITIVE),
    "model.remat": Key(
        "full",
        "what the backward pass computes again; offload: all, with layer inputs in host memory (docs/scaling.md)",
        one_of("none", "dots", "attention", "full", "offload"),
    ),
    # devices along each axis
    "mesh.data": Key(-1, "devices that split the batch; -1: all remaining", COUNT),
    "mesh.fsdp": Key(1, "devices that split batch and parameters", COUNT),
    "mesh.tensor": Key(1, "devices that split heads and inner width", COUNT),
    # generation
    "engine.name": Key("jax", "jax: in this process; vllm: servers beside it (docs/scaling.md)", one_of("jax", "vllm")),
    "engine.slots": Key(128, "sequences that a host decodes together, spread over its devices", POSITIVE),
    "engine.tensor": Key(
        0,
        "devices that split the engine's weights; 0: mesh.tensor, or more where they need it (docs/scaling.md)",
        NOT_NEGATIVE,
    ),
    "engine.devices": Key(
        0, "of a host, for the in-process engine alone; 0: those that train too (docs/scaling.md)", NOT_NEGATIVE
    ),
    "engine.dtype": Key("bfloat16", "of activations and KV cache; vllm: of weights too", DTYPE),
    "engine.prefill_buckets": Key((), "prompt lengths to compile for; (): powers of two", each(POSITIVE, int)),
    "engine.prefill_rows": Key(
        (16,),
        "prompts (or chunks) of a prefill on a device; several sizes: repeatable only to rounding",
        each(POSITIVE, int),
    ),
    "engine.prefill_chunk": Key(
        0,
        "tokens of the chunks that prompts are read in, shared ones once; 0: whole, padded to a bucket",
        NOT_NEGATIVE,
    ),
    "engine.decode_steps": Key(16, "decode steps per device call", POSITIVE),
    "engine.vllm.urls": Key(
        "", 'running servers, "http://a:8000,http://b:8000", key in VLLM_API_KEY; "": start some', may_change=True
    ),
    "engine.vllm.servers": Key(1, "servers to start", POSITIVE, may_change=True),
    "engine.vllm.python": Key(".venv-vllm/bin/python", "interpreter of vLLM's virtual environment", may_change=True),
    "engine.vllm.args": Key("", "more arguments for the servers to start", may_change=True),
    "engine.vllm.cache_gib": Key(1.0, "KV cache of a server on CPUs", POSITIVE, may_change=True),
    "engine.vllm.gpu_memory_fraction": Key(0.85, "of a GPU's memory, for a server", PART, may_change=True),
    "engine.vllm.weights_dir": Key(
        "", 'folder shared with the servers for new weights; "": in memory', may_change=True
    ),
    "engine.vllm.start_timeout_s": Key(600.0, "limit for the start of a server", POSITIVE, may_change=True),
    "engine.vllm.connect_timeout_s": Key(
        60.0, "limit for a server of urls to answer (again)", POSITIVE, may_change=True
    ),
    "engine.vllm.request_timeout_s": Key(600.0, "limit for one response", POSITIVE, may_change=True),
    "engine.vllm.push_timeout_s": Key(600.0, "limit for each step of a weight update", POSITIVE, may_change=True),
    "engine.vllm.restarts": Key(3, "restarts of a dead server in a run", NOT_NEGATIVE, may_change=True),
    "sampling.temperature": Key(1.0, "of training rollouts", POSITIVE),
    "sampling.top_p": Key(1.0, "nucleus sampling; 1: off", PART),
    "sampling.top_k": Key(-1, "-1: off", COUNT),
    "sampling.max_prompt_tokens": Key(
        2048, "longer prompts lose history, then text of the observation", at_least(4), mixes=True
    ),
    "sampling.max_response_tokens": Key(512, "longer responses are truncated", POSITIVE, mixes=True),
    "sampling.stop": Key(
        ("</action>",), "a response ends with the first of these", each(Rule("a text that is not empty", bool), str)
    ),
    # objective
    "rl.algorithm": Key(
        "gigpo",
        "docs/algorithm.md",
        Rule(f"one of {', '.join(ALGORITHMS)}, or module:NAME", lambda value: value in ALGORITHMS or ":" in value),
    ),
    "rl.preset": Key("verl_agent", "how advantages are computed (docs/algorithm.md)", one_of(*PRESETS)),
    "rl.gamma": Key(0.95, "discount of step returns, in saved rollouts and the credit oracle too", FRACTION, auto=True),
    "rl.step_weight": Key(1.0, "omega, weight of the step advantage (equation 8)", NOT_NEGATIVE, auto=True),
    "rl.normalize": Key(
        "mean_std", "mean_std divides by the standard deviation", one_of("mean_std", "mean"), auto=True
    ),
    "rl.clip_low": Key(0.2, "the ratio is clipped to [1 - clip_low, 1 + clip_high]", NOT_NEGATIVE, auto=True),
    "rl.clip_high": Key(0.2, "", NOT_NEGATIVE, auto=True),
    "rl.dual_clip": Key(
        3.0,
        "bounds the loss at dual_clip times a negative advantage; 0: off",
        Rule("greater than 1, or 0 (off)", lambda value: value > 1 or value == 0),
        auto=True,
    ),
    "rl.ratio": Key("token", "which probability ratio is clipped (docs/loss.md)", one_of(*RATIOS), auto=True),
    "rl.hoelder_first": Key(
        1.0,
        "exponent p of ratio=hoelder and hoelder_tokens in the first iteration; linear from there",
        POWER,
        auto=True,
    ),
    "rl.hoelder_last": Key(-1.0, "p after the last iteration", POWER, auto=True),
    "rl.kl_coef": Key(0.01, "of the KL term; 0: no reference policy is kept", NOT_NEGATIVE, auto=True),
    "rl.kl_in": Key("loss", "where the KL term counts: in the loss, or in the rewards", one_of("loss", "reward")),
    "rl.entropy_coef": Key(0.0, "of the entropy bonus", NOT_NEGATIVE),
    "rl.loss_mean": Key(
        "tokens",
        "of the loss: over tokens, responses, responses of constant length, or episodes (docs/loss.md)",
        one_of(*get_args(Mean)),
        auto=True,
    ),
    "rl.old_logprobs": Key(
        "auto",
        "old log-probabilities of the ratio: as sampled, or recomputed by the learner before the updates",
        one_of("auto", "engine", "recompute"),
    ),
    "rl.importance_correction": Key(
        "auto",
        "weigh tokens or responses by learner / engine, or leave responses out (docs/loss.md)",
        one_of("auto", *CORRECTIONS),
    ),
    "rl.importance_cap": Key(
        2.0, "largest weight of a truncated correction; masks keep ratios from 1 / cap to cap", POSITIVE, auto=True
    ),
    "rl.anchor_match": Key("exact", "when two anchor states are the same", one_of("exact", "similar")),
    "rl.similarity": Key(0.9, "threshold of anchor_match=similar", FRACTION),
    # critic: AdamW as the policy's, at a constant rate
    "critic.kind": Key(
        "none",
        "model: its own; head: a value head on the policy's hidden states; auto: model if the algorithm needs it",
        one_of("none", "model", "head"),
        auto=True,
    ),
    "critic.path": Key("", 'a model folder or exported critic to start from; "": the weights of model.path'),
    "critic.lr": Key(1e-5, "learning rate; a value head alone needs a higher one", POSITIVE),
    "critic.clip": Key(0.5, "limit of a value's distance to its old one in the loss; 0: off", NOT_NEGATIVE),
    "critic.grad_clip": Key(1.0, "largest global gradient norm", POSITIVE),
    "critic.warmup_iterations": Key(0, "iterations at the start in which only the critic learns", NOT_NEGATIVE),
    # optimizer: AdamW in float32
    "optim.lr": Key(
        1e-6,
        "peak learning rate; bfloat16 parameters cannot take steps this small, hence model.param_dtype=float32",
        POSITIVE,
    ),
    "optim.schedule": Key("constant", "after the warm-up; linear and cosine end at 0", one_of(*SCHEDULES)),
    "optim.warmup_fraction": Key(0.0, "of the run, with a rising learning rate", FRACTION),
    "optim.b1": Key(0.9, "decay of the first moment", DECAY),
    "optim.b2": Key(0.999, "decay of the second moment", DECAY),
    "optim.weight_decay": Key(0.01, "decoupled", NOT_NEGATIVE),
    "optim.grad_clip": Key(1.0, "largest global gradient norm", POSITIVE),
    "optim.moment_dtype": Key("float32", "of the stored first moment; the second is float32", DTYPE),
    "batch.row_length": Key(4096, "tokens of a packed row; must hold a prompt and its response", POSITIVE),
    "batch.rows": Key(4, "rows of a microbatch, over all devices", POSITIVE),
    "batch.logprob_chunk": Key(1024, "tokens whose logits exist at a time", POSITIVE),
    # training
    "train.iterations": Key(150, "rollouts, each followed by updates", POSITIVE, may_grow=True),
    "train.groups": Key(16, "tasks of an iteration", POSITIVE),
    "train.group_size": Key(8, "episodes of a task", POSITIVE),
    "train.refill_groups": Key(
        0,
        "a group whose episodes all end alike is replaced by one of another task, at most this many times",
        NOT_NEGATIVE,
    ),
    "train.finish_fraction": Key(
        1.0, "of a group's episodes; once they have ended, the others are cancelled; 1: off (docs/scaling.md)", PART
    ),
    "train.curriculum": Key(
        "none",
        "tasks are drawn in turn (none), or more of the task types whose success is near 50% (success)",
        one_of("none", "success"),
    ),
    "train.minibatch": Key(256, "environment steps of an optimizer update", POSITIVE),
    "train.epochs": Key(1, "passes over an iteration's steps", POSITIVE),
    "train.max_staleness": Key(
        0, "rollouts run during updates, with weights at most so many updates old; 0: they do not", NOT_NEGATIVE
    ),
    "train.save_rollouts": Key(10, "iterations between saved rollouts; 0: none", NOT_NEGATIVE, may_change=True),
    "sft.episodes": Key(4000, "demonstrations", POSITIVE),
    "sft.epochs": Key(1, "passes over the demonstrations", POSITIVE),
    "sft.minibatch": Key(256, "environment steps of an optimizer update", POSITIVE),
    "sft.checkpoint_every": Key(200, "updates between checkpoints", POSITIVE, may_change=True),
    "sft.learn_prompts": Key(False, "predict prompts too: teaches a model from random weights to read"),
    "eval.every": Key(5, "iterations between evaluations; 0: before and after training only", NOT_NEGATIVE),
    "eval.panel": Key("", "a frozen evaluation set: its name or JSON file (docs/alfworld.md)", mixes=True),
    "eval.tasks": Key(0, "only the first tasks of the panel; 0: all", NOT_NEGATIVE),
    "eval.trials": Key(
        1,
        "of a task in --mode=eval; one success is enough; reflexion: 3 (docs/agents.md)",
        POSITIVE,
        auto=True,
    ),
    "eval.examples": Key(1, "of each task type in prompts of react and reflexion", NOT_NEGATIVE, may_change=True),
    "eval.temperature": Key(0.4, "of evaluation; 0: greedy", NOT_NEGATIVE),
    "eval.greedy": Key(False, "evaluate greedily too, before and after training"),
    # the endpoint of gigpo serve, and of a harness (docs/serve.md)
    "serve.host": Key("127.0.0.1", "address to listen on", Rule("an address", bool), may_change=True),
    "serve.port": Key(0, "to listen on; 0: any free one", PORT, may_change=True),
    "serve.max_sessions": Key(1024, "that programs may have open at once (gigpo serve)", POSITIVE, may_change=True),
    "serve.session_timeout_s": Key(
        600.0, "a session without a request for so long is abandoned", POSITIVE, may_change=True
    ),
    "serve.request_timeout_s": Key(600.0, "limit for one response", POSITIVE, may_change=True),
    "checkpoint.every": Key(10, "iterations between checkpoints", POSITIVE, may_change=True),
    "checkpoint.keep": Key(2, "checkpoints kept", POSITIVE, may_change=True),
}
