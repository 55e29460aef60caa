"""Load generation: a small streaming client, single waves, closed loops, and adapters for kept clients."""
