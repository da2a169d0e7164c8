"""The refusal of a run that does not fit, with the key that helps most."""

from collections.abc import Mapping

from ml_collections import ConfigDict

from gigpo_jax.core.errors import InputError

_GIB = 2.0**30


def refuse_run(
    config: ConfigDict,
    estimate: Mapping[str, float],
    needed: Mapping[str, float],
    limit: int,
    staleness: int,
) -> InputError:
    """Names the largest part, and what makes it smaller.

    Args:
      config: Resolved config.
      estimate: Bytes by purpose.
      needed: Parts of the estimate that are needed at once.
      limit: Bytes of a device.
      staleness: Number of older policies that the learner keeps.
    """
    can_split = config.engine.devices > 0 or not staleness  # see `engine_split.check_engine`
    # The key that helps: fewer versions of the weights, unless there is only one and it can be
    # split.
    weights_key = ("train", "max_staleness")
    if can_split and staleness <= 1:
        weights_key = ("engine", "tensor")
    keys = {
        "KV cache": ("engine", "slots"),
        "engine's weights": weights_key,
        "older policies": ("train", "max_staleness"),
        "activations": ("batch", "rows"),
        "activations of the vision tower": ("batch", "rows"),
    }
    largest = max(needed, key=lambda name: needed[name])
    section, name = keys.get(largest, ("mesh", "fsdp"))
    sizes = ", ".join(f"{item} {size / _GIB:.1f}" for item, size in estimate.items() if size)
    more_devices = "use more devices (mesh.fsdp)"
    if can_split:
        more_devices = "use more devices (mesh.fsdp; engine.tensor splits the engine's weights)"
    less_stale = ", or a smaller train.max_staleness" if staleness else ""
    return InputError(
        f"a device has {limit / _GIB:.1f} GiB, the run needs "
        f"{sum(needed.values()) / _GIB:.1f} ({sizes})",
        key=f"config.{section}.{name}",
        value=config[section][name],
        fix=f"{more_devices}, fewer engine.slots or batch.rows{less_stale}",
    )
