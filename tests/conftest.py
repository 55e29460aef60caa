"""What all tests share."""

from hypothesis import settings

# A busy machine must not fail a property: no time limit an example, and the same examples on every run.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")
