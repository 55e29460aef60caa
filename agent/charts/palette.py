"""Colours and shapes that also tell apart for people with colour-blind eyes.

Okabe and Ito's palette (Color Universal Design, jfly.uni-koeln.de/color, 2008), its yellow darkened to stand on white;
series differ in shape too, so that no meaning hangs on colour alone.
"""

COLOURS = (
    "#0072B2",  # blue
    "#D55E00",  # vermillion
    "#009E73",  # bluish green
    "#CC79A7",  # reddish purple
    "#E69F00",  # orange
    "#56B4E9",  # sky blue
    "#8A7A00",  # yellow, darkened
    "#444444",  # black, lightened
)
FAINT = "#9AA3AE"
GUIDE = "#6B7280"
BAND_SHADES = ("#F7FAFD", "#EDF3F9", "#E1EBF5", "#D3E2F0")  # lightest first: the slowest tier
INK = "#1B2733"
GRID = "#E3E7EC"
# Names of the same shapes in plotly and in matplotlib.
SHAPES = (("circle", "o"), ("square", "s"), ("diamond", "D"), ("triangle-up", "^"), ("cross", "P"), ("star", "*"))


def colour(number: int) -> str:
    """A colour of the palette; after the last it starts again."""
    return COLOURS[number % len(COLOURS)]


def shape(number: int) -> tuple[str, str]:
    """A shape as plotly and matplotlib call it."""
    return SHAPES[number % len(SHAPES)]


def band_shade(number: int, count: int) -> str:
    """Shade of a band, the last of ``count`` the deepest."""
    return BAND_SHADES[max(0, len(BAND_SHADES) - count + number) % len(BAND_SHADES)]
