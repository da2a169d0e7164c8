"""The peak speed of devices, and the part of it that updates use."""

import jax

# Dense bfloat16 peak of one device, FLOP/s, by the start of its kind (vendors' data sheets).
PEAK_FLOPS = {
    "NVIDIA H200": 989e12,
    "NVIDIA H100": 989e12,
    "NVIDIA A100": 312e12,
    "TPU v6": 918e12,
    "TPU v5p": 459e12,
    "TPU v5": 197e12,
    "TPU v4": 275e12,
}


def measure_utilization(flops: float) -> dict[str, float]:
    """Returns the metric `throughput/mfu` if the device's peak is known.

    Args:
      flops: FLOP/s of updates on one device.
    """
    kind = jax.devices()[0].device_kind
    peak = next((peak for name, peak in PEAK_FLOPS.items() if kind.startswith(name)), None)
    return {} if peak is None else {"throughput/mfu": flops / peak}
