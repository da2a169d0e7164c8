"""Muon: one step against a singular value decomposition, and what it leaves to AdamW."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gigpo_jax.models import decoder
from gigpo_jax.rl.muon import MUON_RMS, label_leaves
from gigpo_jax.rl.optimizer import make_optimizer
from gigpo_jax.rl.train_step import init_state

SHAPE = decoder.DecoderConfig(96, 16, 32, 2, 4, 2, 8)
SETTINGS = {"lr": 1.0, "grad_clip": 1e9, "weight_decay": 0.0}


def random_tree(seed: int) -> decoder.Params:
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32), decoder.abstract_params(SHAPE)
    )


def first_update(name: str) -> tuple[decoder.Params, decoder.Params]:
    """Gradients, and the first update that an optimizer makes of them."""
    optimizer = make_optimizer(name=name, **SETTINGS)
    params = random_tree(0)
    grads = random_tree(1)
    updates, _ = jax.jit(optimizer.transform.update)(
        grads, init_state(params, optimizer).opt_state, params
    )
    return grads, updates


def test_matrices_of_layers_move_along_all_singular_directions_alike() -> None:
    """The update U S V^T of a gradient U D V^T has S near 1, times the factor for its shape."""
    grads, updates = first_update("muon")
    for name in ("query", "key", "value", "out", "gate", "up", "down"):
        for gradient, update in zip(
            grads["layers"][name]["kernel"], updates["layers"][name]["kernel"], strict=True
        ):
            left, values, right = np.linalg.svd(np.asarray(gradient), full_matrices=False)
            rotated = left.T @ np.asarray(update) @ right.T
            rotated /= MUON_RMS * np.sqrt(max(gradient.shape))
            np.testing.assert_allclose(rotated, np.diag(np.diag(rotated)), atol=2e-4)
            # Five Newton-Schulz steps bring all but the smallest singular values near 1.
            large = values > 0.05 * values.max()
            assert np.all((np.diag(rotated)[large] > 0.6) & (np.diag(rotated)[large] < 1.3))


def test_an_update_is_as_large_as_one_of_adamw() -> None:
    _, muon = first_update("muon")
    _, adamw = first_update("adamw")
    size = jnp.sqrt(jnp.mean(muon["layers"]["up"]["kernel"] ** 2))
    typical = 0.2  # AdamW's in a longer run, arXiv 2502.16982; its first step has 1
    assert 0.5 * typical < float(size) < 1.5 * typical
    assert float(jnp.mean(jnp.abs(adamw["layers"]["up"]["kernel"]))) == pytest.approx(1, rel=1e-3)


def test_everything_else_has_adamw() -> None:
    _, muon = first_update("muon")
    _, adamw = first_update("adamw")
    labels = label_leaves(muon)
    assert labels["embed"] == labels["final_norm"]["scale"] == "adamw"
    assert labels["layers"]["query"] == {"bias": "adamw", "kernel": "muon"}
    is_equal = jax.tree.map(lambda a, b: bool(jnp.all(a == b)), muon, adamw)
    assert is_equal == jax.tree.map(lambda label: label == "adamw", labels)


def test_a_layer_does_not_change_the_update_of_another() -> None:
    optimizer = make_optimizer(name="muon", **SETTINGS)
    params = random_tree(0)
    state = init_state(params, optimizer).opt_state
    grads = random_tree(1)
    first_alone = jax.tree.map(lambda x: x, grads)
    kernel = grads["layers"]["up"]["kernel"]
    first_alone["layers"]["up"]["kernel"] = kernel.at[1].set(0.0)
    both, _ = optimizer.transform.update(grads, state, params)
    alone, _ = optimizer.transform.update(first_alone, state, params)
    np.testing.assert_allclose(
        alone["layers"]["up"]["kernel"][0], both["layers"]["up"]["kernel"][0], rtol=1e-5, atol=1e-6
    )
    assert not np.any(alone["layers"]["up"]["kernel"][1])
