"""Devices that the engine has for itself (engine.devices)."""

from collections.abc import Sequence

import jax

from gigpo_jax.core.errors import InputError


def reserve_devices(
    number: int, devices: Sequence[jax.Device]
) -> tuple[list[jax.Device], list[jax.Device]]:
    """Splits devices; `number` of each host are the engine's, else as `mesh.split_devices`."""
    hosts: dict[int, list[jax.Device]] = {}
    for device in devices:
        hosts.setdefault(device.process_index, []).append(device)
    # Hosts may have different numbers of devices; each must keep one that trains.
    fewest = min(map(len, hosts.values()))
    if number >= fewest:
        raise InputError(
            f"a host has {fewest} devices, and one at least must train",
            key="config.engine.devices",
            value=number,
        )
    if len(hosts) > 1 and devices[0].platform == "tpu":
        raise InputError(
            "XLA's compiler fails for most subsets of the TPUs of several hosts",
            key="config.engine.devices",
            value=number,
            fix="use 0",
        )
    engines = {
        host: host_devices[len(host_devices) - number :] for host, host_devices in hosts.items()
    }
    # In the order of `devices`, on which the mesh of the learner depends.
    learner = [device for device in devices if device not in engines[device.process_index]]
    return learner, engines[jax.process_index()]
