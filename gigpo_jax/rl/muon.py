"""Muon for the matrices of layers (Jordan et al., 2024)."""

import math
from typing import Any

import jax
import optax
from optax import contrib

Params = Any

# Decay of its only moment, as in the authors' code.
MUON_DECAY = 0.95
# Root mean square of an update of Muon. That of AdamW is about as large, so that both take the same
# learning rates and weight decay ("Muon is Scalable for LLM Training", arXiv 2502.16982, eq. 4).
MUON_RMS = 0.2
# Kernels are stacked over layers, [L, in, out]; each layer is a matrix of its own.
MATRIX = contrib.MuonDimensionNumbers(reduction_axis=-2, output_axis=-1)


def label_leaves(params: Params) -> Any:
    """Labels the matrices of layers "muon", and embeddings, norms and biases "adamw", for which the
    authors of Muon advise AdamW.
    """

    def label(path: tuple, _: Any) -> str:
        names = [getattr(key, "key", None) for key in path]
        is_layer = bool({"layers", "dense_layers", "delta_layers"}.intersection(names))
        return "muon" if is_layer and names[-1] == "kernel" else "adamw"

    return jax.tree_util.tree_map_with_path(label, params)


def count_numbers(params: Params) -> int:
    """Counts the numbers in matrices that Muon updates; `params` may be shapes."""
    leaves = zip(jax.tree.leaves(params), jax.tree.leaves(label_leaves(params)), strict=True)
    return sum(leaf.size for leaf, label in leaves if label == "muon")


def scale_by_muon(moment_dtype: Any) -> optax.GradientTransformation:
    """Muon's direction of each matrix, as large as AdamW's."""

    def dimension_numbers(params: Params) -> Any:
        return jax.tree.map(lambda _: MATRIX, params)

    def scale_rms(direction: Params, _: Params) -> Params:
        # All singular values of a direction are about 1, so its root mean square is
        # 1 / sqrt(max(in, out)).
        return direction * (MUON_RMS * math.sqrt(max(direction.shape[-2:])))

    return optax.chain(
        contrib.scale_by_muon(
            beta=MUON_DECAY,
            mu_dtype=moment_dtype,
            weight_dimension_numbers=dimension_numbers,
        ),
        optax.stateless_with_tree_map(scale_rms),
    )
