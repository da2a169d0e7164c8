"""A program that tests/sampling/test_jax_engine.py starts with 4 devices: the engine over a mesh and on one device."""

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from gigpo_jax.models import qwen2
from gigpo_jax.sampling.jax_engine import EngineSettings, JaxEngine
from tests.sampling.test_jax_engine import CONFIG, requests, run, weights

RULES = {"heads": "tensor", "kv_heads": "tensor", "mlp": "tensor", "vocab": "tensor", "embed": "fsdp"}


def main() -> None:
    """Prints "equal" if responses are the same and nothing compiled after the warm-up."""
    assert jax.device_count() == 4
    mesh = Mesh(np.array(jax.devices()).reshape(1, 2, 2), ("data", "fsdp", "tensor"))

    def spread(names: tuple[str, ...], leaf: jax.Array) -> jax.Array:
        return jax.device_put(leaf, NamedSharding(mesh, P(*(RULES.get(name) for name in names))))

    params = weights(0)
    sharded = jax.tree.map(spread, qwen2.logical_axes(CONFIG), params, is_leaf=lambda x: isinstance(x, tuple))
    made = requests(9, seed=6)
    responses = []
    for each in (params, sharded):
        with JaxEngine(
            CONFIG, each, EngineSettings(slots=4, max_length=64, prefill_buckets=(48,), prefill_rows=(4,))
        ) as engine:
            engine.warmup()
            count = engine.compile_count
            responses.append(run(*(engine.generate(p, s) for p, s in made)))
            assert engine.compile_count == count
            if each is sharded:
                assert engine._programs._cache.key.sharding.shard_shape((2, 4, 2, 64, 8)) == (2, 4, 1, 64, 8)
    for one, other in zip(*responses, strict=True):
        assert one.tokens.tolist() == other.tokens.tolist()
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4, rtol=0)
    print("equal")


if __name__ == "__main__":
    main()
