"""An OpenAI-compatible endpoint in front of an engine, which records what programs of others do with the policy."""
