"""The text the LLM sees, one file a prompt."""
