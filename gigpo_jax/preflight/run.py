"""--mode=preflight: whether a config fits a target, and what its programs do there."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from gigpo_jax.errors import InputError
from gigpo_jax.files import write_json
from gigpo_jax.models.images import grid_of
from gigpo_jax.models.qwen2 import Qwen2Config
from gigpo_jax.models.vision_config import MERGE, VisionConfig
from gigpo_jax.policy import check_vision
from gigpo_jax.preflight import programs, report
from gigpo_jax.preflight.targets import GIB, Chip, devices_of, find_target
from gigpo_jax.rollout.environment import first_observations
from gigpo_jax.rollout.pictures import check_kind
from gigpo_jax.run import partition
from gigpo_jax.run.memory import ENGINE, check_engine, engine_tensor

LEARNER = ("update", "score", "critic", "values")  # programs that run while the engine has freed its memory
# What is largest -> the key that makes it smaller.
KEYS = {
    "KV cache": ("engine", "slots"),
    "temporaries": ("batch", "rows"),
    "older policies": ("train", "max_staleness"),
}


def run(config: ConfigDict, target: str, out: str) -> int:
    """Compiles the programs of a config for a target and prints what they need.

    Args:
      config: as from `config.resolve`.
      target: a name of `targets.TARGETS`.
      out: a JSON file for the same, or "".

    Raises:
      InputError: there is no such target or model, or the config does not fit; then `out` was written.
    """
    found = find_target(target)
    shape = programs.model_shape(config)
    check_vision(config, shape.vision)
    devices = devices_of(found)
    mesh, own = partition.learner_mesh(config, devices), partition.split_devices(config, devices)[1]
    partition.local_rows(mesh, config.batch.rows)
    tensor = engine_tensor(config, shape, mesh, found.chip.memory)
    if config.engine.name == "jax":
        check_engine(config, shape, mesh, tensor)
    shown = None if shape.vision is None else _shown(config, shape.vision)
    result = {"target": target, "devices": len(devices)}
    result |= examine(config, shape, mesh, found.chip, tensor, shown, own)
    print(report.text(result))
    if out:
        write_json(Path(out), result)
    check(config, result)
    return 0


def _shown(config: ConfigDict, vision: VisionConfig) -> programs.Shown:
    """The largest images of the environments' first observations; raises InputError if one has none."""
    shown = []
    for observation in first_observations(config):
        check_kind(observation.images, reads=True)
        sizes = [MERGE**2 * math.prod(grid_of(vision, image)) for image in observation.images]
        shown.append(programs.Shown(len(sizes), max(sizes)))
    return max(shown, key=lambda one: one.number * one.patches)


def examine(
    config: ConfigDict,
    shape: Qwen2Config,
    mesh: jax.sharding.Mesh,
    chip: Chip,
    tensor: int,
    shown: programs.Shown | None,
    own: Sequence[jax.Device],
) -> dict[str, Any]:
    """Everything that is reported: bytes, operations and seconds, of one device.

    `tensor`, `shown` and `own`: as for `engine_programs`.
    """
    held, cache, weights = programs.arrays(config, shape, mesh), None, 0
    compiled = list(programs.learner_programs(config, shape, mesh, held, shown))
    if config.engine.name == "jax":
        more, cache, ready = programs.engine_programs(config, shape, held, tensor, shown, own)
        compiled += more
        weights = report.device_bytes(ready) if own or any(one.name == "layers apart" for one in more) else 0
    known = report.known_arrays(held, cache)
    measured = {one.name: report.measured(one, chip, known) for one in compiled}
    weights = weights or measured.get("hand-over", {"outputs": 0})["outputs"]
    older = config.train.max_staleness
    resident = {
        "parameters": report.device_bytes((held.state.params, held.frozen)),
        "optimizer": report.device_bytes(held.state.opt_state),
        "reference policy": report.device_bytes(held.reference),
        "teacher": report.device_bytes(held.teacher),
        "critic": report.device_bytes(held.critic),
        "older policies": older * report.device_bytes(held.state.params),
        "engine's weights": max(older, 1) * weights,
        "KV cache": measured["decode"]["aliased"] if "decode" in measured else 0,
    }
    for name, one in measured.items():
        made = 0 if name in ("hand-over", "layers apart") and not own else one["outputs"] - one["aliased"]
        one["left"] = chip.memory - sum(_held(config, resident, name).values()) - one["temporaries"] - made
    return {
        "memory": chip.memory,
        "engine_devices": len(own),
        "resident": resident,
        "programs": measured,
        "iteration": {name: one["seconds"] * one["runs"] for name, one in measured.items()},
    }


def _held(config: ConfigDict, resident: dict[str, int], program: str) -> dict[str, int]:
    """What is in the memory of a device while it runs a program."""
    own = config.engine.devices > 0
    learner = program in LEARNER or (own and program == "hand-over")
    if own or (learner and not config.train.max_staleness):
        return {part: size for part, size in resident.items() if (part in ENGINE) != learner}
    return resident


def check(config: ConfigDict, result: dict[str, Any]) -> None:
    """Refuses a config that does not fit; the message names the key of the largest part in memory.

    Raises:
      InputError: a program needs more memory than a device has.
    """
    tightest = min(result["programs"], key=lambda name: result["programs"][name]["left"])
    one = result["programs"][tightest]
    if one["left"] >= 0:
        return
    parts = _held(config, result["resident"], tightest) | {"temporaries": one["temporaries"]}
    section, name = KEYS.get(max(parts, key=lambda part: parts[part]), ("mesh", "fsdp"))
    raise InputError(
        f"config.{section}.{name}={config[section][name]}: with the program '{tightest}' a device of "
        f"{result['target']} lacks {-one['left'] / GIB:.1f} GiB; {programs.FIX}"
    )
