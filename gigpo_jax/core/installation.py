"""The command that installs an extra of this package."""

from gigpo_jax import __version__
from gigpo_jax.core.packaged import ROOT


def install_command(extra: str) -> str:
    """Returns the command that installs an extra from the running clone, or else from a wheel.

    No index has the package. Without an extra ("") it installs what every run needs.
    """
    extras = f"[{extra}]" if extra else ""
    if (ROOT / "setup.py").is_file():
        return f'pip install -e "{ROOT}{extras}"'
    if "gigpo_worlds" in ROOT.parts:
        return f'pip install "gigpo-worlds{extras}"'
    return f'pip install "gigpo_jax-{__version__}-py3-none-any.whl{extras}"'
