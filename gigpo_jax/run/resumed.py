"""Checks of a folder that holds a run: the same config, the same model, the same adapter."""

from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from gigpo_jax.config.keys import KEYS, flatten
from gigpo_jax.config.removed_keys import with_defaults
from gigpo_jax.core.errors import InputError
from gigpo_jax.core.files import read_object
from gigpo_jax.core.packaged import locate_file
from gigpo_jax.run import report
from gigpo_jax.run.saved_runs import describe_nearest
from gigpo_jax.run.workdir_names import BASE, CHECKPOINTS, CONFIG, FIX_TORN_FILE


def check_same_config(workdir: Path, config: ConfigDict) -> dict[str, Any]:
    """A run's saved values by dotted key; {} without any.

    Raises:
      InputError: a value differs that a resumed run must not change.
    """
    path = workdir / CONFIG
    if not path.exists():
        return {}
    values = flatten(config.to_dict())
    saved = with_defaults(read_object(path, FIX_TORN_FILE), values)
    differences = []
    # Both: another version of the package may have more keys, or fewer.
    for key in sorted(values.keys() | saved.keys()):
        value = values.get(key)
        saved_value = saved.get(key)
        # The shape is for models with random weights.
        is_read = not (config.model.path and key.startswith("model.shape."))
        if value != saved_value and is_read and not _may_change(key, saved_value, value):
            differences.append(f"{key}={value!r} (there: {saved_value!r})")
    if differences:
        raise InputError(
            "holds a run of another config",
            key="--workdir",
            value=workdir,
            fix=f"choose another folder or use the same values: {'; '.join(differences)}",
        )
    return saved


def _may_change(key: str, saved_value: Any, value: Any) -> bool:
    """Whether a resumed run may have another value of a dotted key."""
    if key not in KEYS:
        return False
    declared = KEYS[key]
    return declared.may_change or (declared.may_grow and value > saved_value)


def say_growth(saved: dict[str, Any], config: ConfigDict) -> None:
    """Says that a run gets more iterations, and what depends on their number."""
    values = flatten(config.to_dict())
    iterations = config.train.iterations
    previous = saved.get("train.iterations", iterations)
    if iterations > previous:
        schedules = "".join(
            f", {key}={values[key]} is now over all {iterations}" for key in _scheduled_keys(config)
        )
        report.say(f"train.iterations grows from {previous} to {iterations}{schedules}")


def _scheduled_keys(config: ConfigDict) -> list[str]:
    """The keys whose effect depends on the number of iterations."""
    hoelder = "hoelder" in config.rl.ratio
    keys = {
        "optim.warmup_fraction": config.optim.warmup_fraction > 0,
        "optim.schedule": config.optim.schedule != "constant",
        "rl.hoelder_last": hoelder and config.rl.hoelder_first != config.rl.hoelder_last,
    }
    return [key for key, depends in keys.items() if depends]


def check_run(workdir: Path, config: ConfigDict, *, initial: bool) -> None:
    """Refuses a workdir whose checkpoints are of another model.

    Raises:
      InputError: there is no checkpoint, or there is one and `initial` is given; or the run has
        another model.
    """
    has_checkpoints = any((workdir / CHECKPOINTS).glob("*"))
    if initial and has_checkpoints:
        raise InputError(
            f"the folder {workdir} holds checkpoints",
            key="--initial",
            fix="leave --initial out or choose another folder",
        )
    if has_checkpoints:
        # Before an array is read: Orbax would report other shapes as damage.
        _check_same_model(workdir, config)
    if initial or has_checkpoints:
        return
    raise InputError(
        "no checkpoint in it",
        key="--workdir",
        value=workdir,
        fix=f"name the workdir of a training run{describe_nearest(workdir)}, or add --initial for "
        "the weights of config.model.path",
    )


def _check_same_model(workdir: Path, config: ConfigDict) -> None:
    """Refuses a config with another model than a folder's run: no array would fit.

    What is evaluated, and how responses are sampled, may differ.
    """
    if not (workdir / CONFIG).exists():
        return
    path = config.model.path
    saved_path = flatten(read_object(workdir / CONFIG, FIX_TORN_FILE)).get("model.path", "")
    if not _may_be_same_model(saved_path, path):
        raise InputError(
            "not the model of the run",
            key="config.model.path",
            value=repr(path),
            fix=f"give the config of --workdir={workdir} (there: model.path={saved_path!r}), or "
            "another folder",
        )


def _may_be_same_model(saved_path: str, path: str) -> bool:
    """Returns False only if two values of `model.path` are different folders that exist here.

    A folder may have moved, and a model of the Hub may be read from a folder, so other values may
    name the same model.
    """
    if path == saved_path or not saved_path:
        return True
    files = [locate_file(name) / CONFIG for name in (saved_path, path)]
    if path and not all(file.is_file() for file in files):
        return True
    # config.json has the shape of the model: with the same one all arrays fit.
    return bool(path) and files[0].read_bytes() == files[1].read_bytes()


def check_adapter(workdir: Path, config: ConfigDict, base: str) -> None:
    """Refuses checkpoints of another adapter or base model, which they do not hold themselves.

    Args:
      workdir: Folder of the run; it may have no checkpoints.
      config: Config of the process that is about to read them.
      base: `Policy.base` of this process.

    Raises:
      InputError: names what differs.
    """
    if not (workdir / CONFIG).exists() or not any((workdir / CHECKPOINTS).glob("*")):
        return
    saved_config = flatten(read_object(workdir / CONFIG, FIX_TORN_FILE))
    adapter = _adapter_settings(flatten(config.to_dict()))
    saved_adapter = _adapter_settings(saved_config)
    # Another scale, or another base below, changes the model and no shape: no read would fail.
    if adapter != saved_adapter:
        raise InputError(
            f"its checkpoints were trained with config.model.lora {saved_adapter}, given is "
            f"{adapter}",
            key="--workdir",
            value=workdir,
            fix="use the same values",
        )
    if not (workdir / BASE).exists():
        return
    if base != read_object(workdir / BASE, FIX_TORN_FILE).get("base"):
        raise InputError(
            f"not the weights that the adapter in --workdir={workdir} was trained on (there: "
            f"model.path={saved_config.get('model.path')!r})",
            key="config.model.path",
            value=repr(config.model.path),
            fix="name the folder that has them",
        )


def _adapter_settings(values: dict[str, Any]) -> dict[str, Any]:
    """The values of a flat config that define an adapter."""
    rank = values.get("model.lora.rank", 0)
    if not rank:
        return {"rank": rank}
    # The scale of an adapter is alpha / rank, and checkpoints hold neither.
    settings = {
        "rank": rank,
        "alpha": values["model.lora.alpha"],
        "targets": sorted(values["model.lora.targets"]),
    }
    if values.get("model.lora.vision"):
        settings["vision"] = True
    return settings
