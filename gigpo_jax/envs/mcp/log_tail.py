"""The last words that a server wrote to its standard error."""

import os
import threading

_BYTES = 4000
_QUOTED_CHARACTERS = 300
_WAIT_S = 1.0  # for what a server that has ended wrote last


class LogTail:
    """A pipe that keeps its last characters, which neither a terminal nor a file gets.

    A server may write megabytes, or sequences that act on a terminal.

    Attributes:
      sink: File for the process that writes; `close` it when that process has it.
    """

    def __init__(self) -> None:
        """Opens the pipe."""
        source, sink = os.pipe()
        self.sink = os.fdopen(sink, "w")
        self._tail = b""
        self._reader = threading.Thread(target=self._read, args=(source,), daemon=True)
        self._reader.start()

    def close(self) -> None:
        """Closes the sink of this process."""
        self.sink.close()

    def quote(self) -> str:
        """The last line of a process that has ended, for the message of a failure, or "".

        A process that still runs may have written only a part of it.
        """
        self._reader.join(_WAIT_S)
        lines = self._tail.decode("utf-8", "replace").split("\n")
        texts = [line.strip() for line in lines if line.strip()]
        return f"; its last line: {texts[-1][:_QUOTED_CHARACTERS]}" if texts else ""

    def _read(self, source: int) -> None:
        with os.fdopen(source, "rb", buffering=0) as file:
            while chunk := file.read(1 << 16):
                self._tail = (self._tail + chunk)[-_BYTES:]
