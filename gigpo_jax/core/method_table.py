"""What published methods add to a run: a table of import paths for each kind of addition.

The core looks names up in these tables and imports a method when a config has it; no other file of
the core names a folder of `gigpo_jax.methods`.
"""

from typing import Any

# Values of rl.algorithm: `rl.algorithm_types.Algorithm`.
METHOD_ALGORITHMS = {
    "max_rl": "gigpo_jax.methods.max_rl:METHOD",
    "lite_ppo": "gigpo_jax.methods.lite_ppo:METHOD",
    "ema_grpo": "gigpo_jax.methods.ema_grpo:METHOD",
    "hcapo": "gigpo_jax.methods.hcapo:METHOD",
    "hgpo": "gigpo_jax.methods.hgpo:METHOD",
    "salt": "gigpo_jax.methods.salt:METHOD",
    "empg": "gigpo_jax.methods.empg:METHOD",
    "response_weight": "gigpo_jax.methods.response_weight:METHOD",
    "serl": "gigpo_jax.methods.serl:METHOD",
    "opd": "gigpo_jax.methods.opd:METHOD",
    "rlvmr": "gigpo_jax.methods.rlvmr:METHOD",
    "oprl": "gigpo_jax.methods.oprl:METHOD",
    "igpo": "gigpo_jax.methods.igpo:METHOD",
    "a2tgpo": "gigpo_jax.methods.igpo:A2TGPO",
    "tree": "gigpo_jax.methods.tree:METHOD",
    "g2po": "gigpo_jax.methods.g2po:METHOD",
    "graphgpo": "gigpo_jax.methods.graphgpo:METHOD",
    "gagpo": "gigpo_jax.methods.gagpo:METHOD",
    "vineppo": "gigpo_jax.methods.vineppo:METHOD",
    "carl": "gigpo_jax.methods.carl:METHOD",
    "text_critic": "gigpo_jax.methods.text_critic:METHOD",
    "spa_rl": "gigpo_jax.methods.spa_rl:METHOD",
    "step_ppo": "gigpo_jax.methods.step_ppo:METHOD",
    "turn_ppo": "gigpo_jax.methods.step_ppo:TURN_PPO",
    "bilevel": "gigpo_jax.methods.bilevel:METHOD",
    "strata": "gigpo_jax.methods.strata:METHOD",
    "rebel": "gigpo_jax.methods.rebel:METHOD",
    "slea": "gigpo_jax.methods.slea:METHOD",
    "hiper": "gigpo_jax.methods.hiper:METHOD",
}

# Values of env.plan: `env_bridge.plans.PlanKind`.
METHOD_PLANS = {
    "subgoal": "gigpo_jax.methods.hiper.subgoals:PLAN",
    "strategy": "gigpo_jax.methods.strata.plan:PLAN",
    "belief": "gigpo_jax.methods.rebel.beliefs:PLAN",
}

# Values of agent: `env_bridge.agents.Agent`.
METHOD_AGENTS = {"reflexion": "gigpo_jax.methods.reflexion.agent:REFLEXION"}

# `rollout.episode_parts.EpisodePart` by what needs it, in the order in which an episode calls them.
METHOD_EPISODE_PARTS = {
    "train.expert_starts": "gigpo_jax.methods.tcod.expert_starts:ReplayedActions",
    "env.plan=strategy": "gigpo_jax.methods.strata.episode_part:StrategyPart",
    "env.context=summary": "gigpo_jax.methods.mem_agent.episode_part:SummariesPart",
    "env.resample_turns": "gigpo_jax.methods.t2po.episode_part:ResamplingPart",
    "env.plan=belief": "gigpo_jax.methods.rebel.episode_part:BeliefsPart",
    "agent": "gigpo_jax.methods.reflexion.episode_part:ReflectionsPart",
}

# `rollout.task_sources.TaskSource` by what needs it.
METHOD_SOURCES = {
    "train.expert_starts": "gigpo_jax.methods.tcod.expert_starts:ExpertStarts",
    "train.experience": "gigpo_jax.methods.slea.experience:Library",
}

# Descriptions of metrics by the first part of their names.
METHOD_METRICS = {
    "belief": "gigpo_jax.methods.rebel.episode_part:METRICS",
    "rollout": "gigpo_jax.methods.tcod.expert_starts:METRICS",
    "experience": "gigpo_jax.methods.slea.lessons:METRICS",
}

# `config.key_types.KeySet` by title, and the defaults of its keys, which every config has.
METHOD_KEYS = {
    "starts of an expert": "gigpo_jax.methods.tcod.keys:KEY_SET",
    "shared strategies": "gigpo_jax.methods.strata.keys:KEY_SET",
    "summaries": "gigpo_jax.methods.mem_agent.keys:KEY_SET",
    "lessons": "gigpo_jax.methods.slea.keys:KEY_SET",
    "turns sampled again": "gigpo_jax.methods.t2po.keys:KEY_SET",
}
METHOD_DEFAULTS: dict[str, dict[str, Any]] = {
    "starts of an expert": {"train.expert_starts": 0},
    "shared strategies": {"train.strategy_episodes": 1},
    "summaries": {"env.context": "drop_oldest", "sampling.max_summary_tokens": 0},
    "lessons": {"train.experience": 0},
    "turns sampled again": {"env.resample_turns": 0, "engine.entropies": False},
}
