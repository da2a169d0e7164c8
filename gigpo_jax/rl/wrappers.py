"""Algorithms that change the advantages of another one, their base."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.references import ReferenceTable, find_entry
from gigpo_jax.rl.advantages import Advantages
from gigpo_jax.rl.algorithm_types import BASE, Algorithm


def join_base(
    wrapper: Algorithm, settings: Mapping[str, Any], algorithms: ReferenceTable[Algorithm]
) -> Algorithm:
    """Joins the fields of a wrapper and of the base that its settings name.

    Raises:
      InputError: The base does not exist, or cannot be changed.
    """
    key = f"config.rl.settings.{BASE}"
    base_name = settings.get(BASE, wrapper.settings[BASE].default)
    complaint = wrapper.settings[BASE].complaint(base_name)
    if complaint:
        raise InputError(complaint, key=key, value=repr(base_name))
    base = find_entry(base_name, algorithms, Algorithm, key=key)
    if BASE in base.settings:
        fix = "choose another algorithm"
        raise InputError("a wrapper itself", key=key, value=repr(base_name), fix=fix)
    # A wrapper changes the total of a step, which the loss would not read.
    if base.gives_tokens:
        reason = "has no advantage of steps to change"
        raise InputError(reason, key=key, value=repr(base_name))
    # Steps that are in no loss have no advantage to average or to change.
    if base.fork_choice:
        raise InputError("leaves steps out of the loss", key=key, value=repr(base_name))
    if "value" in base.columns and wrapper.critic_values:
        raise InputError("has a critic of its own", key=key, value=repr(base_name))
    # The wrapper comes last in each union: where both set something, its value stays.
    return replace(
        base,
        advantages=wrapper.advantages,
        token_weights=wrapper.token_weights or base.token_weights,
        token_advantages=wrapper.token_advantages or base.token_advantages,
        takes_forks=wrapper.takes_forks and base.takes_forks,
        columns=(*base.columns, *wrapper.columns),
        signals=tuple(dict.fromkeys((*base.signals, *wrapper.signals))),
        critic_values=base.critic_values or wrapper.critic_values,
        changes=wrapper.changes or base.changes,
        is_graded=wrapper.is_graded and base.is_graded,
        check=wrapper.check or base.check,
        settings={**base.settings, **wrapper.settings},
        fixed={**base.fixed, **wrapper.fixed},
        defaults={**base.defaults, **wrapper.defaults},
    )


def bind_base(
    wrapper: Algorithm, settings: Mapping[str, Any], make_base: Callable[..., Any]
) -> partial[Advantages]:
    """Builds the advantage function of a wrapper.

    Args:
      wrapper: The wrapper alone, not joined with its base.
      settings: Settings of wrapper and base by name; the function of the wrapper gets its own, all
        other ones are for the base.
      make_base: Function (name, keyword settings) -> advantage function of the base.
    """
    base_settings = {key: value for key, value in settings.items() if key not in wrapper.settings}
    wrapper_settings = {key: settings[key] for key in wrapper.settings}
    base = make_base(wrapper_settings.pop(BASE), **base_settings)
    return partial(wrapper.advantages, base=base, **wrapper_settings)
