"""What a harvest will measure, and about how long it takes: pure, so that ``--dry-run`` shows what a run would do."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from json import dumps

from predictor.errors import BadInput
from predictor.step.model import StepModel

# Decode steps timed in a wave once all its requests decode; a median of fewer is at the mercy of single hiccups.
WINDOW_STEPS = 48
REPEATS = 3
PREFILL_LENGTHS = 5  # paper §3.1.1
PROBE_SEQUENCES = 4
# Loading weights, capturing graphs and warming up; what engines on one node take.
START_MINUTES = 4.0
CHEAPEST = 1


@dataclass(frozen=True, slots=True)
class HarvestPlan:
    """Sweeps of one harvest.

    ``batches`` are single waves at ``prompt_tokens``; ``second_prompt_tokens`` repeats some of them at another length
    (0: not); ``prefill_tokens`` are timed alone; ``probe_sequences`` prompts go into one step (0: no probe).
    """

    prompt_tokens: int
    batches: tuple[int, ...]
    prefill_tokens: tuple[int, ...]
    second_prompt_tokens: int = 0
    second_batches: tuple[int, ...] = ()
    probe_sequences: int = 0
    window_steps: int = WINDOW_STEPS
    repeats: int = REPEATS

    @property
    def waves(self) -> list[tuple[int, int]]:
        """(prompt tokens, batch) of every decode point."""
        return [(self.prompt_tokens, batch) for batch in self.batches] + [
            (self.second_prompt_tokens, batch) for batch in self.second_batches
        ]

    @property
    def longest(self) -> int:
        """Longest request, tokens: what the engine's context must hold."""
        return max(self.prompt_tokens, self.second_prompt_tokens, *self.prefill_tokens) + 16 * self.window_steps

    def key(self, signature: str) -> str:
        """Identity of plan and deployment: measurements kept from an interrupted run belong to it."""
        return sha256((dumps(asdict(self), sort_keys=True) + signature).encode()).hexdigest()[:16]

    def minutes(self, model: StepModel | None) -> float:
        """Minutes the engine is held, by a step model; without one, by a second a wave."""
        if model is None:
            return START_MINUTES + (len(self.waves) + len(self.prefill_tokens)) * self.repeats / 60.0
        total = 0.0
        for prompt, batch in self.waves:
            step = model.decode_line(batch, batch * prompt).at(batch * prompt)
            total += batch * model.prefill.prompt_ms(prompt) + (self.window_steps + batch) * step
        total += sum(model.prefill.prompt_ms(tokens) for tokens in self.prefill_tokens)
        return START_MINUTES + total * (self.repeats + 1) / 60e3


def wave_batches(capture_sizes: Sequence[int], max_running: int, pool_requests: int) -> tuple[int, ...]:
    """Captured sizes to measure: powers of two among them, and the largest that can run at once.

    Eager engines have none: powers of two. A padded batch costs what its size does, so sizes between add nothing.

    >>> wave_batches((1, 2, 4, 8, 16, 24, 32, 40), 32, 100)
    (1, 2, 4, 8, 16, 32)
    >>> wave_batches((), 6, 100)
    (1, 2, 4, 6)
    """
    most = max(1, min(max_running, pool_requests, max(capture_sizes) if capture_sizes else max_running))
    powers = [1 << i for i in range(most.bit_length()) if 1 << i <= most]
    sizes = [size for size in powers if not capture_sizes or size in capture_sizes]
    largest = max((size for size in capture_sizes if size <= most), default=most)
    return tuple(sorted({1, *sizes, largest}))


def prefill_lengths(prompt_tokens: int, longest: int, count: int = PREFILL_LENGTHS) -> tuple[int, ...]:
    """Lengths around the billed one, a factor of two apart, up to what the context holds.

    >>> prefill_lengths(1024, 32768)
    (256, 512, 1024, 2048, 4096)
    >>> prefill_lengths(8192, 9000)
    (512, 1024, 2048, 4096, 8192)
    """
    top = prompt_tokens * 4
    while top > longest and top > 16:
        top //= 2
    lengths = {max(1, top >> i) for i in range(count)}
    return tuple(sorted(lengths))


def make_plan(
    prompt_tokens: int,
    *,
    batches: Sequence[int],
    longest: int,
    second_prompt_tokens: int = 0,
    token_budget: int = 0,
    probe: bool = True,
    window_steps: int = WINDOW_STEPS,
    repeats: int = REPEATS,
) -> HarvestPlan:
    """A plan; raises BadInput for what the engine's context cannot hold."""
    if prompt_tokens < 1 or not batches or min(batches) < 1:
        raise BadInput(f"a harvest needs a prompt length and batches of at least 1, got {prompt_tokens} and {batches}")
    needed = max(prompt_tokens, second_prompt_tokens) + 2 * window_steps
    if needed > longest:
        raise BadInput(
            f"prompt-tokens {prompt_tokens}: with {2 * window_steps} answer tokens over the context of {longest}"
        )
    sizes = tuple(sorted(set(batches)))
    second = _thinned(sizes) if second_prompt_tokens else ()
    sequences = min(PROBE_SEQUENCES, token_budget // prompt_tokens) if token_budget else 0
    return HarvestPlan(
        prompt_tokens,
        sizes,
        prefill_lengths(prompt_tokens, longest - 2),
        second_prompt_tokens,
        second,
        sequences if probe and sequences > 1 else 0,
        window_steps,
        repeats,
    )


def _thinned(batches: Sequence[int]) -> tuple[int, ...]:
    """Lightest, middle and heaviest: enough to tell a slope."""
    return tuple(sorted({batches[0], batches[len(batches) // 2], batches[-1]}))
