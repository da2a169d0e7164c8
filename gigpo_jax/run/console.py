"""What a command does before anything else: its warnings are safe to show, and signals end it in order."""

import logging

from absl import logging as absl_logging

from gigpo_jax.errors import printable
from gigpo_jax.run.interrupts import raise_interrupted


def prepare() -> None:
    """Prints warnings to stderr with control characters escaped; signals raise `Interrupted`.

    Environments and servers have a part in the text of warnings.
    """
    raise_interrupted()
    handler = logging.StreamHandler()
    handler.addFilter(_escape)
    logging.basicConfig(handlers=[handler], format="%(levelname)s %(message)s")
    absl_logging.set_verbosity(absl_logging.WARNING)


def _escape(record: logging.LogRecord) -> bool:
    record.msg, record.args = printable(record.getMessage()), ()
    return True
