"""Prompts are files, identified by what the LLM reads."""

from hashlib import sha256

import pytest

from prompts import NAMES, load, load_all


@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_is_its_text_and_hash(name: str) -> None:
    prompt = load(name)
    assert prompt.text
    assert "<!--" not in prompt.text
    assert prompt.sha256 == sha256(prompt.text.encode()).hexdigest()


def test_all_prompts_are_distinct() -> None:
    assert [prompt.name for prompt in load_all()] == list(NAMES)
    assert len({prompt.sha256 for prompt in load_all()}) == len(NAMES)


def test_an_unknown_prompt_is_a_bug() -> None:
    with pytest.raises(FileNotFoundError):
        load("no-such-prompt")
