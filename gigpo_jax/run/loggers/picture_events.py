"""Pictures in TensorBoard event files."""

from collections.abc import Sequence

from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.image import metadata as image
from tensorboard.util.tensor_util import make_tensor_proto

from gigpo_jax.core.png import png_size
from gigpo_jax.run.loggers.glossary import describe_metric


def picture_summary(name: str, files: Sequence[bytes]) -> Summary:
    """The summary of PNG files of one size."""
    height, width = png_size(files[0])
    tensor = make_tensor_proto([str(width).encode(), str(height).encode(), *files])
    metadata = image.create_summary_metadata(display_name=None, description=describe_metric(name))
    return Summary(value=[Summary.Value(tag=name, tensor=tensor, metadata=metadata)])
