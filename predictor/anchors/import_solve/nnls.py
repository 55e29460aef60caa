"""Non-negative least squares (Lawson and Hanson 1974, ch. 23): small systems, no dependency beyond NumPy."""

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


def nnls(matrix: FloatArray, target: FloatArray) -> FloatArray:
    """``argmin ‖A·x − b‖`` over ``x ≥ 0``; matrix (rows, columns), target (rows).

    >>> nnls(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([2.0, -1.0])).tolist()
    [2.0, 0.0]
    """
    columns = matrix.shape[1]
    passive = np.zeros(columns, dtype=bool)
    x = np.zeros(columns)
    scale = np.linalg.norm(matrix, axis=0)
    gradient = matrix.T @ (target - matrix @ x)
    tolerance = 1e-10 * float(np.max(np.abs(matrix.T @ target), initial=1e-300))
    for _ in range(3 * columns + 10):
        candidates = np.where(~passive & (scale > 0.0), gradient, -np.inf)
        best = int(np.argmax(candidates))
        if passive.all() or candidates[best] <= tolerance:
            break
        passive[best] = True
        while True:
            trial = np.zeros(columns)
            trial[passive] = np.linalg.lstsq(matrix[:, passive], target, rcond=None)[0]
            if np.all(trial[passive] > 0.0):
                x = trial
                break
            blocked = passive & (trial <= 0.0)
            steps = x[blocked] / np.maximum(x[blocked] - trial[blocked], 1e-300)
            x = x + float(np.min(steps)) * (trial - x)
            passive &= x > 1e-14 * max(1.0, float(np.max(x)))
            x[~passive] = 0.0
            if not passive.any():
                break
        gradient = matrix.T @ (target - matrix @ x)
    return x
