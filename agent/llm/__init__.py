"""The LLM side of the agent: typed requests from text, the planner, the investigation loop and their guards.

Nothing here is imported by the deterministic commands. DSPy and LiteLLM come with :mod:`agent.llm.lm` and
:mod:`agent.llm.program`, which commands import only when a language model is about to be asked.
"""

import os

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # before either is imported: else both fetch a price list
