"""How warnings reach the console."""

import logging

from absl import logging as absl_logging

from gigpo_jax.errors import printable


def show_warnings() -> None:
    """Prints warnings to stderr, with control characters escaped: environments and servers have a part in them."""
    handler = logging.StreamHandler()
    handler.addFilter(_escape)
    logging.basicConfig(handlers=[handler], format="%(levelname)s %(message)s")
    absl_logging.set_verbosity(absl_logging.WARNING)


def _escape(record: logging.LogRecord) -> bool:
    record.msg, record.args = printable(record.getMessage()), ()
    return True
