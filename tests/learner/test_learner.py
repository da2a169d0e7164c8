"""What a config makes of the loss, and when learning ends."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gigpo_jax.config import default_config, resolve
from gigpo_jax.core.errors import InputError
from gigpo_jax.learner import learner as learner_module
from gigpo_jax.learner.finite import FiniteCheck, NotFinite
from gigpo_jax.learner.learner import MISMATCH, _summarise_updates, mean_over_hosts
from gigpo_jax.learner.objective import make_objective
from gigpo_jax.rl.losses import surrogate_cost


def count_updates(skipped: str) -> int:
    """Gives a check the metrics of updates, "x" a skipped one; returns their number until it raises."""
    check = FiniteCheck()
    for number, kind in enumerate(skipped, 1):
        try:
            check.add({"policy/skipped": jnp.float32(kind == "x")})
        except NotFinite:
            return number
    with pytest.raises(NotFinite, match=r"lower config\.optim\.lr"):
        check.finish()
    return len(skipped)


def test_three_skipped_updates_in_a_row_end_the_run_one_update_late() -> None:
    assert count_updates("xxx.") == 4
    assert count_updates("xx.xx..xxxx") == 11
    assert count_updates(".xxx") == 4  # the last one is read when there is no newer one


def test_the_metrics_of_the_newest_update_are_not_read() -> None:
    class OnTheDevice:
        def __float__(self) -> float:
            raise AssertionError("the host waits for the device")

    FiniteCheck().add({"policy/skipped": OnTheDevice()})  # type: ignore[dict-item]


def test_a_skipped_update_and_the_largest_ratio_show_among_others() -> None:
    names = ("policy/skipped", "policy/ratio_max", "policy/loss", MISMATCH)
    rows = [(0.0, 1.5, 1.0, 0.25), (1.0, 4.0, 2.0, 0.5), (0.0, 2.0, 6.0, 0.75)]
    metrics = _summarise_updates([dict(zip(names, row, strict=True)) for row in rows])
    # Only the first update is of the policy that played.
    assert metrics == dict(zip(names, (1.0, 4.0, 3.0, 0.25), strict=True))


def test_steps_and_tokens_of_hosts_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    # The other host has three times as much.
    monkeypatch.setattr(learner_module, "all_hosts", lambda own: np.stack([own, 3 * own]))
    metrics = {"batch/tokens": 7.0, "batch/padding_share": 0.25, "batch/steps": 2.0}
    assert mean_over_hosts(metrics) == {
        "batch/tokens": 28.0,
        "batch/padding_share": 0.5,
        "batch/steps": 8.0,
    }


def test_importance_weights_are_truncated_only_where_they_are_asked_for() -> None:
    config = default_config()
    assert make_objective(resolve(config)).loss.correction == "none"
    config.engine.name, config.rl.importance_cap = "vllm", 1.5
    loss = make_objective(resolve(config)).loss
    assert (loss.correction, loss.importance_cap) == ("truncated", 1.5)
    config.rl.importance_correction, config.rl.importance_cap = (
        "none",
        default_config().rl.importance_cap,
    )
    assert make_objective(resolve(config)).loss.correction == "none"


def test_without_a_dual_clip_the_loss_of_a_bad_token_is_unbounded() -> None:
    config = default_config()
    config.rl.dual_clip = 0.0
    loss = make_objective(resolve(config)).loss
    clips = {"clip_low": loss.clip_low, "clip_high": loss.clip_high, "dual_clip": loss.dual_clip}
    advantage = jnp.asarray([-1.0, 0.0])

    def cost(ratio: jax.Array) -> jax.Array:
        return surrogate_cost(ratio, advantage, **clips)[0].sum()

    value, gradient = jax.value_and_grad(cost)(jnp.asarray([7.0, 7.0]))
    assert (float(value), gradient.tolist()) == (7.0, [1.0, 0.0])  # with the default 3.0 and 0.0


def test_p_of_hoelder_falls_over_the_iterations_and_gmpo_has_the_geometric_mean() -> None:
    config = default_config()
    config.rl.algorithm = "hoelder"
    loss = make_objective(resolve(config)).loss
    assert (loss.ratio, loss.mean, loss.dual_clip) == ("hoelder", "responses", float("inf"))
    assert [float(loss.power(k)) for k in (0, 75, 150)] == [1.0, 0.0, -1.0]
    config.rl.algorithm = "gmpo"
    loss = make_objective(resolve(config)).loss
    assert (loss.ratio, float(loss.power(0)), float(loss.power(100))) == (
        "hoelder_tokens",
        0.0,
        0.0,
    )
    assert (loss.clip_low, loss.clip_high) == pytest.approx((1 - 0.670320, 1.491825 - 1), abs=1e-6)
    config.rl.algorithm, config.rl.ratio = "gigpo", "product"  # any advantage with any ratio
    assert make_objective(resolve(config)).loss.ratio == "product"
    assert resolve(config).rl.old_logprobs == "recompute"


def test_algorithms_average_their_loss_as_their_papers_do() -> None:
    for name, mean in (("gigpo", "tokens"), ("gspo", "responses"), ("dr_grpo", "constant")):
        config = default_config()
        config.rl.algorithm = name
        loss = make_objective(resolve(config)).loss
        assert (loss.mean, loss.constant) == (mean, config.sampling.max_response_tokens)
        config.rl.loss_mean = "tokens"
        assert make_objective(resolve(config)).loss.mean == "tokens"


def test_the_narrow_clip_of_gspo_needs_exact_old_log_probabilities() -> None:
    config = default_config()
    config.rl.algorithm, config.rl.old_logprobs = "gspo", "engine"
    with pytest.raises(
        InputError,
        match=r"config\.rl\.old_logprobs='engine': rounding in a bfloat16 engine .*ratio=sequence .* use recompute",
    ):
        resolve(config)
    config.engine.dtype = "float32"
    assert resolve(config).rl.old_logprobs == "engine"
