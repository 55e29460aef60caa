"""A document as one HTML file that needs nothing else: its script, its styles and its figures are inside.

A content security policy in the page forbids every request. Each figure has its caption as text for a screen reader
and its numbers as a table beneath, so that nothing hangs on the picture; pictures are drawn as they scroll into sight.
"""

import json
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from agent.charts.document import Block, Commands, Document, Facts, Section, Table, Text, numeric
from agent.charts.figure import Figure, cell
from agent.charts.interactive import FONT, HEIGHT_PIXELS, script, spec
from predictor.version import __version__


def page(document: Document) -> str:
    """The file's text."""
    links = "".join(f'<a href="#{one.key}">{escape(one.title)}</a>' for one in document.sections)
    answer = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in document.answer)
    sections = "\n".join(_section(one) for one in document.sections)
    if document.notes:
        items = "".join(f"<li>{escape(text)}</li>" for text in document.notes)
        sections += f'\n<section id="notes"><h2>Notes</h2><ul class="notes">{items}</ul></section>'
        links += '<a href="#notes">Notes</a>'
    template = Template(files(__package__).joinpath("page.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=escape(document.title),
        subtitle=escape(document.subtitle),
        version=escape(__version__),
        font=FONT,
        answer=answer,
        links=links,
        sections=sections,
        script=script(),
    )


def _section(section: Section) -> str:
    return (
        f'<section id="{escape(section.key)}"><h2>{escape(section.title)}</h2>'
        f"{''.join(_block(block) for block in section.blocks)}</section>"
    )


def _block(block: Block) -> str:
    if isinstance(block, Figure):
        return _figure(block)
    if isinstance(block, Table):
        return _card(block.title, f'<div class="scroll">{_table(block.columns, block.rows)}</div>')
    if isinstance(block, Facts):
        pairs = "".join(f"<dt>{escape(name)}</dt><dd>{escape(cell(value))}</dd>" for name, value in block.pairs)
        return _card(block.title, f'<dl class="facts">{pairs}</dl>')
    if isinstance(block, Commands):
        return _card(block.title, "".join(f"<pre>{escape(line)}</pre>" for line in block.lines))
    return _paragraph(block)


def _paragraph(block: Text) -> str:
    return f"<p>{escape(block.text)}</p>"


def _card(title: str, inner: str) -> str:
    return f'<div class="card"><h3>{escape(title)}</h3>{inner}</div>'


def _figure(figure: Figure) -> str:
    made = spec(figure)
    height = made["layout"].get("height", HEIGHT_PIXELS)
    place = f"figure-{figure.key}"
    return (
        f'<figure class="card" id="{escape(figure.key)}"><h3>{escape(figure.title)}</h3>'
        f"<figcaption>{escape(figure.caption)}</figcaption>"
        f'<div class="plot" role="img" aria-label="{escape(f"{figure.title}. {figure.caption}")}" '
        f'data-figure="{escape(place)}" style="height:{height}px"></div>'
        f'<script type="application/json" id="{escape(place)}">{embedded(made)}</script>'
        f'<details><summary>The figures as a table</summary><div class="scroll">'
        f"{_table(figure.columns, figure.rows)}</div></details></figure>"
    )


def _table(columns: tuple[str, ...], rows: tuple[tuple[object, ...], ...]) -> str:
    kinds = ["n" if numeric(rows, number) else "" for number in range(len(columns))]
    head = "".join(
        f'<th scope="col" class="{kind}">{escape(name)}</th>' for name, kind in zip(columns, kinds, strict=True)
    )
    body = "".join(
        f"<tr>{''.join(_td(value, kind) for value, kind in zip(row, kinds, strict=True))}</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>".replace(' class=""', "")


def _td(value: object, kind: str) -> str:
    return f'<td class="{kind}">{escape(cell(value))}</td>'


def embedded(value: dict[str, Any]) -> str:
    """JSON that may stand inside a script element: nothing in it can close the element.

    >>> embedded({"a": "</script>"})
    '{"a":"\\\\u003c/script>"}'
    """
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
