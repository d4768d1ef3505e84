"""Sections as a page."""

from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from benchmarks.report.content import Section


def as_html(title: str, sections: Sequence[Section]) -> str:
    """One file with everything in it: no script, no other file, no network."""
    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return environment.get_template("page.html").render(title=title, sections=sections)


def as_markdown(title: str, sections: Sequence[Section]) -> str:
    """The same without charts."""
    parts = [f"# {title}"]
    for section in sections:
        parts += [f"## {section.title}", *section.paragraphs]
        parts += [f"```json\n{section.code}\n```"] if section.code else []
        parts += [str(table) for table in section.tables]
    return "\n\n".join(parts) + "\n"
