"""Every key of the config: default, meaning, allowed values, and the rules of a resumed run."""

from dataclasses import dataclass
from typing import Any, get_args

from ml_collections import ConfigDict

from gigpo_jax.core.settings import (
    FRACTION,
    NOT_NEGATIVE,
    POSITIVE,
    POSITIVE_FRACTION,
    Rule,
    Setting,
    at_least,
    one_of,
    tuple_of,
)
from gigpo_jax.env_bridge.plans import PLANS
from gigpo_jax.models.linears import TARGETS
from gigpo_jax.rl.algorithms import ALGORITHMS, PRESETS
from gigpo_jax.rl.losses import Mean
from gigpo_jax.rl.optimizer import OPTIMIZERS, SCHEDULES
from gigpo_jax.rl.ratios import Correction, Ratio

LORA_TARGETS = tuple(TARGETS)


DECAY = Rule("at least 0 and below 1", lambda value: 0 <= value < 1)
# jax keeps 32 bits of a seed, so larger ones would repeat; numpy takes no negative ones.
SEED = Rule(f"from 0 to {2**31 - 1}", lambda value: 0 <= value < 2**31)
PORT = Rule("from 0 to 65535", lambda value: 0 <= value < 2**16)
COUNT = Rule("-1 or at least 1", lambda value: value == -1 or value > 0)
POWER = Rule("from -2 to 2", lambda value: -2 <= value <= 2)
RATIOS = get_args(Ratio)
CORRECTIONS = get_args(Correction)
DTYPE = one_of("float32", "bfloat16")
# Names that saved configs have for keys of today.
MOVED = {
    f"engine.vllm.{name}": f"engine.{name}"
    for name in ("urls", "weights_dir", "connect_timeout_s", "request_timeout_s", "push_timeout_s")
}
# Keys of saved configs that are gone, with the value that does what the package does today.
REMOVED = {"rl.settings.prior": "return"}


@dataclass(frozen=True)
class Key(Setting):
    """The declaration of a key.

    Attributes:
      may_change: True if a resumed run may change it: it decides where and how a run works, not
        its results.
      may_grow: True if a resumed run may raise it.
      auto: True if it is unset (None) until `resolve`, which takes the algorithm's own default
        where there is one.
      mixes: True if an environment of `env.mix` may have another value, as env.mix.LABEL.KEY.
    """

    may_change: bool = False
    may_grow: bool = False
    auto: bool = False
    mixes: bool = False

    def allows(self, old_value: Any, new_value: Any) -> bool:
        """Tests whether a resumed run may have another value."""
        return self.may_change or (self.may_grow and new_value > old_value)


WEIGHT = Key(
    1.0,
    "share of the environment in the groups of an iteration, as a ratio to the other weights",
    POSITIVE,
)
KEYS: dict[str, Key] = {
    "seed": Key(0, "seed of the task order, the sampling keys and the initial weights", SEED),
    "distributed": Key(False, "whether several hosts run this program together (jax.distributed)"),
    "agent": Key(
        "plain", "agent of gigpo eval: plain, react, reflexion, or module:NAME (docs/agents.md)"
    ),
    "log.to": Key(
        ("tensorboard",),
        "loggers beside metrics.jsonl: tensorboard, wandb, module:NAME (docs/loggers.md)",
        # `bool` accepts every text but the empty one.
        tuple_of(Rule("a name", bool), str),
        may_change=True,
    ),
    "compilation.cache_gib": Key(
        1.0,
        "limit of compiled programs that are kept for the next start, in the cache folder; 0: none",
        NOT_NEGATIVE,
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
    "env.first_max_steps": Key(
        0,
        "largest number of actions in training episodes of the first iteration; it grows linearly "
        "to env.max_steps; 0: env.max_steps from the start",
        NOT_NEGATIVE,
        mixes=True,
    ),
    "env.max_steps_iterations": Key(
        0,
        "number of iterations in which the limit grows from env.first_max_steps to env.max_steps",
        NOT_NEGATIVE,
        mixes=True,
    ),
    "env.history": Key(
        2, "number of past (observation, action) pairs in a prompt", NOT_NEGATIVE, mixes=True
    ),
    "env.prompt": Key(
        "full",
        "style of prompts: full (instructions), tagged (rlvmr), compact (tiny models); chat or "
        "chat_STYLE: one conversation an episode; or module:NAME",
        mixes=True,
    ),
    "env.context": Key(
        "drop_oldest",
        "rule for conversations that are full; drop_oldest: they lose their oldest steps; "
        "summary: the policy summarises them (docs/conversations.md)",
        one_of("drop_oldest", "summary"),
        mixes=True,
    ),
    "env.plan": Key(
        "none",
        "plan that prompts show; subgoal: kept or switched by each response; strategy: written "
        "before the episode; belief: what is known, in each response (docs/plans.md)",
        one_of(*PLANS),
        mixes=True,
    ),
    "env.show_admissible": Key(True, "whether prompts list the admissible actions", mixes=True),
    "env.resample_turns": Key(
        0,
        "largest number of times that a turn of training is sampled again, because its uncertainty "
        "is nearly that of the turn before; 0: never (docs/tasks.md)",
        NOT_NEGATIVE,
        mixes=True,
    ),
    "env.resample_change": Key(
        0.3,
        "change of the uncertainty, in nats a token, below which a turn is sampled again",
        POSITIVE,
        mixes=True,
    ),
    "env.invalid_penalty": Key(
        0.1,
        "penalty that a step with an invalid response loses from its reward",
        NOT_NEGATIVE,
        mixes=True,
    ),
    "env.regret_reward": Key(
        0.0,
        "reward that a step loses for each action that it wasted; needs env.options.regret=True "
        "(docs/advantages.md)",
        NOT_NEGATIVE,
        mixes=True,
    ),
    "env.overlong_buffer": Key(
        0,
        "tokens below sampling.max_response_tokens in which the reward falls; 0: off "
        "(docs/algorithm.md)",
        NOT_NEGATIVE,
        mixes=True,
    ),
    "env.overlong_penalty": Key(
        1.0,
        "penalty of a step whose response has the largest number of tokens",
        NOT_NEGATIVE,
        mixes=True,
    ),
    "env.require_admissible": Key(
        False, "whether an action that is not admissible is invalid too", mixes=True
    ),
    "env.workers": Key(2, "number of environment processes", POSITIVE, may_change=True),
    "env.start_timeout_s": Key(
        120.0, "time limit for the start of a worker and for a reset", POSITIVE, may_change=True
    ),
    "env.step_timeout_s": Key(
        60.0, "time limit for a step; then the worker is replaced", POSITIVE, may_change=True
    ),
    "env.max_aborted_fraction": Key(
        0.5,
        "largest fraction of aborted episodes in an iteration; above it the run stops",
        FRACTION,
    ),
    # model
    "model.path": Key(
        "",
        'Hugging Face folder, or ORG/NAME of the Hub; "": random weights of model.shape (only '
        "gigpo sft)",
    ),
    "model.revision": Key("", 'branch, tag or commit of a model of the Hub; "": its main branch'),
    "model.enable_thinking": Key(
        True,
        "switch of chat templates such as Qwen3's; False: prompts end with an empty reasoning "
        "block",
    ),
    "model.shape.hidden_size": Key(
        128,
        "width of the model; model.shape is a Qwen2.5 architecture with a word tokenizer",
        POSITIVE,
    ),
    "model.shape.intermediate_size": Key(384, "inner width of the feed-forward layers", POSITIVE),
    "model.shape.num_layers": Key(4, "number of decoder layers", POSITIVE),
    "model.shape.num_heads": Key(4, "number of query heads", POSITIVE),
    "model.shape.num_kv_heads": Key(2, "number of key and value heads", POSITIVE),
    "model.shape.rope_theta": Key(1e6, "base of the rotary embedding", POSITIVE),
    "model.shape.initializer_range": Key(
        0.02, "standard deviation of random weight matrices, also in the vision tower", POSITIVE
    ),
    "model.shape.vision.depth": Key(
        0,
        "number of layers in a vision tower like Qwen2.5-VL's; 0: the model reads text alone",
        NOT_NEGATIVE,
    ),
    "model.shape.vision.hidden_size": Key(64, "width of the vision tower", POSITIVE),
    "model.shape.vision.intermediate_size": Key(
        128, "inner width of the tower's feed-forward layers", POSITIVE
    ),
    "model.shape.vision.num_heads": Key(4, "number of attention heads in the tower", POSITIVE),
    "model.param_dtype": Key(
        "float32", "type of stored parameters; training all of them requires float32", DTYPE
    ),
    "model.compute_dtype": Key("bfloat16", "type of activations", DTYPE),
    "model.replay_routes": Key(
        False,
        "whether updates send each token through the experts of its rollout (docs/scaling.md)",
    ),
    "model.lora.rank": Key(
        0, "rank of a trained low-rank adapter; 0: all parameters are trained", NOT_NEGATIVE
    ),
    "model.lora.alpha": Key(
        32.0, "scale of the adapter: its output is multiplied by alpha / rank", POSITIVE
    ),
    "model.lora.targets": Key(
        LORA_TARGETS,
        "linear layers with an adapter",
        Rule(
            f"one or more of {', '.join(LORA_TARGETS)}, each once",
            lambda value: 0 < len(value) == len(set(value)) and set(value) <= set(LORA_TARGETS),
        ),
    ),
    "model.lora.vision": Key(
        False, "whether linear layers of the vision tower's blocks have an adapter too"
    ),
    "model.lora.path": Key(
        "", 'adapter in PEFT\'s layout to start from; "": one that changes nothing'
    ),
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
    # devices along each axis
    "mesh.data": Key(-1, "number of devices that split the batch; -1: all remaining", COUNT),
    "mesh.fsdp": Key(1, "number of devices that split batch and parameters", COUNT),
    "mesh.tensor": Key(1, "number of devices that split heads and inner width", COUNT),
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
    "engine.tensor": Key(
        0,
        "number of devices that split the weights; 0: mesh.tensor, or more if needed "
        "(docs/scaling.md)",
        NOT_NEGATIVE,
    ),
    "engine.devices": Key(
        0,
        "number of devices of a host for the engine alone; 0: those that train (docs/scaling.md)",
        NOT_NEGATIVE,
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
    "engine.keep_responses": Key(
        False,
        "whether the next call of a conversation continues in its slot, or False: responses are "
        "read again (docs/conversations.md); auto: True for conversations read in chunks",
        auto=True,
    ),
    "engine.entropies": Key(
        False,
        "whether responses have entropies of their tokens, which train.fork_choice=entropy and "
        "env.resample_turns read in place of estimates",
    ),
    "engine.decode_steps": Key(16, "number of decode steps per device call", POSITIVE),
    # servers of engine.name=jax_server (docs/engine_server.md) and vllm
    "engine.urls": Key(
        "",
        'running servers, as "http://a:8000,http://b:8000"; key in GIGPO_API_KEY or, for vllm, '
        'VLLM_API_KEY; "": the run starts some (vllm)',
        may_change=True,
    ),
    "engine.weights_dir": Key(
        "",
        'folder shared with the servers for new weights; "": over HTTP (jax_server), or a folder '
        "in memory (vllm)",
        may_change=True,
    ),
    "engine.connect_timeout_s": Key(
        60.0, "time limit for a server of urls to answer (again)", POSITIVE, may_change=True
    ),
    "engine.request_timeout_s": Key(
        600.0, "time limit for one response of a server", POSITIVE, may_change=True
    ),
    "engine.push_timeout_s": Key(
        600.0, "time limit for each step of a weight update", POSITIVE, may_change=True
    ),
    "engine.vllm.servers": Key(1, "number of servers to start", POSITIVE, may_change=True),
    "engine.vllm.python": Key(
        ".venv-vllm/bin/python", "interpreter of vLLM's virtual environment", may_change=True
    ),
    "engine.vllm.args": Key("", "more arguments for the servers to start", may_change=True),
    "engine.vllm.cache_gib": Key(
        1.0, "size of the KV cache of a server on CPUs, in GiB", POSITIVE, may_change=True
    ),
    "engine.vllm.gpu_memory_fraction": Key(
        0.85, "fraction of a GPU's memory for a server", POSITIVE_FRACTION, may_change=True
    ),
    "engine.vllm.start_timeout_s": Key(
        600.0, "time limit for the start of a server", POSITIVE, may_change=True
    ),
    "engine.vllm.restarts": Key(
        3, "largest number of restarts of dead servers in a run", NOT_NEGATIVE, may_change=True
    ),
    "sampling.temperature": Key(1.0, "temperature of training rollouts", POSITIVE),
    "sampling.top_p": Key(1.0, "probability mass of nucleus sampling; 1: off", POSITIVE_FRACTION),
    "sampling.top_k": Key(-1, "number of most probable tokens to sample from; -1: off", COUNT),
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
    "sampling.max_summary_tokens": Key(
        0,
        "largest number of tokens in a summary of env.context=summary or a strategy of "
        "env.plan=strategy; 0: sampling.max_response_tokens",
        NOT_NEGATIVE,
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
    "rl.clip_low": Key(
        0.2,
        "lower clip of the ratio: it is clipped to [1 - clip_low, 1 + clip_high]",
        NOT_NEGATIVE,
        auto=True,
    ),
    "rl.clip_high": Key(0.2, "upper clip of the ratio", NOT_NEGATIVE, auto=True),
    "rl.dual_clip": Key(
        3.0,
        "bound of the loss: dual_clip times a negative advantage; 0: off",
        Rule("greater than 1, or 0 (off)", lambda value: value > 1 or value == 0),
        auto=True,
    ),
    "rl.ratio": Key(
        "token", "probability ratio that is clipped (docs/loss.md)", one_of(*RATIOS), auto=True
    ),
    "rl.hoelder_first": Key(
        1.0,
        "exponent p of ratio=hoelder and hoelder_tokens in the first iteration; p then "
        "changes linearly",
        POWER,
        auto=True,
    ),
    "rl.hoelder_last": Key(-1.0, "exponent p after the last iteration", POWER, auto=True),
    "rl.kl_coef": Key(
        0.01, "coefficient of the KL term; 0: no reference policy is kept", NOT_NEGATIVE, auto=True
    ),
    "rl.kl_in": Key(
        "loss", "place of the KL term: in the loss, or in the rewards", one_of("loss", "reward")
    ),
    "rl.entropy_coef": Key(0.0, "coefficient of the entropy bonus", NOT_NEGATIVE),
    "rl.loss_mean": Key(
        "tokens",
        "mean of the loss: over tokens, responses, responses of constant length, or episodes "
        "(docs/loss.md)",
        one_of(*get_args(Mean)),
        auto=True,
    ),
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
    "rl.importance_cap": Key(
        2.0,
        "largest weight of a truncated correction; masks keep ratios from 1 / cap to cap",
        POSITIVE,
        auto=True,
    ),
    "rl.anchor_match": Key(
        "exact",
        "condition for two anchor states to be the same",
        one_of("exact", "similar"),
        auto=True,
    ),
    "rl.similarity": Key(0.9, "threshold of anchor_match=similar", FRACTION, auto=True),
    # critic: AdamW as the policy's, at a constant rate
    "critic.kind": Key(
        "none",
        "model: a model of its own; head: a value head on the policy; auto: model if it is needed",
        one_of("none", "model", "head"),
        auto=True,
    ),
    "critic.path": Key(
        "", 'model folder or exported critic to start from; "": the weights of model.path'
    ),
    "critic.lr": Key(1e-5, "learning rate; a value head alone needs a higher one", POSITIVE),
    "critic.clip": Key(
        0.5, "limit of a value's distance to its old one in the loss; 0: off", NOT_NEGATIVE
    ),
    "critic.grad_clip": Key(1.0, "largest global gradient norm", POSITIVE),
    "critic.warmup_iterations": Key(
        0, "number of iterations at the start in which only the critic learns", NOT_NEGATIVE
    ),
    # optimizer, in float32
    "optim.name": Key(
        "adamw",
        "optimizer; muon: Muon for the matrices of the layers, AdamW for everything else",
        one_of(*OPTIMIZERS),
    ),
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
    "optim.warmup_fraction": Key(
        0.0, "fraction of the run in which the learning rate rises", FRACTION
    ),
    "optim.b1": Key(0.9, "decay of the first moment of AdamW", DECAY),
    "optim.b2": Key(0.999, "decay of the second moment", DECAY),
    "optim.weight_decay": Key(0.01, "decoupled weight decay", NOT_NEGATIVE),
    "optim.grad_clip": Key(1.0, "largest global gradient norm", POSITIVE),
    "optim.moment_dtype": Key(
        "float32", "type of the stored first moment; the second is float32", DTYPE
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
    "batch.share_prefixes": Key(
        False,
        "whether shared prefixes of prompts are computed once, in scores and, with "
        "train.minibatch_by=group, in updates (docs/performance.md)",
    ),
    "batch.logprob_chunk": Key(1024, "number of tokens whose logits exist at a time", POSITIVE),
    # training
    "train.iterations": Key(
        150, "number of iterations: a rollout, followed by updates", POSITIVE, may_grow=True
    ),
    "train.groups": Key(16, "number of tasks in an iteration", POSITIVE),
    "train.group_size": Key(8, "number of episodes of a task", POSITIVE),
    "train.strategy_episodes": Key(
        1,
        "number of a task's episodes with one strategy of env.plan=strategy (docs/plans.md)",
        POSITIVE,
    ),
    "train.experience": Key(
        0,
        "number of iterations before prompts show lessons of earlier episodes, which the policy "
        "writes from the first one on; 0: none are written (docs/experience.md)",
        NOT_NEGATIVE,
    ),
    "train.experience_capacity": Key(
        100, "largest number of lessons of each zone: strategies, warnings", POSITIVE
    ),
    "train.refill_groups": Key(
        0,
        "largest number of replacements of a group whose episodes all end alike by a group of "
        "another task",
        NOT_NEGATIVE,
    ),
    "train.finish_fraction": Key(
        1.0,
        "fraction of a group's episodes that must end; then the others are cancelled; 1: off "
        "(docs/scaling.md)",
        POSITIVE_FRACTION,
    ),
    "train.forks": Key(
        0,
        "number of a task's episodes that begin in states of its other episodes (docs/forks.md)",
        NOT_NEGATIVE,
    ),
    "train.fork_choice": Key(
        "uncertainty",
        "states that forks begin in: those of the least certain values (uncertainty), of any visit "
        "(uniform), of the least certain responses (entropy)",
        one_of("uncertainty", "uniform", "entropy"),
    ),
    "train.expert_starts": Key(
        0,
        "number of iterations after which episodes begin one action of an expert earlier, at first "
        "before its last one; 0: off (docs/forks.md)",
        NOT_NEGATIVE,
    ),
    "train.earlier_starts": Key(
        0.0,
        "fraction of groups that begin in states of earlier iterations' episodes, rounded down; 0: "
        "off (docs/forks.md)",
        DECAY,
    ),
    "train.earlier_states": Key(
        256, "number of newest states that train.earlier_starts draws from", POSITIVE
    ),
    "train.curriculum": Key(
        "none",
        "order of tasks: in turn (none), or more of the task types whose success is near 50% "
        "(success)",
        one_of("none", "success"),
    ),
    "train.minibatch": Key(
        256,
        "number of environment steps in an optimizer update; steps of a conversation stay together",
        POSITIVE,
    ),
    "train.minibatch_by": Key(
        "step",
        "unit that is dealt into minibatches: single steps, or whole task groups "
        "(docs/performance.md)",
        one_of("step", "group"),
    ),
    "train.epochs": Key(1, "number of passes over an iteration's steps", POSITIVE),
    "train.max_staleness": Key(
        0,
        "largest number of updates between the weights that sample and those that learn; 0: no "
        "rollouts in updates",
        NOT_NEGATIVE,
    ),
    "train.inflight": Key(
        False,
        "whether new weights replace those of running requests; True: no exact resume "
        "(docs/engine_server.md)",
    ),
    "train.save_rollouts": Key(
        10, "number of iterations between saved rollouts; 0: none", NOT_NEGATIVE, may_change=True
    ),
    "sft.episodes": Key(4000, "number of demonstrations", POSITIVE),
    "sft.epochs": Key(1, "number of passes over the demonstrations", POSITIVE),
    "sft.minibatch": Key(256, "number of environment steps in an optimizer update", POSITIVE),
    "sft.checkpoint_every": Key(
        200, "number of updates between checkpoints", POSITIVE, may_change=True
    ),
    "sft.learn_prompts": Key(
        False,
        "whether the loss predicts prompts too, which teaches a model from random weights to read",
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
    "eval.trials": Key(
        1,
        "number of trials of a task in gigpo eval; one success is enough; reflexion: 3 "
        "(docs/agents.md)",
        POSITIVE,
        auto=True,
    ),
    "eval.examples": Key(
        1,
        "number of examples of each task type in prompts of react and reflexion",
        NOT_NEGATIVE,
        may_change=True,
    ),
    "eval.temperature": Key(0.4, "temperature of evaluation; 0: greedy", NOT_NEGATIVE),
    "eval.greedy": Key(False, "whether greedy evaluations are added before and after training"),
    # the endpoint of gigpo serve, and of a harness (docs/serve.md); gigpo engine
    "serve.host": Key(
        "127.0.0.1", "address to listen on", Rule("an address", bool), may_change=True
    ),
    "serve.port": Key(0, "port to listen on; 0: any free one", PORT, may_change=True),
    "serve.max_sessions": Key(
        1024,
        "largest number of sessions that programs may have open at once (gigpo serve)",
        POSITIVE,
        may_change=True,
    ),
    "serve.session_timeout_s": Key(
        600.0,
        "time without a request after which a session is abandoned",
        POSITIVE,
        may_change=True,
    ),
    "serve.request_timeout_s": Key(600.0, "time limit for one response", POSITIVE, may_change=True),
    "serve.clamp": Key(
        False,
        "whether limits, sampling settings and model names of requests give way to those of the "
        "run, in place of a refusal; for agents that are not changed",
        may_change=True,
    ),
    "checkpoint.every": Key(
        10, "number of iterations between checkpoints", POSITIVE, may_change=True
    ),
    "checkpoint.keep": Key(2, "number of checkpoints kept", POSITIVE, may_change=True),
}


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Flattens nested mappings to dotted keys.

    Tuples become lists, as JSON has them.
    """
    values: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict | ConfigDict):
            values |= flatten(value, f"{prefix}{key}.")
        else:
            # So a config in memory is equal to one that was read from config.json.
            values[prefix + key] = list(value) if isinstance(value, tuple) else value
    return values


def affects_results(name: str) -> bool:
    """Tests whether a key's value can change a run's results.

    The key is a dotted one.
    """
    # Options of environments and settings of algorithms are not in KEYS; all of them count.
    return name not in KEYS or not KEYS[name].may_change


def value_of(config: ConfigDict, name: str) -> Any:
    """The value of a dotted key."""
    section, last = find_section(config, name)
    return section[last]


def find_section(config: ConfigDict, name: str, *, make: bool = False) -> tuple[ConfigDict, str]:
    """Finds the section of a dotted key.

    Args:
      config: Config with the key.
      name: Dotted key.
      make: True to add missing sections.

    Returns:
      The section, and the last component of the key.
    """
    *sections, last = name.split(".")
    for section in sections:
        if make and section not in config:
            config[section] = ConfigDict()
        config = config[section]
    return config, last
