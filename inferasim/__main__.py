"""``python -m inferasim``."""

from agent.cli.main import main

main()
