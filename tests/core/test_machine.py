"""What a record says of the machine."""

import os
from importlib.metadata import version
from pathlib import Path

import pytest

from gigpo_jax.core import machine
from gigpo_jax.run.machine_types import name_type

CPU = """processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 143
model name\t: Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz
flags\t\t: fpu sse2 fma avx avx2 avx512f amx_tile

processor\t: 1
model name\t: another
"""


def test_the_first_core_is_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(CPU)
    monkeypatch.setattr(machine, "_CPU_INFO", file)
    monkeypatch.setenv(machine.THREADS_VARIABLE, "3")
    record = machine.describe_machine()
    assert record["cpu"] == "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz (family 6, model 143)"
    assert record["instructions"] == ["fma", "avx", "avx2", "avx512f", "amx_tile"]
    assert record["packages"]["jax"] == version("jax")
    name = name_type(record | {"caches": ["L2 2M"], "devices": "1 x cpu"})
    packages = f"jax {version('jax')}, jaxlib {version('jaxlib')}"
    instructions = "fma avx avx2 avx512f amx_tile"
    assert name == f"{record['cpu']}, {instructions}, L2 2M, 3 threads, 1 x cpu, {packages}"
    fingerprint = machine.fingerprint_cpu()
    file.write_text(CPU.replace(" amx_tile", ""))
    assert machine.fingerprint_cpu() != fingerprint


def test_a_system_without_cpuinfo_is_described_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_CPU_INFO", Path("/nonexistent"))
    monkeypatch.delenv(machine.THREADS_VARIABLE, raising=False)
    record = machine.describe_machine()
    assert record["instructions"] == []
    assert 0 < record["threads"] <= (os.cpu_count() or 1)
    assert machine.fingerprint_cpu()
