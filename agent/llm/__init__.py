"""The LLM side of the agent: typed requests from text, the planner, the investigation loop and their guards.

Nothing here is imported by the deterministic commands. DSPy and LiteLLM are imported by :mod:`agent.llm.lm` alone, and
only when a language model is about to be asked.
"""
