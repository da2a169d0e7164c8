"""The one error that means: what the user gave us is wrong."""


class InputError(Exception):
    """A bad config, flag, file or folder; its text is one line with the key, the value and the fix.

    `gigpo_jax.main` and the other commands print that line and exit with status 2, without a traceback.
    """


def printable(text: str) -> str:
    """A text for a terminal: control characters, such as those of ANSI sequences, are escaped; line ends stay."""
    return "".join(char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text)
