"""Pictures as data, and their three renderings: drawn (PNG, SVG), interactive (HTML) and tables for a terminal.

A :class:`Figure` says what is shown; nothing in it knows how it is drawn, so that a picture, the same picture on a page
and its table cannot disagree.
"""

from agent.charts.figure import Axis, Band, Bar, Figure, Mark, Series, Span

__all__ = ["Axis", "Band", "Bar", "Figure", "Mark", "Series", "Span"]
