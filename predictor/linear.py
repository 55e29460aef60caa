"""Non-negative least squares: costs are never negative, and a fit that says so is wrong rather than noisy."""

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

_TOLERANCE = 1e-10


def non_negative_least_squares(matrix: FloatArray, rhs: FloatArray) -> FloatArray:
    """Minimise ``|A·x − b|`` over ``x ≥ 0`` by the active-set method of Lawson and Hanson.

    Columns are scaled to unit length first, so that units do not decide which one enters. Exact and deterministic.

    >>> non_negative_least_squares(np.array([[1.0, 1.0], [1.0, 2.0]]), np.array([1.0, 0.0])).round(9).tolist()
    [0.5, 0.0]
    """
    lengths = np.linalg.norm(matrix, axis=0)
    lengths[lengths == 0.0] = 1.0
    a = matrix / lengths
    count = a.shape[1]
    solution = np.zeros(count)
    free = np.zeros(count, dtype=bool)
    for _ in range(3 * count):
        gradient = a.T @ (rhs - a @ solution)
        gradient[free] = -np.inf
        entering = int(np.argmax(gradient)) if count else 0
        if free.all() or gradient[entering] <= _TOLERANCE:
            break
        free[entering] = True
        while True:
            trial = np.zeros(count)
            trial[free], *_ = np.linalg.lstsq(a[:, free], rhs, rcond=None)
            if (trial[free] > 0.0).all():
                solution = trial
                break
            # Walk from the last solution towards the trial until the first coefficient reaches zero.
            falling = free & (trial <= 0.0)
            steps = solution[falling] / (solution[falling] - trial[falling])
            solution = solution + float(steps.min()) * (trial - solution)
            free &= solution > _TOLERANCE
            solution[~free] = 0.0
    result: FloatArray = solution / lengths
    return result
