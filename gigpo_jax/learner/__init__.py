"""Episodes -> samples -> columns -> advantages -> packed minibatches -> updates."""
