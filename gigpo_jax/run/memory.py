"""Whether a run fits its devices, before anything is allocated."""

import math
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.errors import InputError
from gigpo_jax.models import lora
from gigpo_jax.models.cache import cache_length
from gigpo_jax.models.hf_config import read_config
from gigpo_jax.models.qwen2 import Qwen2Config, param_count
from gigpo_jax.models.vision_config import MERGE, VisionConfig
from gigpo_jax.rl.algorithms import algorithm
from gigpo_jax.run import partition

GIB, MIB = 2.0**30, 2**20
UNKNOWN = (2**31 - 1) * MIB  # hosts exchange MiB in 32 bits
ENGINE, UPDATE = ("engine's weights", "KV cache"), ("gradients", "activations")  # parts of a plan


def memory_plan(
    config: ConfigDict, shape: Qwen2Config, devices: int, hosts: int = 1, tensor: int = 0, on_cpu: bool = False
) -> dict[str, float]:
    """Bytes on each device by purpose, without XLA's temporaries and fragmentation.

    Parameters are split over `fsdp` and `tensor`, rows over `data` and `fsdp`; for the engine see `engine_plan`. With
    an adapter, gradients, optimizer, reference policy, teacher and older policies are of its size. A critic of its own
    has float32 parameters and gradients, and moments; a value head is too small to count. How large pictures are is not
    known yet: they are taken to fill the rows of an update, and the prompts of a prefill.

    Args:
      config: as from `config.resolve`.
      shape: of the model.
      devices: in the mesh, over all hosts.
      hosts: of equally many devices.
      tensor: devices that split the engine's weights; 0: `mesh.tensor`.
      on_cpu: whether the devices are CPUs, on which a bfloat16 engine has weights of its own.
    """
    mesh, trees = _mesh(config, devices), _parameters(config, shape)
    parts = mesh["fsdp"] * mesh["tensor"]
    kept_bytes = sum(number * jnp.dtype(dtype).itemsize for dtype, number in trees)
    dtype, trained = trees[-1]
    trained_bytes = trained * jnp.dtype(dtype).itemsize
    critic = 0
    if config.critic.kind == "model":
        own = read_config(Path(config.critic.path)) if config.critic.path else shape
        critic = param_count(replace(own, value_head=True))
    compute = jnp.dtype(config.model.compute_dtype).itemsize
    rows = -(-config.batch.rows // (mesh["data"] * mesh["fsdp"]))
    tokens = rows * config.batch.row_length
    kept = _kept(config.model.remat, shape)
    moments = 4 + jnp.dtype(config.optim.moment_dtype).itemsize
    engine = engine_plan(config, shape, devices, hosts, tensor, on_cpu)
    if config.engine.devices:  # weights are gathered here, then sent there
        engine = {"engine's weights": engine["engine's weights"] / _versions(config), "KV cache": 0}
    return {
        "parameters": kept_bytes / parts,
        "gradients": trained * 4 / parts,
        "optimizer": trained * moments / parts,
        "reference policy": trained_bytes / parts * (config.rl.kl_coef > 0),
        "teacher": trained_bytes / parts * ("teacher" in algorithm(config.rl.algorithm, config.rl.settings).needs),
        "critic": critic * (8 + moments) / parts,
        "older policies": trained_bytes / parts * config.train.max_staleness,
        **engine,
        "activations": tokens * shape.num_layers * kept * compute
        + min(config.batch.logprob_chunk, tokens) * shape.vocab_size * 4 * 2,
        "activations of the vision tower": _tower(config, shape.vision, rows) if shape.vision else 0,
    }


def engine_plan(
    config: ConfigDict, shape: Qwen2Config, devices: int, hosts: int = 1, tensor: int = 0, on_cpu: bool = False
) -> dict[str, float]:
    """Bytes of the in-process engine on each of its devices; arguments as for `memory_plan`.

    It has its own copy of parameters that are on other devices, split over `fsdp`, of another dtype, or bfloat16 on
    CPUs: one for each update that waiting rollouts sample from. Its cache is split over its devices of a host.
    """
    mesh, own, engine = _mesh(config, devices), config.engine.devices, jnp.dtype(config.engine.dtype)
    in_process, tensor = config.engine.name == "jax", tensor or mesh["tensor"]
    moved = own or mesh["fsdp"] > 1 or tensor > mesh["tensor"] or (on_cpu and engine == jnp.bfloat16)
    copied = sum(n for dtype, n in _parameters(config, shape) if moved or jnp.dtype(dtype) != engine)
    tokens = config.sampling.max_prompt_tokens + config.sampling.max_response_tokens
    slot = cache_length(tokens, config.engine.prefill_chunk)
    cache = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * config.engine.slots * slot
    sizes = (
        in_process * copied * engine.itemsize / tensor * _versions(config),
        in_process * cache * engine.itemsize / (own or devices / hosts),
    )
    return dict(zip(ENGINE, sizes, strict=True))


def _versions(config: ConfigDict) -> int:
    """How many updates the engine has the weights of."""
    return max(1, config.train.max_staleness)


def _mesh(config: ConfigDict, devices: int) -> dict[str, int]:
    """The devices along each axis of the mesh."""
    known = math.prod(size for size in config.mesh.values() if size != -1)
    return {name: size if size != -1 else devices // known for name, size in config.mesh.items()}


def _parameters(config: ConfigDict, shape: Qwen2Config) -> list[tuple[str, int]]:
    """Dtype and number of the parameters of the model, and of an adapter; the last ones are trained."""
    found = [(config.model.param_dtype, param_count(shape))]
    if config.model.lora.rank:
        asked = config.model.lora
        pairs = lora.LoraConfig(asked.rank, asked.alpha, tuple(asked.targets), asked.vision)
        found.append(("float32", lora.param_count(shape, pairs)))
    return found


def _kept(remat: str, shape: Qwen2Config | VisionConfig) -> int:
    """Numbers that a layer keeps of a token or patch for the gradient."""
    width, inner = shape.hidden_size, shape.intermediate_size
    mixed = shape.num_heads * shape.head_dim if isinstance(shape, Qwen2Config) else 0  # a tower does not keep it
    return {
        "offload": 0,
        "full": width,
        "attention": width + mixed,
        "dots": 6 * width + 2 * inner,
        "none": 12 * width + 4 * inner,  # about
    }[remat]


def _tower(config: ConfigDict, vision: VisionConfig, rows: int) -> float:
    """Bytes of the tower in an update of so many rows, or in a prefill, which has one layer at a time, if more."""
    kept = vision.depth * _kept(config.model.remat, vision) * jnp.dtype(config.model.compute_dtype).itemsize
    update = rows * config.batch.row_length * kept
    prompts = max(config.engine.prefill_rows) * config.sampling.max_prompt_tokens * (config.engine.name == "jax")
    return MERGE**2 * max(update, prompts * _kept("dots", vision) * jnp.dtype(config.engine.dtype).itemsize)


def peak(config: ConfigDict, plan: Mapping[str, float]) -> float:
    """Bytes of a plan that are needed at once."""
    return sum(_at_peak(config, plan).values())


def _at_peak(config: ConfigDict, plan: Mapping[str, float]) -> dict[str, float]:
    """The parts that are needed at once: an engine has its memory during rollouts, gradients during updates.

    Both are there if rollouts run during updates on the same devices.
    """
    engine, update = (sum(plan.get(name, 0) for name in names) for names in (ENGINE, UPDATE))
    together = config.train.max_staleness and not config.engine.devices
    freed = () if together else UPDATE if engine > update else ENGINE
    return {name: size for name, size in plan.items() if name not in freed}


def _fullest(
    config: ConfigDict, shape: Qwen2Config, devices: int, hosts: int, tensor: int, on_cpu: bool
) -> dict[str, float]:
    """The plan of the learner's devices or, if it needs more, of the engine's own."""
    of = (memory_plan, engine_plan) if config.engine.devices else (memory_plan,)
    plans = [plan(config, shape, devices, hosts, tensor, on_cpu) for plan in of]
    return max(plans, key=lambda plan: peak(config, plan))


def check_memory(
    config: ConfigDict, shape: Qwen2Config, devices: int, hosts: int = 1, tensor: int = 0, limit: int | None = None
) -> None:
    """Refuses a run that cannot fit; the message names the key of the largest part at the peak and shows the plan.

    Args:
      config, shape, devices, hosts, tensor: as for `memory_plan`.
      limit: bytes of one device; None: the least that a device of any host reports, unchecked if none reports any.
        Then all hosts must call this together.

    Raises:
      InputError: the plan needs more.
    """
    plan = _fullest(config, shape, devices, hosts, tensor, _on_cpu(limit))
    limit = limit or _device_bytes()
    if limit is None or peak(config, plan) <= limit:
        return
    needed = _at_peak(config, plan)
    shown = ", ".join(f"{name} {size / GIB:.1f}" for name, size in plan.items() if size)
    ahead, own = config.train.max_staleness, config.engine.devices > 0
    splits = own or not ahead  # see `check_engine`
    section, name = {
        "KV cache": ("engine", "slots"),
        "engine's weights": ("engine", "tensor") if splits and ahead <= 1 else ("train", "max_staleness"),
        "older policies": ("train", "max_staleness"),
        "activations": ("batch", "rows"),
        "activations of the vision tower": ("batch", "rows"),
    }.get(max(needed, key=lambda part: needed[part]), ("mesh", "fsdp"))
    raise InputError(
        f"config.{section}.{name}={config[section][name]}: a device has {limit / GIB:.1f} GiB, the plan needs "
        f"{peak(config, plan) / GIB:.1f} ({shown}); use more devices (mesh.fsdp"
        + "; engine.tensor splits the engine's weights" * splits
        + "), fewer engine.slots or batch.rows"
        + ", or a smaller train.max_staleness" * bool(ahead)
    )


def engine_tensor(config: ConfigDict, shape: Qwen2Config, mesh: jax.sharding.Mesh, limit: int | None = None) -> int:
    """Over how many devices the in-process engine splits its weights: `engine.tensor`, or as few as fit.

    Args:
      config, shape: as for `memory_plan`.
      mesh: of the learner.
      limit: as for `check_memory`.
    """
    least = mesh.shape["tensor"]
    if config.engine.tensor or config.engine.name != "jax" or _both_send(config, mesh):
        return config.engine.tensor or least
    on_cpu, limit, here = _on_cpu(limit), limit or _device_bytes(), _host_devices(mesh)
    for tensor in _tensors(config, shape, mesh):
        plan = _fullest(config, shape, mesh.size, mesh.size // here, tensor, on_cpu)
        if limit is None or peak(config, plan) <= limit:
            return tensor
    return least


def check_engine(config: ConfigDict, shape: Qwen2Config, mesh: jax.sharding.Mesh, tensor: int) -> None:
    """Refuses a mesh over which the in-process engine cannot spread its heads and slots.

    Args:
      config, shape: as for `memory_plan`.
      mesh: of the learner.
      tensor: as from `engine_tensor`.

    Raises:
      InputError: `tensor` does not divide heads and devices or cannot overlap, or a host's devices do not divide the
        slots.
    """
    heads, fit, own = shape.num_kv_heads, _tensors(config, shape, mesh), config.engine.devices
    key = "engine.tensor" if config.engine.tensor else "mesh.tensor"
    if own % tensor:
        raise InputError(f"config.engine.devices={own}: must be a multiple of {key}={tensor}")
    if tensor not in fit:
        use = f"use one of {', '.join(map(str, fit))}" if fit else "make mesh.tensor smaller"
        raise InputError(
            f"config.{key}={tensor}: the engine splits {heads} key/value heads evenly over devices that are neighbours "
            f"in the mesh and on one host; {use}"
        )
    if tensor > 1 and _both_send(config, mesh):
        raise InputError(
            f"config.train.max_staleness={config.train.max_staleness}: with {key}={tensor} rollout and update "
            f"both send between devices and could wait for each other; use 0, or {key}=1, or engine.devices on one host"
        )
    slots, parts = config.engine.slots, (own or _host_devices(mesh)) // tensor
    if slots % parts:
        raise InputError(
            f"config.engine.slots={slots}: a host spreads them over {parts} parts of its devices (engine.tensor: "
            f"{tensor} in a part); use a multiple, such as {-(-slots // parts) * parts}"
        )


def _both_send(config: ConfigDict, mesh: jax.sharding.Mesh) -> bool:
    """Whether rollouts run while the update sends over their devices: as it may over all of several hosts."""
    shared = not config.engine.devices or _host_devices(mesh) < mesh.size
    return shared and config.train.max_staleness > 0


def _tensors(config: ConfigDict, shape: Qwen2Config, mesh: jax.sharding.Mesh) -> list[int]:
    """The numbers of devices that can split an engine's weights, ascending; see `placement.placement_of`."""
    least, numbers = mesh.shape["tensor"], (shape.num_kv_heads, _host_devices(mesh), config.engine.devices)
    hosts = np.array([device.process_index for device in mesh.devices.flat])
    fit = [n for n in range(least, shape.num_kv_heads + 1, least) if not any(number % n for number in numbers)]
    return [n for n in fit if np.all(np.ptp(hosts.reshape(-1, n), axis=1) == 0)]


def _host_devices(mesh: jax.sharding.Mesh) -> int:
    return sum(device.process_index == jax.process_index() for device in mesh.devices.flat)


def _on_cpu(limit: int | None) -> bool:
    """Whether a plan is for CPUs of this machine; a plan for other devices has their limit."""
    return limit is None and jax.default_backend() == "cpu"


def _device_bytes() -> int | None:
    """The least memory of a device of any host, as all must plan alike; CPU devices share that of their machine."""
    device = jax.local_devices()[0]
    if device.platform == "cpu":
        own = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // jax.local_device_count()
    else:
        own = (device.memory_stats() or {}).get("bytes_limit", UNKNOWN)
    least = int(partition.all_hosts(np.array([own // MIB], np.int32)).min()) * MIB
    return least if least < UNKNOWN else None
