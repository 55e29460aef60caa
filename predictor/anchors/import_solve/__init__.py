"""Anchors out of benchmark files: facts, plausibility, steps solved through the simulator, the artefact."""
