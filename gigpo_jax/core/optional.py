"""Packages that some commands and environments need, and others do not."""

import contextlib
from collections.abc import Iterator

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.installation import install_command


@contextlib.contextmanager
def optional_imports(
    extra: str, *, key: object = "", value: object = "", other: str = ""
) -> Iterator[None]:
    """Answers a failed import of a block with the command that installs `extra`.

    Args:
      extra: Extra of this package that has what the block imports; "" if every run needs it.
      key: Setting that needs it, for the message.
      value: Value of the setting.
      other: Another remedy, such as "use JSON lines".

    Raises:
      InputError: A package is missing, or cannot be imported.
    """
    try:
        yield
    except ImportError as err:
        raise explain_import(err, extra, key=key, value=value, other=other) from err


def explain_import(
    err: ImportError, extra: str, *, key: object = "", value: object = "", other: str = ""
) -> InputError:
    """Returns the error for a failed import; arguments as for `optional_imports`."""
    reason = f"needs the package {err.name}"
    if not isinstance(err, ModuleNotFoundError):
        reason = f"cannot import {err.name} ({err})"
    remedies = [install_command(extra), other] if other else [install_command(extra)]
    return InputError(reason, key=str(key), value=value, fix=", or ".join(remedies))
