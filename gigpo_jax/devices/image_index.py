"""Images of a global batch: their numbers over all hosts."""

from typing import TYPE_CHECKING

import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from gigpo_jax.devices.mesh import ROWS
from gigpo_jax.models.vision.vision_config import MERGE

if TYPE_CHECKING:
    from gigpo_jax.models.vision.vision import Images


def global_image_index(mesh: Mesh, images: "Images") -> np.ndarray:
    """Returns each patch's feature index over all hosts' images."""
    # Patches are [M, N of this host, P, 588].
    local_count = images.patches.shape[1]
    image_count = local_count * mesh.size // len(mesh.local_devices)
    features = images.patches.shape[2] // MERGE**2  # of one image
    sharding = NamedSharding(mesh, P(ROWS))
    # The global numbers of this host's images: the mesh decides, and they need not be contiguous.
    slices = sharding.addressable_devices_indices_map((image_count,)).values()
    local_images: set[int] = set()
    for device_slice in slices:
        if device_slice:
            local_images |= {*range(*device_slice[0].indices(image_count))}
    first_feature = np.array(sorted(local_images), np.int32) * features
    image, feature = np.divmod(images.index, features)
    # -1 marks a token that is no part of an image.
    return np.where(images.index < 0, -1, first_feature[image] + feature)
