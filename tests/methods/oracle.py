"""The formulas of the methods in plain Python: float64, dicts and loops, nothing shared with the
package.

Each function takes columns as a dict of arrays and gives [N] f64, 0 where masked.
"""

import itertools
import math
from collections import defaultdict

import numpy as np


def episodes(c) -> dict[tuple[int, int], list[int]]:
    """(group, trajectory) -> its unmasked rows in the order of steps."""
    found = defaultdict(list)
    for n in sorted(np.flatnonzero(c["mask"]), key=lambda n: int(c["step"][n])):
        found[int(c["group"][n]), int(c["trajectory"][n])].append(int(n))
    return found


def rewards(c, penalty_in) -> tuple[np.ndarray, np.ndarray]:
    """[N] f64 rewards and penalties that are taken from rows."""
    reward = c["reward"].astype(float)
    penalty = c["penalty"].astype(float)
    return (reward - penalty, 0 * penalty) if penalty_in == "reward" else (reward, penalty)


def z(values: dict, ddof: int, normalize: str = "mean_std") -> dict:
    """key -> (x - mean) / F over all of them."""
    mean = sum(values.values()) / len(values)
    if normalize == "mean":
        return {key: x - mean for key, x in values.items()}
    deviation = math.sqrt(
        sum((x - mean) ** 2 for x in values.values()) / max(len(values) - ddof, 1)
    )
    return {
        key: (x - mean) / (deviation + 1e-6) if deviation > 1e-9 else 0.0
        for key, x in values.items()
    }


def grouped(keys: dict) -> list[list[int]]:
    """row -> key as lists of rows with equal keys."""
    found = defaultdict(list)
    for row, key in keys.items():
        found[key].append(row)
    return list(found.values())


def text(column, n) -> tuple[int, int]:
    return int(column[n][0]), int(column[n][1])


def hgpo(c, *, gamma, history, alpha, weight_offset, normalize, penalty_in):
    reward, taken = rewards(c, penalty_in)
    score = {}
    keys = [{} for _ in range(history + 1)]
    for (group, _), rows in episodes(c).items():
        for at, n in enumerate(rows):
            score[n] = (
                sum(gamma ** int(c["step"][m] - c["step"][n]) * reward[m] for m in rows[at:])
                - taken[n]
            )
            for k in range(1, min(history + 1, at + 1) + 1):
                keys[k - 1][n] = (group, *(text(c["anchor"], m) for m in rows[at - k + 1 : at + 1]))
    levels = defaultdict(list)
    for k, of in enumerate(keys, 1):
        for rows in grouped(of):
            if len(rows) > 1:
                for n, a in z({n: score[n] for n in rows}, 0, normalize).items():
                    levels[n].append((k + weight_offset, a))
    out = np.zeros(len(c["mask"]))
    for n in score:
        used = [(level**alpha, a) for level, a in levels[n] if abs(a) > 1e-6]
        out[n] = sum(w * a for w, a in used) / (sum(w for w, _ in used) + 1e-6)
    return out


def salt(c, inherited):
    out = inherited.copy()
    edges = {
        n: (int(c["group"][n]), *(text(c[name], n) for name in ("anchor", "action", "next_anchor")))
        for n in np.flatnonzero(c["mask"]).tolist()
    }
    for rows in grouped(edges):
        out[rows] = sum(inherited[n] for n in rows) / len(rows)
    return out


def empg(c, inherited, *, k, k_next, zeta):
    rows = np.flatnonzero(c["mask"])
    entropy = c["entropy"].astype(float)
    low = entropy[rows].min()
    high = entropy[rows].max()
    h = (entropy - low) / (high - low + 1e-8)
    mean = sum(math.exp(-k * h[n]) for n in rows) / len(rows)
    out = np.zeros(len(entropy))
    for chain in episodes(c).values():
        for n, after in zip(chain, [*chain[1:], None]):
            bonus = 0.0 if after is None else zeta * math.exp(-k_next * h[after])
            out[n] = inherited[n] * math.exp(-k * h[n]) / mean + bonus
    out[rows] -= out[rows].sum() / len(rows)
    return out


def repeat_discount(c, inherited, *, repeat, pair):
    out = np.zeros(len(inherited))
    for chain in episodes(c).values():
        actions = [text(c["action"], n) for n in chain]
        pairs = list(itertools.pairwise(actions))
        for at, n in enumerate(chain):
            again = actions[:at].count(actions[at])
            both = pairs[: at - 1].count(pairs[at - 1]) if at else 0
            w = (repeat**again + pair**both) / 2
            out[n] = inherited[n] * (w if inherited[n] >= 0 else 2 - w)
    return out


def tree(c, *, normalize, ddof, penalty_in):
    reward, taken = rewards(c, penalty_in)
    chains = episodes(c)
    returns = {key: sum(reward[n] for n in rows) for key, rows in chains.items()}
    nodes = {
        n: (key[0], text(c["anchor"], n), frozenset(text(c["action"], m) for m in rows[:at]))
        for key, rows in chains.items()
        for at, n in enumerate(rows)
    }
    episode = {n: key for key, rows in chains.items() for n in rows}
    out = np.zeros(len(reward))
    for rows in grouped(nodes):
        passing = {episode[n] for n in rows}
        q = sum(returns[key] for key in passing) / len(passing)
        for n in rows:
            group = {key: r for key, r in returns.items() if key[0] == episode[n][0]}
            mean = sum(group.values()) / len(group)
            spread = math.sqrt(
                sum((r - mean) ** 2 for r in group.values()) / max(len(group) - ddof, 1)
            )
            divisor = 1.0 if normalize == "mean" else spread + 1e-6
            alone = len(group) == 1 or (normalize == "mean_std" and spread < 1e-9)
            out[n] = 0.0 if alone else (q - taken[n] - mean) / divisor
    return out


def reinforce_pp_baseline(c, episode, *, normalize, ddof):
    """`episode` is [N] f64, the return less the group's mean."""
    rows = np.flatnonzero(c["mask"]).tolist()
    out = np.zeros(len(episode))
    for n, a in z({n: episode[n] for n in rows}, ddof, normalize).items():
        out[n] = a
    return out


def rlvmr(c, episode, *, step_weight, normalize, ddof):
    out = episode.copy()
    tags = {n: (int(c["group"][n]), int(c["tag"][n])) for n in np.flatnonzero(c["mask"]).tolist()}
    for rows in grouped(tags):
        rewards_of = {n: float(c["step_reward"][n]) for n in rows}
        for n, a in (z(rewards_of, ddof, normalize) if len(rows) > 1 else rewards_of).items():
            out[n] += step_weight * a
    return out


def oprl(c, episode, *, step_weight, ddof, normalize):
    out = episode.copy()
    groups = {n: int(c["group"][n]) for n in np.flatnonzero(c["mask"]).tolist()}
    for rows in grouped(groups):
        rewards_of = {n: float(c["implicit_reward"][n]) for n in rows}
        for n, a in z(rewards_of, ddof, normalize).items():
            out[n] += step_weight * a
    return out


def spa_rewards(c, *, grounding):
    """Rewards [N] in place of the environment's, and the critic's target of each row."""
    reward = np.zeros(len(c["mask"]))
    target = np.zeros(len(c["mask"]))
    for rows in episodes(c).values():
        progress = {n: float(c["token_value"][n][c["tokens"][n] - 1]) for n in rows}
        outcome = sum(float(c["reward"][n]) for n in rows)
        for n in rows:
            is_grounded = bool(c["executable"][n]) or n == rows[-1]
            reward[n] = progress[n] + grounding * is_grounded
            target[n] = progress[n] + (outcome - sum(progress.values())) / len(rows)
    return reward, target


def _outcomes(c, penalty_in) -> tuple[dict, dict, np.ndarray]:
    """(group, trajectory) -> its rows; likewise z of its return within the group; [N] penalties of
    rows.
    """
    reward, taken = rewards(c, penalty_in)
    chains = episodes(c)
    outcome = {}
    for keys in grouped({key: key[0] for key in chains}):
        outcome |= z({key: sum(reward[n] for n in chains[key]) for key in keys}, 1)
    return chains, outcome, taken


def igpo(c, *, gamma, penalty_in):
    chains, outcome, taken = _outcomes(c, penalty_in)
    logprob = c["answer_logprob"].astype(float)
    out = np.zeros(len(c["mask"]))
    gains = {
        n: (key[0], logprob[m] - logprob[n])
        for key, rows in chains.items()
        for n, m in itertools.pairwise(rows)
    }
    standard = {}
    for rows in grouped({n: group for n, (group, _) in gains.items()}):
        standard |= z({n: gains[n][1] for n in rows}, 1)
    for key, rows in chains.items():
        share = standard | {rows[-1]: outcome[key]}
        for at, n in enumerate(rows):
            out[n] = (
                sum(gamma ** int(c["step"][m] - c["step"][n]) * share[m] for m in rows[at:])
                - taken[n]
            )
    return out


def a2tgpo(c, *, gamma, penalty_in, alpha, clip_scale):
    """[N, 2] f64: advantages and factors of the clips."""
    chains, outcome, taken = _outcomes(c, penalty_in)
    probability = np.exp(c["answer_logprob"].astype(float))
    out = np.zeros((len(c["mask"]), 2))
    gain = {
        n: probability[m] - probability[n]
        for rows in chains.values()
        for n, m in itertools.pairwise(rows)
    }
    u = dict.fromkeys(np.flatnonzero(c["mask"]).tolist(), 0.0)
    for rows in grouped({n: (int(c["group"][n]), int(c["step"][n])) for n in gain}):
        difference = z({n: gain[n] for n in rows}, 0, "mean")
        variance = sum(x * x for x in difference.values()) / len(rows)
        u |= {n: x / (math.sqrt(variance + 1e-8) + 1e-6) for n, x in difference.items()}
    for key, rows in chains.items():
        for at, n in enumerate(rows):
            later = rows[at:-1]
            last = len(rows) - 1
            d = sum(gamma ** int(c["step"][m] - c["step"][n]) * u[m] for m in later) / math.sqrt(
                max(last - at, 1)
            )
            out[n] = (
                alpha * d + outcome[key] - taken[n],
                1 + clip_scale * (2 / (1 + math.exp(-u[n])) - 1),
            )
    return out


def serl(advantage, difference, action, iteration, *, strength, iterations, weight_clip):
    """Of tokens, any shape: the advantages that hindsight gives."""
    part = strength * max(0.0, 1 - iteration / iterations)
    out = advantage.astype(float)
    for at in np.ndindex(out.shape):
        if action[at]:
            sign = math.copysign(1.0, out[at]) if out[at] else 0.0
            weight = math.exp(sign * min(max(float(difference[at]), -20.0), 20.0))
            out[at] *= (1 - part) + part * min(max(weight, 1 - weight_clip), 1 + weight_clip)
    return out


def max_rl(c, *, penalty_in):
    reward, taken = rewards(c, penalty_in)
    chains = episodes(c)
    out = np.zeros(len(reward))
    for (group, _), rows in chains.items():
        members = [m for key, m in chains.items() if key[0] == group]
        plain = sum(float(c["reward"][n]) for m in members for n in m) / len(members)
        mean = sum(reward[n] for m in members for n in m) / len(members)
        for n in rows:
            if len(members) > 1 and plain > 0:
                out[n] = (sum(reward[m] for m in rows) - taken[n] - mean) / plain
    return out


def ema_grpo(c, *, guard):
    """Differences to the group's mean, divided by the column or by the group's own deviation."""
    of_group = defaultdict(dict)
    for (group, trajectory), rows in episodes(c).items():
        gains = [float(c["reward"][n]) - float(c["penalty"][n]) for n in rows]
        of_group[group][trajectory] = (sum(gains), rows)
    out = np.zeros(len(c["mask"]))
    for members in of_group.values():
        returns = [total for total, _ in members.values()]
        mean = sum(returns) / len(returns)
        variance = sum((x - mean) ** 2 for x in returns) / len(returns)
        every_row = [row for _, rows in members.values() for row in rows]
        divisor = float(c["task_deviation"][every_row[0]]) + 1e-6
        if max(abs(x - mean) / divisor for x in returns) > guard:
            divisor = math.sqrt(variance) + 1e-6
        for total, rows in members.values():
            out[rows] = (total - mean) / divisor
    return out


def lite_ppo(c, *, ddof, penalty_in):
    reward, taken = rewards(c, penalty_in)
    chains = episodes(c)
    out = np.zeros(len(reward))
    returns = {key: sum(reward[n] for n in rows) for key, rows in chains.items()}
    centre = sum(returns.values()) / len(returns)
    deviation = math.sqrt(
        sum((r - centre) ** 2 for r in returns.values()) / max(len(returns) - ddof, 1)
    )
    for key, rows in chains.items():
        group = [r for other, r in returns.items() if other[0] == key[0]]
        for n in rows:
            if len(group) > 1:
                difference = returns[key] - taken[n] - sum(group) / len(group)
                out[n] = difference / (deviation + 1e-6) if deviation > 1e-9 else 0.0
    return out


def hcapo(c, episode, *, gamma, step_weight, normalize, ddof, temperature, ratio_clip):
    """`episode` is [N] f64, the episode advantage."""
    chains = episodes(c)
    out = episode.copy()
    q = {}
    won = {}
    for rows in chains.values():
        total = sum(float(c["reward"][n]) for n in rows)
        p = {n: math.exp(float(c["hindsight_logprob"][n]) / temperature) for n in rows}
        mean = sum(p.values()) / len(rows)
        end = int(c["step"][rows[-1]]) + 1
        for n in rows:
            rho = min(max(p[n] / mean, 1 - ratio_clip), 1 + ratio_clip)
            q[n] = rho * gamma ** (end - int(c["step"][n])) * total
            won[n] = total > 0
    for rows in grouped({n: int(c["group"][n]) for n in q}):
        for n, part in z({n: q[n] for n in rows}, ddof, normalize).items():
            out[n] += step_weight * (max(part, 0.0) if won[n] else part)
    return out
