"""Descriptions of the metrics, and the charts that show them."""

from gigpo_jax.core.method_table import METHOD_METRICS
from gigpo_jax.core.references import ReferenceTable

DESCRIPTIONS = {
    "episode/success_rate": "fraction of the training episodes that did their task",
    "episode/score": "mean score of the environment, 0 to 1",
    "episode/reward": "mean sum of rewards, without penalties",
    "episode/length": "mean actions of an episode",
    "episode/regret": "mean actions that an episode wasted",
    "episode/aborted": "episodes that the environment or the engine failed",
    "episode/aborted_policy_dependent": (
        "aborted episodes that failed at an action, or whose prompt was refused"
    ),
    "episode/unfinished": "episodes cancelled because enough others of their group had ended",
    "episode/replayed": "episodes that were played a second time after a failure",
    "action/valid_rate": "fraction of the responses that kept to the format",
    "action/admissible_rate": "fraction of the actions that were listed",
    "credit/anchor_group_size_mean": "mean steps in an anchor group",
    "credit/anchor_group_size": "how many steps each anchor group has",
    "credit/singleton_share": "fraction of steps that are alone in their anchor group",
    "credit/zero_advantage_share": "fraction of steps whose advantage is 0: they teach nothing",
    "credit/episode_norm": "root mean square of the episode advantage",
    "credit/step_norm": "root mean square of the step advantage",
    "credit/ambiguous_anchor_share": "fraction of steps whose anchor state merges several states",
    "credit/kl_penalty": "mean KL penalty of a step's reward",
    "policy/loss": "mean of the minimised loss",
    "policy/kl": "KL estimate (k3) to the reference policy, nats a token; 0 without the KL term",
    "policy/entropy": "entropy of the next token, nats",
    "policy/clip_fraction": "fraction of tokens whose ratio is clipped",
    "policy/dual_clip_fraction": "fraction of tokens whose loss the dual clip bounds",
    "policy/masked_fraction": "fraction of tokens that the importance correction masks",
    "policy/ratio_max": "largest probability ratio",
    "policy/grad_norm": "global norm of the gradient, before it is clipped",
    "policy/lr": "learning rate",
    "policy/skipped": "1: an update was skipped, its loss or gradient was not finite",
    "policy/behaviour_mismatch": "mean absolute difference of engine and learner log-probabilities",
    "response/length_mean": "mean tokens of a response, summaries included",
    "response/truncated_share": "fraction of responses cut at sampling.max_response_tokens",
    "prompt/length_mean": "mean tokens of a prompt",
    "prompt/truncated_fraction": "fraction of prompts shortened to sampling.max_prompt_tokens",
    "rollout/episodes": "episodes played, also in replaced groups",
    "rollout/forks": "episodes that begin in a state of another one",
    "rollout/fork_depth": "mean replayed actions of a fork",
    "rollout/fork_success_rate": "fraction of the forks that did their task",
    "rollout/earlier_starts": "episodes that begin in a state of an earlier iteration",
    "rollout/earlier_depth": "mean replayed actions of such an episode",
    "rollout/earlier_success_rate": "fraction of such episodes that did their task",
    "rollout/earlier_states": "states that are kept for such episodes",
    "rollout/saved_tokens": "response tokens of replayed actions: they were not sampled again",
    "rollout/steps": "environment steps played",
    "rollout/summaries": "texts beside actions that the policy wrote, such as summaries",
    "rollout/discarded_responses": "responses that were sampled again and thrown away",
    "rollout/discarded_tokens": "their tokens, which generated_tokens counts too",
    "rollout/generated_tokens": "tokens sampled",
    "rollout/groups_without_contrast": "groups whose episodes all ended alike",
    "rollout/refilled_groups": "groups that took the place of one without contrast",
    "rollout/staleness": "updates between sampling and learning",
    "batch/steps": "environment steps of the updates, and summaries",
    "batch/tokens": "tokens of all rows, without padding; steps of a conversation share theirs",
    "batch/padding_share": "fraction of the rows that is padding",
    "success_rate": "fraction of the panel's tasks that were done",
    "success_rate_type_average": "mean of the success rates of task types, or of environments",
    "success_low": "lower end of the 95% interval of the success rate",
    "success_high": "upper end of the 95% interval of the success rate",
    "time/rollout": "s of an iteration: sampling and environments",
    "time/environment": "s that an episode waits for its environment, mean",
    "time/advantage": "s of an iteration",
    "time/update": "s of an iteration",
    "time/weight_sync": "s of an iteration: new weights for the engine",
    "time/eval": "s of an evaluation",
    "time/iteration": "s of a whole iteration without evaluation",
    "time/compile": "s that jax spent on compilation; also part of the other times",
    "compile/count": "programs compiled so far",
    "throughput/generated_tokens_per_s": "sampled tokens a second of rollout",
    "throughput/env_steps_per_s": "environment steps a second of rollout",
    "throughput/trained_tokens_per_s": "tokens a second of update",
    "throughput/mfu": "fraction of the device's peak FLOP/s that updates use",
    "rollout/sample": "the first episode that did its task, else the first",
    "rollout/pictures": "what the agent saw in the episode of rollout/sample, step by step",
}

# Descriptions of the metrics of single methods, by the first part of their names.
METHOD_DESCRIPTIONS: ReferenceTable[dict[str, str]] = ReferenceTable(METHOD_METRICS)

# Category -> charts; each the names of its curves. The panel's chart has its interval.
PANEL = ("val/sampled/success_rate", "val/sampled/success_low", "val/sampled/success_high")
CHARTS = {
    "1 success": (
        ("episode/success_rate",),
        ("episode/score",),
        ("episode/length",),
        ("action/valid_rate",),
    ),
    "2 policy": (
        ("policy/entropy",),
        ("policy/kl",),
        ("policy/clip_fraction",),
        ("policy/grad_norm",),
    ),
    "3 credit": (
        ("credit/episode_norm", "credit/step_norm"),
        ("credit/zero_advantage_share", "credit/singleton_share"),
    ),
    "4 trust": (
        ("policy/behaviour_mismatch",),
        ("policy/skipped",),
        ("episode/aborted",),
        ("rollout/staleness",),
    ),
    "5 speed": (
        ("time/rollout", "time/update", "time/eval", "time/compile"),
        ("throughput/env_steps_per_s",),
    ),
}


def describe_metric(name: str) -> str:
    """Returns the description of a metric or, for a task type or panel, of the whole, or ""."""
    words = name.split("/")
    base = "/".join(words[:2])
    if words[0] in METHOD_DESCRIPTIONS and base not in DESCRIPTIONS:
        return METHOD_DESCRIPTIONS[words[0]].get(base, "")
    if words[0] == "val" and len(words) > 2:
        base = words[2]
    return DESCRIPTIONS.get(base) or DESCRIPTIONS.get(f"episode/{base}", "")
