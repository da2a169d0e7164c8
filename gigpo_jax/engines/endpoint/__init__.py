"""An OpenAI-compatible endpoint in front of an engine; it records the calls of programs."""
