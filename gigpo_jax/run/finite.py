"""Ends a run whose losses are not finite."""

from gigpo_jax.rl.update import Metrics


class NotFinite(RuntimeError):
    """Three updates in a row had a loss or gradient that is not finite."""


class FiniteCheck:
    """Ends a run after three skipped updates in a row.

    It looks one update late: the device computes the newest update while the host reads the one before.
    """

    def __init__(self, name: str = "policy", rate: str = "optim.lr") -> None:
        """Starts to count updates, in a resumed run anew; their metrics are `name`/*, their learning rate is `rate`."""
        self._name, self._rate = name, rate
        self._newest: Metrics | None = None
        self._skipped_in_row = 0

    def look(self, newest: Metrics | None) -> None:
        """Takes the metrics of the newest update and reads those of the one before; None: there is no newer one.

        Raises:
          NotFinite: it was the third in a row whose loss or gradient was not finite.
        """
        metrics, self._newest = self._newest, newest
        if metrics is None:
            return
        self._skipped_in_row = self._skipped_in_row + 1 if float(metrics[f"{self._name}/skipped"]) else 0
        if self._skipped_in_row == 3:
            raise NotFinite(
                f"the {self._name}'s loss or its gradient was not finite three times in a row; lower "
                f"config.{self._rate}"
            )
