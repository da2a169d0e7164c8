"""The command gigpo preflight: whether a config fits a target, and what its programs do there."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.files import write_json
from gigpo_jax.devices.engine_split import check_engine, engine_split_size
from gigpo_jax.devices.exchange import local_rows
from gigpo_jax.devices.memory import ENGINE, REPLAYED, count_older_policies
from gigpo_jax.devices.mesh import learner_mesh, split_devices
from gigpo_jax.devices.server_config import server_config
from gigpo_jax.env_bridge.types import Observation
from gigpo_jax.learner.signals.table import signal_bytes
from gigpo_jax.models.decoder import DecoderConfig
from gigpo_jax.models.vision.images import token_grid
from gigpo_jax.models.vision.vision_config import MERGE, VisionConfig
from gigpo_jax.policy import check_shape
from gigpo_jax.rollout.environment import list_environments, split_tasks
from gigpo_jax.rollout.pictures import check_modality
from gigpo_jax.tools.preflight import report
from gigpo_jax.tools.preflight.compiled import FIX
from gigpo_jax.tools.preflight.engine_programs import PROGRAMS, compile_engine
from gigpo_jax.tools.preflight.learner_programs import compile_learner
from gigpo_jax.tools.preflight.shapes import ImageSizes, model_shape, run_arrays
from gigpo_jax.tools.preflight.targets import GIB, Chip, find_target, target_devices

# Largest part in memory -> key that makes it smaller.
KEYS = {
    "KV cache": ("engine", "slots"),
    "temporaries": ("batch", "rows"),
    "older policies": ("train", "max_staleness"),
}


def run(config: ConfigDict, target_name: str, out: str, *, server: bool = False) -> int:
    """Compiles a config's programs for a target; prints their needs.

    Args:
      config: Resolved config.
      target_name: Key of `targets.TARGETS`.
      out: JSON file for the numbers, or "".
      server: Whether `gigpo engine` runs the programs; it trains nothing.

    Raises:
      InputError: there is no such target or model, or the config does not fit; then `out` was
        written.
    """
    target = find_target(target_name)
    shape = model_shape(config)
    check_shape(config, shape)
    # Devices before anything else: jax must not have chosen its platform yet.
    devices = target_devices(target)
    if server:
        config = server_config(config, shape, devices, target.chip.memory)
    mesh = learner_mesh(config, devices)
    _, engine_devices = split_devices(config, devices)
    if not server:
        # Raises if the rows cannot be split over the mesh.
        local_rows(mesh, config.batch.rows)
    signals = signal_bytes(config, shape)
    tensor = engine_split_size(config, shape, mesh, target.chip.memory, signals, trains=not server)
    if config.engine.name == "jax":
        check_engine(config, shape, mesh, tensor)
    images = None
    if shape.vision is not None:
        images = _largest_images(config, shape.vision)
    result = {"target": target_name, "devices": len(devices)}
    result |= examine(
        config, shape, mesh, target.chip, tensor, images, engine_devices, trains=not server
    )
    print(report.format_report(result))
    # Written before the check: the numbers of what does not fit say what to change.
    if out:
        write_json(Path(out), result)
    check_fit(config, result)
    return 0


def _largest_images(config: ConfigDict, vision: VisionConfig) -> ImageSizes:
    """The largest images of the environments' first observations.

    Raises:
      InputError: an observation has no image.
    """
    sizes = []
    for observation in _first_observations(config):
        check_modality(observation.images, reads_images=True)
        patches = [MERGE**2 * math.prod(token_grid(vision, image)) for image in observation.images]
        sizes.append(ImageSizes(len(patches), max(patches)))
    return max(sizes, key=lambda size: size.number * size.patches)


def _first_observations(config: ConfigDict) -> list[Observation]:
    """Returns the first observation of the first task of `env.split` in each environment."""
    observations = []
    for environment in list_environments(config):
        env = environment.make()
        try:
            task = split_tasks(environment.config, env)[0]
            observations.append(env.reset(task))
        finally:
            env.close()
    return observations


def examine(
    config: ConfigDict,
    shape: DecoderConfig,
    mesh: jax.sharding.Mesh,
    chip: Chip,
    tensor: int,
    images: ImageSizes | None,
    engine_devices: Sequence[jax.Device],
    *,
    trains: bool = True,
) -> dict[str, Any]:
    """The report's numbers: bytes, operations and seconds of one device.

    `tensor`, `images` and `engine_devices` are arguments of `compile_engine`. Without `trains` the
    report has the engine's programs and arrays alone.
    """
    arrays = run_arrays(config, shape, mesh)
    programs = list(compile_learner(config, shape, mesh, arrays, images)) if trains else []
    cache = None
    weight_bytes = 0
    if config.engine.name == "jax":
        engine = compile_engine(config, shape, arrays, tensor, images, engine_devices)
        programs += engine.programs
        cache = engine.cache
        if engine.copies_weights:
            weight_bytes = report.device_bytes(engine.params)
    array_names = report.name_arrays(arrays, cache)
    experts = shape.experts.count if shape.experts is not None else 0
    measured = {
        compiled.name: report.measure_program(compiled, chip, array_names, experts)
        for compiled in programs
    }
    # Without a copy of their own the engine's weights are the result of the hand-over.
    if not weight_bytes and "hand-over" in measured:
        weight_bytes = measured["hand-over"]["outputs"]
    staleness = config.train.max_staleness
    resident = {
        "parameters": report.device_bytes((arrays.state.params, arrays.policy.frozen)),
        "optimizer": report.device_bytes(arrays.state.opt_state),
        "reference policy": report.device_bytes(arrays.reference),
        **{name: report.device_bytes(tree) for name, tree in arrays.signals.items()},
        "older policies": count_older_policies(config) * report.device_bytes(arrays.state.params),
        "engine's weights": max(staleness, 1) * weight_bytes,
        "KV cache": measured["decode"]["aliased"] if "decode" in measured else 0,
    }
    if not trains:
        resident |= {name: 0 for name in resident if name not in ("parameters", *ENGINE)}
    for name, program in measured.items():
        # A donated argument is overwritten by its result: only the other results are new.
        new_bytes = program["outputs"] - program["aliased"]
        if name in ("hand-over", "layers apart") and not engine_devices:
            new_bytes = 0  # counted as the engine's weights
        # Parts that stay in memory, without what the program itself allocates.
        used = sum(_parts_in_memory(config, resident, name).values())
        program["left"] = chip.memory - used - program["temporaries"] - new_bytes
    return {
        "memory": chip.memory,
        "engine_devices": len(engine_devices),
        "resident": resident,
        "programs": measured,
        "iteration": {
            name: program["seconds"] * program["runs"] for name, program in measured.items()
        },
    }


def _parts_in_memory(config: ConfigDict, resident: dict[str, int], program: str) -> dict[str, int]:
    """The parts in a device's memory during a program."""
    has_engine_devices = config.engine.devices > 0
    is_learner = program not in PROGRAMS or (has_engine_devices and program == "hand-over")
    # The engine frees its memory during updates, except when it generates at the same time
    # (max_staleness). Devices of its own hold its parts and none of the learner's.
    if has_engine_devices or (is_learner and not config.train.max_staleness):
        return {name: size for name, size in resident.items() if (name in ENGINE) != is_learner}
    # Minibatches are made when the rollout is over.
    return {name: size for name, size in resident.items() if is_learner or name != REPLAYED}


def check_fit(config: ConfigDict, result: dict[str, Any]) -> None:
    """Refuses a config that does not fit, with the key of the largest part in memory.

    Raises:
      InputError: a program needs more memory than a device has.
    """
    programs = result["programs"]
    # The program with least room decides which part is too large.
    tightest = min(programs, key=lambda name: programs[name]["left"])
    free_bytes = programs[tightest]["left"]
    if free_bytes >= 0:
        return
    sizes = _parts_in_memory(config, result["resident"], tightest)
    sizes = sizes | {"temporaries": programs[tightest]["temporaries"]}
    largest = max(sizes, key=lambda name: sizes[name])
    section, name = KEYS.get(largest, ("mesh", "fsdp"))
    raise InputError(
        f"with the program '{tightest}' a device of {result['target']} lacks "
        f"{-free_bytes / GIB:.1f} GiB",
        key=f"config.{section}.{name}",
        value=config[section][name],
        fix=FIX,
    )
