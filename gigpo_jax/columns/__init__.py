"""What algorithms may need of steps beside the rollout: log-probabilities, action spans, tags, values."""
