"""First steps of every command: safe warnings, and a check of open files."""

import logging
import resource

from absl import logging as absl_logging

from gigpo_jax.core.errors import InputError, escape_controls

# Event loops, worker processes and checkpoints hold files open: with 40 no checkpoint can be
# written, with 24 nothing starts.
MIN_OPEN_FILES = 128


def prepare_console() -> None:
    """Prints warnings, whose text may be foreign, to stderr with control characters escaped."""
    handler = logging.StreamHandler()
    # On the handler, not on a logger: it sees the records of all libraries.
    handler.addFilter(_escape)
    logging.basicConfig(handlers=[handler], format="%(levelname)s %(message)s")
    absl_logging.set_verbosity(absl_logging.WARNING)


def check_open_files() -> None:
    """Refuses a limit of open files below `MIN_OPEN_FILES`.

    Raises:
      InputError: this process may open too few files for any mode.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    # On Linux "no limit" is -1.
    if limit != resource.RLIM_INFINITY and limit < MIN_OPEN_FILES:
        raise InputError(
            f"the limit of open files is {limit}, a run needs {MIN_OPEN_FILES}",
            fix=f"raise it with: ulimit -n {MIN_OPEN_FILES}",
        )


def _escape(record: logging.LogRecord) -> bool:
    # The arguments hold the foreign text, so they are filled in before the text is escaped.
    record.msg = escape_controls(record.getMessage())
    # Otherwise the formatter would fill them in again, and a % in the text would raise.
    record.args = ()
    return True
