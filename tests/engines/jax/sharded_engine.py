"""Programs that tests/engines/jax/test_several_devices.py starts: `sharded_engine.py mesh|host
ARGS...`.

Both print "equal" if responses are equal to one device's.
"""

import asyncio
import re
import sys
from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from gigpo_jax.devices.mesh import make_mesh, shard_by_rules
from gigpo_jax.engines.base import Completion, SamplingParams
from gigpo_jax.engines.jax.jax_engine import EngineSettings, JaxEngine
from gigpo_jax.models import decoder
from tests.engines.jax.random_model import CONFIG, EXPERTS, requests, run, weights
from tests.models.shapes import VL, VL3, random_params
from tests.pictures import ask

COLLECTIVE = re.compile(r"= \S+ (all-\w+|reduce-scatter|collective-\w+)")
# Some requests have top-p or top-k.
SETTINGS = EngineSettings(
    slots=16, max_length=64, prefill_buckets=(48,), prefill_rows=(2,), cuts_tokens=True
)
CHUNKS = EngineSettings(
    slots=16,
    max_length=64,
    prefill_rows=(2,),
    prefill_chunk=16,
    keep_responses=True,
    cuts_tokens=True,
)


def responses(
    params: decoder.Params, mesh: jax.sharding.Mesh | None, settings: EngineSettings = SETTINGS
) -> list[Completion]:
    """Responses to requests of all kinds; of a mesh also checks where arrays are and what devices
    send each other.
    """
    with JaxEngine(CONFIG, params, settings) as engine:
        engine.warmup()
        count = engine.compile_count
        # More than slots at once, then too few to fill the parts of the slots.
        made = [run(*(engine.generate(p, s) for p, s in requests(n, seed=n))) for n in (29, 3)]
        reused = engine.reused_tokens
        # Some lose their slots on the way.
        for calls in run(*(talk(engine, number) for number in range(20))):
            made.append(calls)
        assert (engine.reused_tokens > reused) == settings.keep_responses
        assert engine.compile_count == count
        if mesh is not None:
            tensor = max(mesh.shape["tensor"], settings.tensor)
            programs = engine._programs
            devices = set(settings.devices or mesh.devices.flat)
            key = programs.cache.key
            assert key.sharding.shard_shape(key.shape) == (
                2,
                settings.slots * tensor // len(devices),
                2 // tensor,
                64,
                8,
            )
            layers = engine._newest.params["layers"]
            apart = isinstance(layers, tuple)  # bfloat16
            kernel = (layers[0] if apart else layers)["gate"]["kernel"]
            assert kernel.sharding.shard_shape(kernel.shape) == (
                (48, 32) if apart else (2, 32, 48 // tensor)
            )
            assert key.devices() == kernel.devices() == devices
            for name, program in programs._compiled.items():
                sent = COLLECTIVE.findall(program.as_text())
                assert bool(sent) == (
                    name == ("hand-over",)
                    or (tensor > 1 and name not in (("empty",), ("copy", 256)))
                ), name
    return [completion for completions in made for completion in completions]


async def talk(engine: JaxEngine, number: int) -> list[Completion]:
    """A conversation of three calls."""
    prompt = [number, *range(7)]
    completions: list[Completion] = []
    for turn in range(3):
        params = SamplingParams(max_tokens=4, key=(number, turn), session=(number, 0))
        completions.append(await engine.generate(prompt, params))
        prompt = [*prompt, *completions[-1].tokens.tolist(), turn]
    return completions


def sharded(
    sizes: tuple[int, int, int], devices: Sequence[jax.Device] | None = None
) -> tuple[decoder.Params, jax.sharding.Mesh]:
    """The parameters over some devices, by default all of all hosts, as a learner has them."""
    mesh = make_mesh(*sizes, devices=devices)
    where, _ = shard_by_rules(mesh, decoder.logical_axes(CONFIG), decoder.abstract_params(CONFIG))
    return jax.device_put(jax.tree.map(np.asarray, weights(0)), where), mesh


def compare(expected: list[Completion], found: list[Completion], atol: float = 1e-4) -> None:
    for one, other in zip(expected, found, strict=True):
        assert one.tokens.tolist() == other.tokens.tolist()
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=atol, rtol=0)


def mesh() -> None:
    """Engines on 8 devices: nothing to gather, `tensor`, `fsdp` with chunks, split only there, its
    own, bfloat16.
    """
    expected = responses(weights(0), None)
    assert {s.temperature for _, s in requests(29, seed=29)} == {0.0, 0.7, 1.0}
    for sizes in ((8, 1, 1), (2, 2, 2)):
        compare(expected, responses(*sharded(sizes)))
    params, devices = sharded((2, 4, 1))
    compare(expected, responses(params, devices, CHUNKS))
    compare(expected, responses(params, devices, replace(SETTINGS, tensor=2)))
    own = replace(SETTINGS, tensor=2, devices=tuple(jax.devices()[4:]))
    compare(expected, responses(*sharded((2, 2, 1), jax.devices()[:4]), own))
    experts(devices)
    # Not split: sums of parts are rounded otherwise. A slot for every conversation: which ones lose
    # theirs depends on the time of their calls, and a prompt that is read again on the rounding.
    half = replace(CHUNKS, dtype=jnp.bfloat16, slots=32)
    compare(responses(weights(0), None, half), responses(*sharded((2, 4, 1)), half), atol=5e-3)


def experts(devices: jax.sharding.Mesh) -> None:
    """Of a model with experts: a part of them on each of two devices, prompts in chunks."""
    settings = replace(CHUNKS, keeps_routes=True)
    params = jax.tree.map(np.asarray, random_params(EXPERTS))
    where, _ = shard_by_rules(
        devices, decoder.logical_axes(EXPERTS), decoder.abstract_params(EXPERTS)
    )
    found = []
    for given, tensor in ((params, 1), (jax.device_put(params, where), 2)):
        with JaxEngine(EXPERTS, given, replace(settings, tensor=tensor)) as engine:
            found.append(run(*(engine.generate(p, s) for p, s in requests(19))))
            if tensor > 1:
                kernel = engine._newest.params["layers"]["expert_up"]["kernel"]
                assert kernel.sharding.shard_shape(kernel.shape)[:2] == (2, 2)
    compare(*found)
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one.routes, other.routes)


def host(index: str, port: str) -> None:
    """One host of two, which share the parameters; each has its own requests, and its own number of
    them.
    """
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, int(index), initialization_timeout=200)
    made = requests(7 + 4 * int(index), seed=int(index))
    found = []
    last = [jax.local_devices(process)[-1] for process in range(2)]
    others = [device for device in jax.devices() if device not in last]
    own = replace(SETTINGS, devices=(last[jax.process_index()],))
    for params, settings in (
        (jax.tree.map(np.asarray, weights(0)), SETTINGS),
        (sharded((1, 4, 1))[0], SETTINGS),
        (sharded((1, 2, 1), others)[0], own),
    ):
        with JaxEngine(CONFIG, params, settings) as engine:
            found.append(run(*(engine.generate(p, s) for p, s in made)))
            engine.update_weights(params, 1)
            (newer,) = run(engine.generate(*made[0]))
            assert newer.version == 1
            compare(found[-1][:1], [newer])
    compare(*found[:2])
    compare(*found[1:])


def pictures(index: str, port: str) -> None:
    """As `host`, of models that read images: every part encodes some, prompts are read whole and
    in chunks.
    """
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, int(index), initialization_timeout=200)
    numbers = range(5 + 2 * int(index))
    for config, chunk in ((VL, 0), (VL3, 8)):
        params = jax.tree.map(np.asarray, random_params(config))
        where, _ = shard_by_rules(
            make_mesh(1, 4, 2), decoder.logical_axes(config), decoder.abstract_params(config)
        )
        settings = EngineSettings(
            slots=4, max_length=136, prefill_buckets=(128,), prefill_rows=(2,), prefill_chunk=chunk
        )
        found = []
        for given in (params, jax.device_put(params, where)):
            with JaxEngine(config, given, settings) as engine:
                found.append(asyncio.run(ask(engine, numbers)))
        compare(*found)


if __name__ == "__main__":
    {"mesh": mesh, "host": host, "pictures": pictures}[sys.argv[1]](*sys.argv[2:])
    print("equal")
