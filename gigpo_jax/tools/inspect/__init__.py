"""Shows a run as one HTML file: `gigpo inspect RUN [RUN]` (docs/inspect.md)."""
