"""What the teacher of SERL (arXiv 2605.19447) reads about a step besides its prompt.

The modes are from the authors' recipe/serl/privileged_context.py, without modes that ask another
model. Order and content of the parts are theirs: with several parts a context needs all, and a step
without one keeps the advantage of the base. The words are ours. Left out are the judge's modes, the
oldest mode (`legacy`: one response of a won episode), similar anchors, and the limits of steps,
which are off by default there.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from gigpo_jax.methods.serl.advantages import CONTEXTS
from gigpo_jax.trajectory import Step

TITLES = {
    "feedback": "What the environment answered to this step:",
    "next": "What you will be shown after this step:",
    "future": "How this episode went on after this step:",
    "success": "Another episode, in which this task was done:",
    "candidates": "Actions that were tried in this situation:",
}
ANCHOR = "anchor_"
NO_FUTURE = "the episode ended with it"


class Hindsight:
    """Contexts of the steps of one iteration."""

    def __init__(self, steps: Sequence[Step], mode: str) -> None:
        """Sorts the steps by episode and by state.

        Args:
          steps: Steps as from `trajectory.finished_steps`, whole task groups.
          mode: One of `CONTEXTS`, or one of them behind "anchor_".
        """
        self._sections = CONTEXTS[mode.removeprefix(ANCHOR)]
        self._is_anchored = mode.startswith(ANCHOR)
        self._needs_one_section = "_or_" in mode
        self._episodes: dict[int, list[Step]] = defaultdict(list)
        self._members: dict[int, list[int]] = defaultdict(list)  # episodes of a group, in order
        self._states: dict[tuple[int, str], list[Step]] = defaultdict(list)
        for step in steps:
            # In the order of the rollout: the first other episode is then the same in every run.
            if step.trajectory not in self._episodes:
                self._members[step.episode.group].append(step.trajectory)
            self._episodes[step.trajectory].append(step)
            self._states[step.episode.group, step.turn.anchor].append(step)
        self._returns = {
            trajectory: sum(step.turn.reward for step in episode)
            for trajectory, episode in self._episodes.items()
        }
        self._sources: Mapping[str, Callable[[Step], str]] = {
            "feedback": lambda step: step.turn.feedback.strip(),
            "next": self._next_observation,
            "future": lambda step: self._describe_episode(self._later_steps(step)),
            "success": self._successful_episode,
        }

    def describe(self, step: Step) -> str:
        """The context of a step, or "" without one."""
        if self._is_anchored:
            return self._describe_state(step)
        sections = [_section(name, self._sources[name](step)) for name in self._sections]
        if self._needs_one_section:
            return next(filter(None, sections), "")
        return "\n\n".join(sections) if all(sections) else ""

    def _describe_state(self, step: Step) -> str:
        """The actions that the group's episodes took in the step's state, and a won episode."""
        # This mode shows answers alone, without wins and returns, as in the authors' code.
        if self._sections == ("feedback",):
            return _section("feedback", self._state_feedback(step))
        success = self._successful_episode(step) if "success" in self._sections else ""
        names = {*self._sections} - {"success"}
        # "success or feedback": with a success the answers are left out.
        if self._needs_one_section and success:
            names -= {"feedback"}
        sections = [
            _section("candidates", self._describe_candidates(step, names)),
            _section("success", success),
        ]
        return "\n\n".join(filter(None, sections))

    def _state_feedback(self, step: Step) -> str:
        """Every answer to each action in the state, once."""
        lines = []
        for action, tries in self._candidates(step):
            answers = dict.fromkeys(attempt.turn.feedback.strip() for attempt in tries)
            lines += [f"{action}: {answer}" for answer in answers if answer]
        return "\n".join(lines)

    def _describe_candidates(self, step: Step, names: set[str]) -> str:
        """Tries, wins and returns of each action in the state, with its best and its worst try."""
        blocks = []
        for action, tries in self._candidates(step):
            ranked = sorted(tries, key=self._rank)
            best = ranked[0]
            worst = ranked[-1]
            wins = sum(attempt.episode.won for attempt in tries)
            mean = sum(self._returns[attempt.trajectory] for attempt in tries) / len(tries)
            lines = [
                f"- {action}: tried {len(tries)} times, the task was done in {wins}, "
                f"mean return {mean:.4f}",
                f"  best try: {self._describe_outcome(best)}",
                f"  worst try: {self._describe_outcome(worst)}",
            ]
            for name in ("feedback", "next"):
                if name in names:
                    texts = {"best": self._sources[name](best), "worst": self._sources[name](worst)}
                    if texts["worst"] == texts["best"]:
                        del texts["worst"]
                    title = "answer" if name == "feedback" else "next observation"
                    lines += [
                        f"  {title}, {rank} try:\n{text}" for rank, text in texts.items() if text
                    ]
            if "future" in names:
                # The best try that did the task, and the worst one that did not.
                won = [attempt for attempt in ranked if attempt.episode.won][:1]
                failed = [attempt for attempt in ranked if not attempt.episode.won][-1:]
                for title, examples in (("done", won), ("not done", failed)):
                    for example in examples:
                        future = self._sources["future"](example) or NO_FUTURE
                        lines.append(f"  afterwards, where the task was {title}:\n{future}")
            blocks.append("\n".join(lines))
        return "\n\n".join(blocks)

    def _candidates(self, step: Step) -> list[tuple[str, list[Step]]]:
        """The actions tried in the state, each with its tries, in the order of the rollout."""
        candidates: dict[str, list[Step]] = defaultdict(list)
        for attempt in self._states[step.episode.group, step.turn.anchor]:
            # Actions that differ only in case and spaces count as one.
            action = " ".join(attempt.turn.action.lower().split())
            candidates[action or "no action"].append(attempt)
        return list(candidates.items())

    def _rank(self, step: Step) -> tuple[float, int, int]:
        """Sorts the highest return first, then the earliest step."""
        return -self._returns[step.trajectory], step.step, step.trajectory

    def _describe_outcome(self, step: Step) -> str:
        outcome = "done" if step.episode.won else "not done"
        return f"{outcome}, return {self._returns[step.trajectory]:.4f}"

    def _later_steps(self, step: Step) -> list[Step]:
        return [later for later in self._episodes[step.trajectory] if later.step > step.step]

    def _next_observation(self, step: Step) -> str:
        """The next prompt; after the last step, the last text of the environment."""
        later_steps = self._later_steps(step)
        return (later_steps[0].turn.prompt if later_steps else step.turn.feedback).strip()

    def _successful_episode(self, step: Step) -> str:
        """The group's first other episode that did the task."""
        for trajectory in self._members[step.episode.group]:
            episode = self._episodes[trajectory]
            if trajectory != step.trajectory and episode[0].episode.won:
                return self._describe_episode(episode)
        return ""

    def _describe_episode(self, steps: Sequence[Step]) -> str:
        """Responses without thoughts; prompts would take their room, as in the authors' scripts."""
        return "\n\n".join(
            f"Step {step.step + 1}\nResponse:\n{remove_thoughts(step.turn.response)}"
            for step in steps
        )


def remove_thoughts(response: str) -> str:
    """The response without what stands between <think> and </think>."""
    pieces: list[str] = []
    rest = response
    while True:
        piece, _, thought = rest.partition("<think>")
        _, closing_tag, text = thought.partition("</think>")
        # A thought without an end stays: the action may stand in it.
        if not closing_tag:
            return ("".join(pieces) + rest).strip()
        pieces.append(piece)
        rest = text.lstrip()


def _section(name: str, text: str) -> str:
    return f"{TITLES[name]}\n{text}" if text else ""
