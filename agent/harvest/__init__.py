"""Harvest an anchor from an engine: start it, time single waves and prompts, check the conditions, stop it."""
