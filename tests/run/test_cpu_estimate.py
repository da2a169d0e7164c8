"""The estimate of a run on CPUs, worked out by hand."""

import re

from gigpo_jax.config import default_config, resolve
from gigpo_jax.run.cpu_estimate import describe_cpu_estimate, measure_flops
from tests.models.shapes import SMALL


def test_hours_and_tokens_of_an_estimate() -> None:
    config = default_config()
    config.train.iterations, config.train.groups, config.train.group_size = 10, 4, 2
    config.env.max_steps = 5
    config.train.minibatch = 40
    config.sampling.max_prompt_tokens, config.sampling.max_response_tokens = 90, 10
    config = resolve(config)
    # 4 x 2 episodes of 5 steps of 100 tokens: 4,000 tokens. 10 x 4,000 x 6 x 135e6 x 4/3 FLOP take
    # 43,200 s, 12 hours, at 1 GFLOP/s.
    estimate = describe_cpu_estimate(config, SMALL["mha_tied"], 6 * 135_000_000, 1e9)
    assert re.match(
        r"estimate: \d+ CPU cores, \d+\.\d of \d+ GiB, up to 4,000 tokens an iteration and 12 hours in "
        r"all at 1 GFLOP/s",
        estimate,
    )
    assert describe_cpu_estimate(config, SMALL["mha_tied"], 6 * 1_000_000, 1e9) == ""
    assert 1e8 < measure_flops() < 1e14
