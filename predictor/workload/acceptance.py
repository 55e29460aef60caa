"""Drawn acceptance: how many verify steps a request needs, token by token (paper A.2).

Draft token ``j`` is accepted with probability ``a_j`` if all before it were; a verify step commits one token more than
it accepts. The mean is ``L(k) = 1 + sum of products``, the tokens a step of the step model.
"""

from collections.abc import Generator, Sequence

import numpy as np

from predictor.errors import BadInput


def mean_tokens_per_step(acceptance: Sequence[float]) -> float:
    """L(k) of conditional acceptance rates (paper Eq. 2).

    >>> mean_tokens_per_step([0.8, 0.5])
    2.2
    """
    return 1.0 + float(np.cumprod(acceptance).sum())


def verify_steps(acceptance: Sequence[float], rng: "np.random.Generator") -> Generator[int, int, None]:
    """A generator to which output tokens (after the first) are sent; it answers with the verify steps they take.

    >>> steps = verify_steps([1.0, 1.0], np.random.default_rng(0))
    >>> next(steps), steps.send(7), steps.send(6)
    (0, 3, 2)
    """
    if not acceptance or any(not 0.0 <= rate <= 1.0 for rate in acceptance):
        raise BadInput(f"acceptance {tuple(acceptance)}: rates between 0 and 1, one a drafted token")
    reach = np.cumprod(acceptance)  # probability that so many drafted tokens are accepted, or more
    tokens = yield 0
    while True:
        drawn = rng.random(tokens)
        committed = 1 + (drawn[:, None] < reach).sum(axis=1)
        tokens = yield int(np.searchsorted(np.cumsum(committed), tokens)) + 1 if tokens else 0
