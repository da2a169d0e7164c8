"""The devices that programs can be compiled for."""

import contextlib
import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import jax
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from jax.experimental import topologies

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.installation import install_command

GIB = 2**30


@dataclass(frozen=True)
class Chip:
    """A kind of device, with numbers of its data sheet.

    Attributes:
      platform: jax's name of the platform.
      memory: Bytes of memory that programs can have.
      operations: Operations a second, dense bfloat16.
      bandwidth: Bytes a second of its memory.
      link: Bytes a second to the other devices, in one direction.
    """

    platform: str
    memory: int
    operations: float
    bandwidth: float
    link: float


@dataclass(frozen=True)
class Target:
    """Devices that work together.

    Attributes:
      chip: Kind of the devices.
      count: Number of devices.
      topology: Topology in the words of the platform's compiler; it has at least `count` devices.
    """

    chip: Chip
    count: int
    topology: str = ""


# The memory of TPUs is what libtpu leaves for programs, not the size in the data sheet.
_V5E = Chip("tpu", int(15.75 * GIB), 197e12, 819e9, 200e9)
_V5P = Chip("tpu", int(95.74 * GIB), 459e12, 2765e9, 600e9)
_V6E = Chip("tpu", int(31.25 * GIB), 918e12, 1640e9, 400e9)
# The memory that a driver reports, less than 80 GiB.
_H100 = Chip("cuda", 84929347584, 989e12, 3352e9, 450e9)
_H200 = replace(_H100, memory=150122528768, bandwidth=4800e9)
_H100_HOSTS = replace(_H100, link=50e9)  # several hosts: a network of 400 Gbit/s a GPU
# Devices of this machine, which share its memory. The speeds are the speeds of two cores.
_CPU = Chip("cpu", os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), 1e11, 2e10, 1e10)
_CPU_8 = replace(_CPU, memory=_CPU.memory // 8)

TARGETS: dict[str, Target] = {
    "v5e-1": Target(_V5E, 1, "v5e:2x2"),
    "v5e-4": Target(_V5E, 4, "v5e:2x2"),
    "v5e-8": Target(_V5E, 8, "v5e:2x4"),
    "v5e-16": Target(_V5E, 16, "v5e:4x4"),
    # Names of v5p count cores, two a chip, which work as one device.
    "v5p-8": Target(_V5P, 4, "v5p:2x2x1"),
    "v5p-16": Target(_V5P, 8, "v5p:2x2x2"),
    "v6e-1": Target(_V6E, 1, "v6e:2x2"),
    "v6e-4": Target(_V6E, 4, "v6e:2x2"),
    "v6e-8": Target(_V6E, 8, "v6e:2x4"),
    "v6e-16": Target(_V6E, 16, "v6e:4x4"),
    "h100x1": Target(_H100, 1, "1x1x1"),
    "h100x2": Target(_H100, 2, "1x1x2"),
    "h100x4": Target(_H100, 4, "1x1x4"),
    "h100x8": Target(_H100, 8, "1x1x8"),
    "h100x16": Target(_H100_HOSTS, 16, "1x2x8"),
    "h200x1": Target(_H200, 1, "1x1x1"),
    "cpu": Target(_CPU, 1),
    "cpux8": Target(_CPU_8, 8),
}
# platform -> module that must be installed, and the extra that brings it
_NEEDS = {"tpu": ("libtpu", "preflight-tpu"), "cuda": ("jax_plugins.xla_cuda13", "preflight-gpu")}


def find_target(name: str) -> Target:
    """The target of that name.

    Raises:
      InputError: there is none, or its compiler is not installed.
    """
    if name not in TARGETS:
        raise InputError(
            "no such target", key="--target", value=name, fix=f"choose one of {', '.join(TARGETS)}"
        )
    target = TARGETS[name]
    module, extra = _NEEDS.get(target.chip.platform, ("jax", ""))
    # find_spec raises if the parent package is missing.
    with contextlib.suppress(ModuleNotFoundError):
        if importlib.util.find_spec(module) is not None:
            return target
    raise InputError(
        "the compiler for it is not installed",
        key="--target",
        value=name,
        fix=f"{install_command(extra)}, in an environment of its own",
    )


def believe_in_hopper() -> None:
    """Lets GPU kernels compile on a machine without one."""
    # Both ask the devices of this machine; Triton from jax 0.11 on.
    cudnn.check_compute_capability = lambda _: True
    with contextlib.suppress(ModuleNotFoundError):
        info = importlib.import_module("jax._src.pallas.triton.gpu_info")
        info.registry["cpu"] = lambda: info.get_gpu_info_from_version(info.GpuVersion.H100)


def target_devices(target: Target) -> Sequence[jax.Device]:
    """Devices to compile for, not to run on; only `cpu` devices are real.

    This must be called before anything else uses jax in this process, which then leaves the
    machine's accelerators alone.
    """
    # Only the compiler of the target is used, never a device of this machine.
    jax.config.update("jax_platforms", "cpu")
    if target.chip.platform == "cpu":
        # Once jax has started, the number of devices is fixed.
        with contextlib.suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", target.count)
        return jax.devices("cpu")[: target.count]
    if target.chip.platform == "tpu":
        # Off a cloud machine libtpu would wait for its metadata server, and it refuses a second
        # process that loads it.
        os.environ.update(TPU_SKIP_MDS_QUERY="1", ALLOW_MULTIPLE_LIBTPU_LOAD="1")
        os.environ.update(TPU_WORKER_HOSTNAMES="localhost", TPU_ACCELERATOR_TYPE="v5litepod-8")
        topology = topologies.get_topology_desc(platform="tpu", topology_name=target.topology)
    else:
        # No driver is looked for, and no kernel is timed.
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
        os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_gpu_autotune_level=0"
        believe_in_hopper()
        target_config = (Path(__file__).parent / "h100.txtpb").read_text()
        topology = topologies.get_topology_desc(
            platform="cuda", topology=target.topology, target_config=target_config
        )
    return topology.devices[: target.count]
