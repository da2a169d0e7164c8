"""Draws docs/credit_steps.svg, the picture of docs/tutorial.md: a task group and its advantages.

python docs/make_tutorial.py

`gigpo_jax.rl` computes the numbers. The picture brings its own background, light or dark as the
reader's system, so that it can be read on any page.
"""

from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np

from gigpo_jax.env_bridge.types import anchor_hash
from gigpo_jax.rl.algorithms import make_advantages
from gigpo_jax.rl.types import StepColumns

GAMMA = 0.95
# An agent looks for a key; it is in drawer 2. State, action, and the reward of the last step.
EPISODES = (
    (
        ("hall", "go to drawer 1"),
        ("drawer 1, empty", "go back"),
        ("hall", "go to drawer 2"),
        ("drawer 2", "take the key"),
    ),
    (("hall", "go to drawer 2"), ("drawer 2", "take the key")),
    (("hall", "go to drawer 1"), ("drawer 1, empty", "give up")),
)
RETURNS = (1, 1, 0)
COLUMN = 184
ROW = 84
BOX = (170, 68)
TOP = 70
STRIP = TOP + 4 * ROW + 34
WIDTH = 3 * COLUMN + 16
HEIGHT = STRIP + 132
STYLE = """
text { font: 13px system-ui, sans-serif; fill: var(--ink) }
svg { --card: #ffffff; --ink: #1f2328; --soft: #667; --line: #b6bcc4; --hall: #e3eefb; --up: #00609c; --down: #b04300 }
@media (prefers-color-scheme: dark) {
  svg { --card: #1e2129; --ink: #e8eaed; --soft: #a4acb8; --line: #565e6b; --hall: #243a55; --up: #74bdf2; --down: #ffa066 }
}
.card { fill: var(--card); stroke: var(--line) }
.box { fill: var(--card); stroke: var(--line) }
.hall { fill: var(--hall); stroke: var(--up) }
.line { stroke: var(--line); fill: none }
.mean { stroke: var(--ink); stroke-dasharray: 4 3 }
.dot { fill: var(--ink) }
.bold { font-weight: 600 }
.soft { fill: var(--soft); font-size: 12px }
.up { fill: var(--up); font-weight: 600 }
.down { fill: var(--down); font-weight: 600 }
"""


@dataclass(frozen=True)
class Step:
    """A step of the group: where it stands, and its credit."""

    episode: int
    index: int
    state: str
    action: str
    returns: float
    episode_advantage: float
    step_advantage: float
    total: float


def compute_steps() -> list[Step]:
    """The steps of the group with their advantages, by `gigpo`."""
    places = [(i, t) for i, steps in enumerate(EPISODES) for t in range(len(steps))]
    last = [t == len(EPISODES[i]) - 1 for i, t in places]
    anchors = [anchor_hash(EPISODES[i][t][0]) for i, t in places]
    columns = StepColumns(
        reward=np.array([end * RETURNS[i] for (i, _), end in zip(places, last)], np.float32),
        penalty=np.zeros(len(places), np.float32),
        trajectory=np.array([i for i, _ in places], np.int32),
        step=np.array([t for _, t in places], np.int32),
        group=np.zeros(len(places), np.int32),
        anchor=np.array(anchors, np.uint32),
        mask=np.ones(len(places), bool),
    )
    gigpo = make_advantages("gigpo", "paper", gamma=GAMMA, step_weight=1.0, normalize="mean_std")
    result = gigpo(columns)
    return [
        Step(
            episode=i,
            index=t,
            state=EPISODES[i][t][0],
            action=EPISODES[i][t][1],
            returns=RETURNS[i] * GAMMA ** (len(EPISODES[i]) - 1 - t),
            episode_advantage=float(result.episode[row]),
            step_advantage=float(result.step[row]),
            total=float(result.total[row]),
        )
        for row, (i, t) in enumerate(places)
    ]


def signed(value: float) -> str:
    """A number with its sign, two decimals; 0 without a sign."""
    return f"{value:+.2f}".replace("-", "−") if round(value, 2) else "0"


def direction(value: float) -> str:
    """The class of a number: its colour."""
    return ("up" if value > 0 else "down") if round(value, 2) else "soft"


def text(x: float, y: float, words: str, style: str = "", anchor: str = "start") -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" class="{style}" text-anchor="{anchor}">{escape(words)}</text>'
    )


def labelled(x: float, y: float, label: str, value: float, anchor: str = "start") -> str:
    """A soft label and a number with its sign, as one text."""
    number = f'<tspan class="{direction(value)}">{signed(value)}</tspan>'
    return (
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}">'
        f'<tspan class="soft">{label} </tspan>{number}</text>'
    )


def draw_step(step: Step) -> list[str]:
    """A box: the state, the action, the step advantage and the total."""
    x = 12 + step.episode * COLUMN
    y = TOP + step.index * ROW
    style = "box hall" if step.state == "hall" else "box"
    parts = [
        f'<rect x="{x}" y="{y}" width="{BOX[0]}" height="{BOX[1]}" rx="6" class="{style}"/>',
        text(x + 8, y + 19, step.state, "bold"),
        text(x + 8, y + 38, f"→ {step.action}"),
        labelled(x + 8, y + 58, "step", step.step_advantage),
        labelled(x + BOX[0] - 8, y + 58, "sum", step.total, "end"),
    ]
    if step.index:
        middle = x + BOX[0] / 2
        parts.append(f'<path d="M{middle:g} {y - ROW + BOX[1]} V{y}" class="line"/>')
    return parts


def draw_returns(steps: list[Step]) -> list[str]:
    """The steps of the hall on the axis of their returns, with their mean."""

    def place(returns: float) -> float:
        return 60 + returns * (WIDTH - 150)

    hall = [step for step in steps if step.state == "hall"]
    mean = sum(step.returns for step in hall) / len(hall)
    y = STRIP + 70
    parts = [
        text(
            12, STRIP + 8, "The four steps in the hall, by what came after them (return G)", "bold"
        ),
        f'<path d="M{place(0)} {y} H{place(1)}" class="line"/>',
        f'<path d="M{place(mean):g} {y - 26} V{y + 12}" class="mean"/>',
        text(place(mean), y - 32, f"mean {mean:.2f}", "soft", "middle"),
    ]
    for returns in sorted({step.returns for step in hall}):
        members = [step for step in hall if step.returns == returns]
        x = place(returns)
        advantage = members[0].step_advantage
        parts.append(f'<circle cx="{x:g}" cy="{y}" r="5" class="dot"/>')
        parts.append(text(x, y + 22, f"{returns:.2f}", "soft", "middle"))
        times = f"{len(members)} x " if len(members) > 1 else ""
        # The labels of 0.86 and 0.95 would touch: each leans away from the other.
        anchor = "middle" if returns == 0 else "start" if returns > 0.9 else "end"
        parts.append(text(x, y - 12, times + signed(advantage), direction(advantage), anchor))
    parts.append(text(12, y + 46, "Above the mean: more likely. Below: less likely.", "soft"))
    return parts


def draw() -> str:
    """The picture."""
    steps = compute_steps()
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" role="img" aria-label="Three episodes of one task, their states, and '
        f'the episode and step advantages">',
        f"<style>{STYLE}</style>",
        f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="8" class="card"/>',
    ]
    for episode, returns in enumerate(RETURNS):
        x = 12 + episode * COLUMN
        advantage = next(s.episode_advantage for s in steps if s.episode == episode)
        outcome = "key found" if returns else "no key"
        parts.append(text(x, 26, f"Episode {episode + 1}: {outcome}", "bold"))
        parts.append(labelled(x, 48, "episode", advantage))
    for step in steps:
        parts += draw_step(step)
    return "\n".join([*parts, *draw_returns(steps), "</svg>\n"])


if __name__ == "__main__":
    path = Path(__file__).with_name("credit_steps.svg")
    path.write_text(draw(), encoding="utf-8")
