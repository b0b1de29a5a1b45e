"""A report: all measurements of one model as a page that opens from disk, and as Markdown."""

from __future__ import annotations

import html
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvcore.errors import message
from kvcore.lab.errors import SettingError
from kvcore.lab.journal import Journal
from kvcore.lab.load import LoadedModel
from kvcore.lab.outputs import check_folder
from kvcore.lab.report_commands import Commands
from kvcore.lab.report_plan import FULL, QUICK
from kvcore.lab.report_sections import SECTIONS, Progress, Work, origin
from kvcore.lab.tables import Section

FILES = ("report.html", "report.md", "report.json")
JOURNAL = "results.jsonl"

_STYLE = """
:root{color-scheme:light}
body{font:15px/1.55 system-ui,sans-serif;color:#20242a;background:#fff;max-width:62rem;
margin:2.5rem auto;padding:0 1.2rem}
h1{font-size:1.7rem;line-height:1.25;margin:0 0 .4rem}
h2{font-size:1.25rem;margin:3rem 0 .6rem;padding-top:.8rem;border-top:1px solid #dfe2e6}
nav a{margin-right:1.1rem;color:#2563a8;text-decoration:none}
dl{display:grid;grid-template-columns:7rem 1fr;gap:.15rem 1rem;font-size:.86rem;color:#4a5058}
dt{font-weight:600}dd{margin:0;overflow-wrap:anywhere}
ul.findings{background:#f4f6f8;border-left:4px solid #2563a8;padding:.7rem 1rem .7rem 2rem}
figure{margin:1.8rem 0}figcaption{font-weight:600;margin-bottom:.45rem}
figure svg{width:100%;height:auto;display:block}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.84rem}
th,td{padding:.22rem .65rem;text-align:left;white-space:nowrap}
th{border-bottom:2px solid #9aa1a9;font-weight:600}
tbody tr:nth-child(even){background:#f7f8fa}
td.n{text-align:right;font-variant-numeric:tabular-nums}
details{font-size:.84rem;color:#4a5058}pre{white-space:pre-wrap;background:#f4f6f8;
padding:.6rem .8rem}
.note{font-size:.84rem;color:#5a6169;margin:.4rem 0 0;max-width:54rem}
"""


def make_report(
    loaded: LoadedModel,
    backend: Any,
    folder: Path,
    *,
    source: tuple[str, ...],
    quick: bool = False,
    progress: Progress | None = None,
    only: Sequence[str] = (),
) -> dict[str, Path]:
    """Measure a model and write the report.

    Parameters
    ----------
    loaded : LoadedModel
    backend : Backend
    folder : Path
        Made if it is not there. Results are kept in it as they come: a report that was stopped
        continues, and a finished one is only written again.
    source : tuple of str
        How a command line names the model, as :attr:`Commands.source`.
    quick : bool
        Fewer texts, cells and arms.
    progress : callable (what, done, total), optional
    only : sequence of str
        Names of sections' functions; all by default.

    Returns
    -------
    dict
        File name to path.

    Raises
    ------
    SettingError
        There is no section of that name, the folder cannot be written, or it holds a page that
        says more than this one would.
    UnsupportedError
        matplotlib is not installed.
    """
    check_sections(only)
    check_folder("report", folder)
    known = {make.__name__: make for make in SECTIONS if not only or make.__name__ in only}
    title = f"KV cache formats on {loaded.model.config.name}{' (quick)' if quick else ''}"
    _check_page(folder, title, list(known))
    folder.mkdir(parents=True, exist_ok=True)
    commands = Commands(source=source, backend=backend.name)
    work = Work(
        loaded=loaded,
        backend=backend,
        journal=Journal(folder / JOURNAL),
        folder=folder,
        plan=QUICK if quick else FULL,
        commands=commands,
        progress=progress,
    )
    sections = []
    for name, make in known.items():
        start = time.monotonic()
        sections.append(make(work))
        if progress is not None:
            progress(f"section {name}, {time.monotonic() - start:.0f} s", 1, 1)
    command = commands.report(folder.name, quick=quick, only=only)
    return write(folder, title, origin(work, command, list(known)), sections)


def check_sections(only: Sequence[str]) -> None:
    """Check names of sections.

    Raises
    ------
    SettingError
        There is none of a name.
    """
    known = [make.__name__ for make in SECTIONS]
    wrong = [name for name in only if name not in known]
    if wrong:
        expected = ", ".join(known)
        raise SettingError(
            message("report", "unknown section", got=", ".join(wrong), expected=expected)
        )


def _check_page(folder: Path, title: str, names: Sequence[str]) -> None:
    """Refuse to write over a page of another model, a full one by a quick one, or more sections."""
    try:
        data = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        before, held = data["title"], data["origin"].get("sections", "").split(", ")
        more = len(data["sections"]) > len(names) or bool(set(filter(None, held)) - set(names))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return  # none yet, or none that anybody could miss
    if before not in (title, f"{title} (quick)") or more:
        sections = f"{len(data['sections'])} sections"
        raise SettingError(
            message(
                "report",
                f"{folder.name} holds another page",
                got=f"{before}, {sections}",
                expected=f"{title}, {', '.join(names)}",
                fix="give another --out, or the same sections and more",
            )
        )


def write(
    folder: Path, title: str, origins: Mapping[str, str], sections: Sequence[Section]
) -> dict[str, Path]:
    """Write HTML, Markdown, JSON and one SVG per picture."""
    for section in sections:
        for picture in section.pictures:
            (folder / f"{picture.name}.svg").write_text(picture.svg, encoding="utf-8")
    data = {
        "title": title,
        "origin": dict(origins),
        "sections": [
            {"title": s.title, "findings": s.findings, "commands": s.commands, **s.data}
            for s in sections
        ],
    }
    texts = {
        "report.html": page(title, origins, sections),
        "report.md": markdown(title, origins, sections),
        "report.json": json.dumps(data, indent=1, ensure_ascii=False) + "\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return {name: folder / name for name in texts}


def page(title: str, origins: Mapping[str, str], sections: Sequence[Section]) -> str:
    """Return one HTML page that needs nothing beside it."""
    facts = "".join(
        f"<dt>{html.escape(k)}</dt><dd>{html.escape(v)}</dd>" for k, v in origins.items()
    )
    links = "".join(f'<a href="#s{i}">{html.escape(s.title)}</a>' for i, s in enumerate(sections))
    body = "".join(_section_html(i, s) for i, s in enumerate(sections))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}'
        f'</title><meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>{_STYLE}</style></head><body><h1>{html.escape(title)}</h1><dl>{facts}</dl>"
        f"<nav>{links}</nav>\n{body}</body></html>\n"
    )


def _section_html(number: int, s: Section) -> str:
    said = "".join(f"<li>{html.escape(text)}</li>" for text in s.findings)
    said = f"<ul class=findings>{said}</ul>" if said else ""
    # Ids inside the pictures may repeat from one to the next; a prefix keeps them apart.
    pictures = "".join(
        f"<figure><figcaption>{html.escape(p.title)}</figcaption>"
        f"{_own_ids(p.svg, p.name)}</figure>\n"
        for p in s.pictures
    )
    tables = "".join(t.html() for t in s.tables)
    lines = html.escape("\n".join(s.commands))
    how = f"<details><summary>How to measure this again</summary><pre>{lines}</pre></details>"
    parts = (said, how if s.commands else "", f"\n{pictures}{tables}")
    return f'<h2 id="s{number}">{html.escape(s.title)}</h2>{"".join(parts)}'


def _own_ids(svg: str, prefix: str) -> str:
    for mark in ('id="', 'href="#', "url(#"):
        svg = svg.replace(mark, f"{mark}{prefix}-")
    return svg


def markdown(title: str, origins: Mapping[str, str], sections: Sequence[Section]) -> str:
    """Return the same in Markdown; pictures lie beside it."""
    parts = [f"# {title}", ""]
    parts += [f"- **{k}**: {v}" for k, v in origins.items()]
    for s in sections:
        parts += ["", f"## {s.title}", ""]
        parts += [f"* {text}" for text in s.findings]
        parts += ["", "```sh", *s.commands, "```"] if s.commands else []
        for p in s.pictures:
            parts += ["", f"![{p.title}]({p.name}.svg)", "", f"*{p.title}*"]
        for t in s.tables:
            parts += ["", t.markdown().rstrip()]
    return "\n".join(parts) + "\n"
