"""Config keys of the optimizer that few runs change."""

from gigpo_jax.config.key_types import DECAY, KeySet
from gigpo_jax.config.keys import declare, named_keys
from gigpo_jax.core.settings import FRACTION, NOT_NEGATIVE, POSITIVE, one_of
from gigpo_jax.rl.optimizer import OPTIMIZERS

KEYS = named_keys(
    declare(
        "optim.name",
        "optimizer; muon: Muon for the matrices of the layers, AdamW for everything else",
        one_of(*OPTIMIZERS),
    ),
    declare(
        "optim.warmup_fraction", "fraction of the run in which the learning rate rises", FRACTION
    ),
    declare("optim.b2", "decay of the second moment", DECAY),
    # For all parameters at a higher rate; published scripts differ in it.
    declare("optim.weight_decay", "decoupled weight decay", NOT_NEGATIVE),
    # For a critic or an adapter with a rate whose first gradients are large.
    declare("optim.grad_clip", "largest global gradient norm", POSITIVE),
)
KEY_SET = KeySet(KEYS)
