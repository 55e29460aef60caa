"""Prompts that share nothing: random token ids, or random words where a server takes text alone."""

import numpy as np

# Ids below are often special tokens, ids far up may not exist in a small vocabulary.
LOWEST_ID = 100
WORDS = ("alder", "birch", "cedar", "elm", "fir", "hazel", "larch", "maple", "oak", "pine", "rowan", "spruce", "yew")


class PromptSource:
    """Random prompts from a seed; the same seed gives the same prompts."""

    def __init__(self, seed: int, vocabulary: int, token_ids: bool = True) -> None:
        self._rng = np.random.default_rng(seed)
        self._highest = max(LOWEST_ID + 1, vocabulary - 1)
        self._token_ids = token_ids
        # Tokens a word takes, learned from the server's own counts; 1 until then.
        self.tokens_per_word = 1.0

    def prompt(self, tokens: int) -> list[int] | str:
        """A prompt of so many tokens; as text, of about so many."""
        if self._token_ids:
            ids: list[int] = self._rng.integers(LOWEST_ID, self._highest, size=tokens, endpoint=True).tolist()
            return ids
        count = max(1, round(tokens / self.tokens_per_word))
        return " ".join(WORDS[i] for i in self._rng.integers(0, len(WORDS), size=count).tolist())

    def learn(self, asked: int, counted: int) -> None:
        """Take note of how many tokens the server made of a text prompt."""
        if not self._token_ids and counted > 0:
            self.tokens_per_word *= counted / asked
