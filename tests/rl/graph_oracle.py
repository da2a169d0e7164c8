"""Values of states and the methods of the graph in plain Python: float64, dicts and a dense linear
solve, nothing shared with the package.

Columns are a dict of arrays; results are [N] f64, 0 where masked.
"""

import math
from collections import defaultdict

import numpy as np

Node = tuple[int, int, int]


def episodes(c) -> dict[tuple[int, int], list[int]]:
    """(group, trajectory) -> its unmasked rows in the order of steps."""
    rows = sorted((n for n in range(len(c["mask"])) if c["mask"][n]), key=lambda n: c["step"][n])
    chains = defaultdict(list)
    for n in rows:
        chains[int(c["group"][n]), int(c["trajectory"][n])].append(n)
    return chains


def node(c, n) -> Node:
    return int(c["group"][n]), int(c["anchor"][n][0]), int(c["anchor"][n][1])


def visits(c) -> dict[Node, list[int]]:
    """node -> its unmasked rows."""
    rows = defaultdict(list)
    for n in range(len(c["mask"])):
        if c["mask"][n]:
            rows[node(c, n)].append(n)
    return rows


def next_rows(c) -> dict[int, int | None]:
    """row -> the next row of its episode."""
    return {n: m for rows in episodes(c).values() for n, m in zip(rows, [*rows[1:], None])}


def rewards(c) -> np.ndarray:
    return c["reward"].astype(float) - c["penalty"].astype(float)


def with_ends(c, seed: int):
    """The batch with random ends: half of the episodes won, half of the others cut by the limit."""
    rng = np.random.default_rng((seed, 2))
    won = np.zeros(len(c["mask"]), bool)
    cut = np.zeros(len(c["mask"]), bool)
    for rows in episodes(c).values():
        won[rows] = rng.random() < 0.5
        cut[rows[-1]] = not won[rows[-1]] and rng.random() < 0.5
    return c | {"won": won, "truncated": cut}


def state_values(c, *, gamma, left_out=frozenset(), pseudo_visits=0.0) -> np.ndarray:
    """One dense system for all states of all groups.

    The outcome of a pseudo-visit is the mean return of the group.
    """
    states = visits(c)
    number = {state: i for i, state in enumerate(states)}
    after = next_rows(c)
    reward = rewards(c)
    # Only pseudo-visits need them, and they take long.
    returns = discounted_returns(c, gamma=gamma) if pseudo_visits else np.zeros(len(reward))
    matrix = np.eye(len(states))
    right = np.zeros(len(states))
    for state, all_rows in states.items():
        rows = [n for n in all_rows if n not in left_out]
        group = [n for n in after if c["group"][n] == state[0] and n not in left_out]
        if not (rows or pseudo_visits):
            continue
        count = len(rows) + pseudo_visits
        prior = sum(returns[n] for n in group) / max(len(group), 1)
        right[number[state]] += pseudo_visits * prior / count
        for n in rows:
            right[number[state]] += reward[n] / count
            m = after[n]
            if m is not None:
                width = int(c["step"][m]) - int(c["step"][n])
                matrix[number[state], number[node(c, m)]] -= gamma**width / count
    solution = np.linalg.solve(matrix, right)
    out = np.zeros(len(c["mask"]))
    for state, rows in states.items():
        out[rows] = solution[number[state]]
    return out


def discounted_returns(c, *, gamma) -> np.ndarray:
    reward = rewards(c)
    returns = np.zeros(len(c["mask"]))
    for rows in episodes(c).values():
        for at, n in enumerate(rows):
            returns[n] = sum(
                gamma ** (int(c["step"][m]) - int(c["step"][n])) * reward[m] for m in rows[at:]
            )
    return returns


def compare(values: dict[int, float], normalize: str, ddof: int) -> dict[int, float]:
    """row -> (v - mean) / F over all of them; 0 where they are alike."""
    mean = sum(values.values()) / len(values)
    square = sum((v - mean) ** 2 for v in values.values())
    deviation = math.sqrt(square / max(len(values) - ddof, 1))
    if normalize == "mean":
        return {n: v - mean for n, v in values.items()}
    if deviation < 1e-12:
        return dict.fromkeys(values, 0.0)
    return {n: (v - mean) / (deviation + 1e-6) for n, v in values.items()}


def compare_groups(c, values: np.ndarray, normalize: str, ddof: int) -> np.ndarray:
    """`compare` over the rows of each task group."""
    out = np.zeros(len(values))
    for group in {key[0] for key in visits(c)}:
        rows = [n for n in range(len(values)) if c["mask"][n] and c["group"][n] == group]
        for n, v in compare({n: values[n] for n in rows}, normalize, ddof).items():
            out[n] = v
    return out


def gae(c, value: np.ndarray, *, gamma, lam, left_out=frozenset()) -> np.ndarray:
    out = np.zeros(len(value))
    reward = rewards(c)
    for rows in episodes(c).values():
        later = None
        for n in reversed(rows):
            out[n] = 0.0 if n in left_out else reward[n] - value[n]
            if later is not None:
                width = int(c["step"][later]) - int(c["step"][n])
                out[n] += gamma**width * value[later] + (gamma * lam) ** width * out[later]
            later = n
    return out


def graph_values(c, *, gamma, lam, shrinkage, truncation, normalize, ddof) -> np.ndarray:
    """Without the episode advantage."""
    left_out = set(np.flatnonzero(c["truncated"])) if truncation == "ignore" else frozenset()
    value = state_values(c, gamma=gamma, left_out=left_out, pseudo_visits=shrinkage)
    advantage = gae(c, value, gamma=gamma, lam=lam, left_out=left_out)
    return compare_groups(c, advantage, normalize, ddof)


def outcomes(c, penalty_in="row") -> dict[tuple[int, int], float]:
    """(group, trajectory) -> undiscounted return."""
    reward = rewards(c) if penalty_in == "reward" else c["reward"].astype(float)
    return {key: float(sum(reward[n] for n in rows)) for key, rows in episodes(c).items()}


def compare_states(c, values: np.ndarray, normalize: str, ddof: int) -> np.ndarray:
    """`compare` over the rows of each state; 0 where a state has one row."""
    out = np.zeros(len(values))
    for rows in visits(c).values():
        if len(rows) > 1:
            for n, v in compare({n: values[n] for n in rows}, normalize, ddof).items():
                out[n] = v
    return out


def g2po(c, *, gamma, normalize, ddof, penalty_in) -> np.ndarray:
    """Without the episode advantage."""
    result = outcomes(c, penalty_in)
    score, follow = np.zeros(len(c["mask"])), np.zeros(len(c["mask"]))
    chains = episodes(c)
    for key, rows in chains.items():
        for n in rows:
            score[n] = gamma ** (int(c["step"][rows[-1]]) - int(c["step"][n]) + 1) * result[key]
    value = {state: sum(score[n] for n in rows) / len(rows) for state, rows in visits(c).items()}
    for key, rows in chains.items():
        for n, m in zip(rows, [*rows[1:], None]):
            follow[n] = result[key] if m is None else value[node(c, m)]
    taken = c["penalty"].astype(float) * (penalty_in == "row")
    own = np.array([value.get(node(c, n), 0.0) for n in range(len(score))])
    return compare_states(c, follow - taken, normalize, ddof) + compare_groups(
        c, follow - own, normalize, ddof
    )


def graphgpo(c, *, omega, normalize, ddof) -> np.ndarray:
    """Without the episode advantage. Distances by breadth-first search from the success."""
    result, worth = outcomes(c), np.zeros(len(c["mask"]))
    for group in {key[0] for key in result}:
        target, sources = {}, defaultdict(set)
        for key, rows in episodes(c).items():
            if key[0] != group:
                continue
            for n, m in zip(rows, [*rows[1:], None]):
                end = "success" if c["won"][n] else "failure"
                target[n] = end if m is None else node(c, m)
                sources[target[n]].add(node(c, n))
        distance, border = {"success": 0}, ["success"]
        while border:
            place = border.pop(0)
            for source in sources[place]:
                if source not in distance:
                    distance[source] = distance[place] + 1
                    border.append(source)
        if len(distance) > 1:
            far = max(distance.values()) + 1
            for n, place in target.items():
                worth[n] = 10.0 * omega ** distance.get(place, far)
    return compare_states(c, worth, normalize, ddof)


def gagpo(c, *, gamma, lam, normalize, ddof) -> np.ndarray:
    returns = discounted_returns(c, gamma=gamma)
    value = np.zeros(len(returns))
    for rows in visits(c).values():
        value[rows] = sum(returns[n] for n in rows) / len(rows)
    return compare_groups(c, gae(c, value, gamma=gamma, lam=lam), normalize, ddof)
