"""The formulas of GiGPO in plain Python: float64, dicts and loops, nothing shared with the
package.
"""

import math

import numpy as np


def spread(values: list[float], ddof: int) -> float:
    mean = sum(values) / len(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / max(len(values) - ddof, 1))


def advantages(
    reward, penalty, trajectory, step, group, anchor, mask, *, gamma, step_weight, normalize, episode_stats, penalty_in,
    singleton_episode, ddof=1, eps=1e-6,
):  # fmt: skip
    """Returns [N, 3] f64: total, episode and step advantage."""
    rows = [n for n in range(len(mask)) if mask[n]]
    r = {n: float(reward[n]) - (float(penalty[n]) if penalty_in == "reward" else 0.0) for n in rows}
    taken = {n: float(penalty[n]) if penalty_in == "row" else 0.0 for n in rows}
    episode_of = {n: (int(group[n]), int(trajectory[n])) for n in rows}

    total_return: dict[tuple[int, int], float] = {}
    for n in sorted(rows, key=lambda n: int(step[n])):
        total_return[episode_of[n]] = total_return.get(episode_of[n], 0.0) + r[n]
    discounted = {
        n: sum(
            float(gamma) ** (int(step[k]) - int(step[n])) * r[k]
            for k in rows
            if episode_of[k] == episode_of[n] and step[k] >= step[n]
        )
        for n in rows
    }

    score = {n: total_return[episode_of[n]] - taken[n] for n in rows}
    compared: dict[int, list[float]] = {}
    if episode_stats == "trajectory":
        for (g, _), value in total_return.items():
            compared.setdefault(g, []).append(value)
    else:
        for n in rows:
            compared.setdefault(int(group[n]), []).append(score[n])
    states: dict[tuple[int, int, int], list[int]] = {}
    for n in rows:
        states.setdefault((int(group[n]), int(anchor[n][0]), int(anchor[n][1])), []).append(n)

    def against(value: float, values: list[float]) -> float:
        difference = value - sum(values) / len(values)
        if normalize == "mean":
            return difference
        deviation = spread(values, ddof)
        return difference / (deviation + eps) if deviation > 1e-9 else 0.0

    out = np.zeros((len(mask), 3))
    for n in rows:
        values = compared[int(group[n])]
        if len(values) == 1:
            out[n, 1] = score[n] if singleton_episode == "raw" else 0.0
        else:
            out[n, 1] = against(score[n], values)
    for members in states.values():
        values = [discounted[n] - taken[n] for n in members]
        for n, value in zip(members, values):
            out[n, 2] = against(value, values) if len(members) > 1 else 0.0
    out[:, 0] = out[:, 1] + step_weight * out[:, 2]
    return out


def gae(reward, value, index, *, gamma, lam):
    """[n, 2] f64, advantage and target along one chain of places; `index` tells how far apart they
    are.
    """
    out = np.zeros((len(reward), 2))
    after = None
    for t in reversed(range(len(reward))):
        error = float(reward[t]) - float(value[t])
        advantage = error
        if after is not None:
            width = int(index[after]) - int(index[t])
            advantage += gamma**width * float(value[after]) + (gamma * lam) ** width * out[after, 0]
        out[t] = advantage, advantage + float(value[t])
        after = t
    return out


def step_gae(reward, value, trajectory, step, group, mask, *, gamma, lam):
    """[N, 2] f64: `gae` along the unmasked steps of each trajectory."""
    out = np.zeros((len(mask), 2))
    chains: dict[tuple[int, int], list[int]] = {}
    for n in sorted((n for n in range(len(mask)) if mask[n]), key=lambda n: int(step[n])):
        chains.setdefault((int(group[n]), int(trajectory[n])), []).append(n)
    for rows in chains.values():
        out[rows] = gae(
            [reward[n] for n in rows], [value[n] for n in rows], step[rows], gamma=gamma, lam=lam
        )
    return out


def token_gae(reward, value, mask, *, gamma, lam):
    """[N, R, 2] f64: `gae` along the unmasked tokens of each row."""
    out = np.zeros((*mask.shape, 2))
    for n in range(len(mask)):
        at = np.flatnonzero(mask[n])
        out[n, at] = gae(reward[n, at], value[n, at], np.arange(len(at)), gamma=gamma, lam=lam)
    return out
