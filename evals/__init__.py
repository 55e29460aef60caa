"""Scored studies against recorded runs; never in the wheel."""
