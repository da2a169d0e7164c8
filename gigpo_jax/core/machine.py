"""Describes the machine, as far as it decides the last bits of numbers."""

import hashlib
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

# Instruction sets of x86 for which compilers and libraries have kernels of their own.
INSTRUCTIONS = ("fma", "avx", "avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile")
# These compute numbers of a run, or compile the programs that do.
PACKAGES = ("jax", "jaxlib", "numpy", "scipy", "flax", "optax")
THREADS_VARIABLE = "NPROC"  # XLA's threads on CPUs; unset: one a core
_CPU_INFO = Path("/proc/cpuinfo")
# Core 0 stands for all.
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def describe_machine() -> dict[str, Any]:
    """Describes the CPU, its caches and instruction sets, and library versions as JSON values."""
    fields = _read_cpu()
    flags = fields.get("flags", "").split()
    return {
        "cpu": _name_cpu(fields),
        "threads": _count_threads(),
        # In the order of INSTRUCTIONS, whatever order the kernel lists them in.
        "instructions": [name for name in INSTRUCTIONS if name in flags],
        # Matrix products are split into blocks that fit the caches.
        "caches": _read_caches(),
        "python": platform.python_version(),
        "packages": {name: release for name in PACKAGES if (release := _find_version(name))},
    }


def fingerprint_cpu() -> str:
    """Returns a short hash of the CPU's model and all its features."""
    fields = _read_cpu()
    text = "\n".join((platform.machine(), _name_cpu(fields), fields.get("flags", "")))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _count_threads() -> int:
    """Number of XLA's threads on CPUs."""
    number = os.environ.get(THREADS_VARIABLE, "")
    if number.isdecimal() and int(number):
        return int(number)
    if hasattr(os, "sched_getaffinity"):
        # The cores that this process may use, as with taskset; `cpu_count` has all of the machine.
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _read_cpu() -> dict[str, str]:
    """Reads the fields of the first core; empty where the system does not list them."""
    try:
        # A block for each core, with an empty line between. One suffices, and the others differ in
        # fields such as the current clock rate.
        first_core = _CPU_INFO.read_text(encoding="utf-8").partition("\n\n")[0]
    except OSError:
        return {}
    fields = {}
    for line in first_core.splitlines():
        name, _, value = line.partition(":")
        fields[name.strip()] = value.strip()
    return fields


def _name_cpu(fields: dict[str, str]) -> str:
    name = fields.get("model name") or platform.processor() or platform.machine()
    if "cpu family" not in fields:
        return name
    # Virtual machines hide the model's name, but not its numbers.
    return f"{name} (family {fields['cpu family']}, model {fields.get('model', '?')})"


def _read_caches() -> list[str]:
    sizes = []
    for folder in sorted(_CACHES.glob("index*")):
        try:
            words = [(folder / name).read_text().strip() for name in ("level", "type", "size")]
        except OSError:
            continue
        # The kernels' block sizes depend on caches of data.
        if words[1] != "Instruction":
            sizes.append(f"L{words[0]} {words[2]}")
    return sizes


def _find_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
