"""Answers remembered up to so many bytes: what a long-lived process holds does not grow with the work it has done."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, ParamSpec, TypeVar

Asked = ParamSpec("Asked")
Answer = TypeVar("Answer")


class Remembered(Generic[Asked, Answer]):
    """A pure function of hashable positional arguments whose newest-used answers are kept, ``most_bytes`` in all.

    An answer larger than that is kept until the next one comes: the candidates of one search share it.
    """

    def __init__(self, function: Callable[Asked, Answer], size_bytes: Callable[[Answer], int], most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.held_bytes = 0
        self._function, self._size_bytes = function, size_bytes
        self._held: OrderedDict[Hashable, Answer] = OrderedDict()
        self._lock = Lock()
        self.__doc__ = function.__doc__

    def __call__(self, *args: Asked.args, **kwargs: Asked.kwargs) -> Answer:
        """The answer at hand, or a new one."""
        key = (args, tuple(kwargs.items())) if kwargs else args
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
                return self._held[key]
        answer = self._function(*args, **kwargs)
        with self._lock:
            if key not in self._held:
                self._held[key] = answer
                self.held_bytes += self._size_bytes(answer)
            while self.held_bytes > self.most_bytes and len(self._held) > 1:
                self.held_bytes -= self._size_bytes(self._held.popitem(last=False)[1])
        return answer

    def __len__(self) -> int:
        return len(self._held)

    def cache_clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._held.clear()
            self.held_bytes = 0


def remembered(
    size_bytes: Callable[[Answer], int], most_bytes: int
) -> Callable[[Callable[Asked, Answer]], Remembered[Asked, Answer]]:
    """Decorate a function with :class:`Remembered`.

    >>> double = remembered(len, 8)(lambda text: 2 * text)
    >>> double("ab"), double("abc"), len(double), double.held_bytes
    ('abab', 'abcabc', 1, 6)
    """

    def decorate(function: Callable[Asked, Answer]) -> Remembered[Asked, Answer]:
        return Remembered(function, size_bytes, most_bytes)

    return decorate
