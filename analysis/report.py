"""Runs and their results as one HTML page that needs nothing else: no network, no other file."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..runs.milestones import milestones
from .chart import chart
from .figures.gallery import alternative, gallery, png
from .figures.overlay import run_colors
from .figures.style import paper
from .findings import Finding, findings
from .found import Found, inputs
from .markup import Markup, element, embedded, joined, table
from .report_tables import compared, evidence
from .synopsis import ALIGNED, synopsis

if TYPE_CHECKING:
    from ..runs.store import Run

_PAGE = Path(__file__).with_name("page")
# Nothing is fetched, whatever a run's texts say.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
_HELP = (
    "Point at the chart to read values; drag to zoom, double-click to see all. By keyboard: arrow keys move, "
    "+ and − zoom, 0 shows all. Names switch lines off and on. An open circle is a value with a doubt, which "
    "stands beside it. Bands around lines are quartiles or two standard errors, gray bands lie between "
    "the last step below a milestone and the first at or above it."
)


class Told(NamedTuple):
    """A run and its results."""

    run: Run
    found: Found


def report(runs: Mapping[str, Told], *, command: Sequence[str] = (), figures: bool = True) -> str:
    """The page of one run, or of several side by side, by name; `command` is what made it.

    Summary with verdicts, interactive synoptic chart, tables with evidence, figures, configuration,
    provenance, and how to reproduce it. uPlot (MIT) draws the chart, inlined once.

    Raises:
        ValueError: no run.
    """
    if not runs:
        raise ValueError("runs is empty; give at least one run")
    names = list(runs)
    title = names[0] if len(names) == 1 else f"{len(names)} runs"
    several = len(names) > 1
    body = joined(
        element("header", element("h1", title), element("p", _lead(runs), class_="lead")),
        *([_comparison(runs)] if several else []),
        *([] if several else [_summary(runs[names[0]], "summary")]),
        _chart(runs),
        *(_details(name, told, figures=figures, several=several) for name, told in runs.items()),
        element("footer", element("p", "Made by ", element("code", " ".join(command) or "grokscope"), ".")),
    )
    return _document(f"{title} · grokscope", body, _data(runs))


def _document(title: str, body: Markup, data: Markup) -> str:
    head = joined(
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", _file("uPlot.min.css"), _file("page.css")),
    )
    scripts = joined(
        element("script", data, type="application/json", id="data"),
        element("script", Markup(f"/*\n{_file('uPlot.LICENSE')}*/\n"), _file("uPlot.iife.min.js")),
        element("script", _file("page.js")),
    )
    skip = element("a", "Skip to the chart", href="#chart", class_="skip")
    page = element("body", skip, element("main", body), scripts)
    return f"<!doctype html>\n{element('html', element('head', head), page, lang='en')}\n"


def _file(name: str) -> Markup:
    return Markup((_PAGE / name).read_text(encoding="utf-8"))


def _data(runs: Mapping[str, Told]) -> Markup:
    colors = run_colors(len(runs))
    charts = [
        chart(name, color, synopsis(told.run, told.found.by_kind), milestones(told.run))
        for (name, told), color in zip(runs.items(), colors, strict=True)
    ]
    return embedded({"runs": charts, "aligned": ALIGNED})


def _lead(runs: Mapping[str, Told]) -> str:
    texts = []
    for told in runs.values():
        config, run = told.run.config, told.run
        what = "a run of another program" if config is None else f"{config.task} mod {config.modulus}"
        made = "" if config is None else f", {config.model}, {config.optimizer}, seed {config.seed}"
        texts.append(f"{what}{made}: {run.table.size:,} parameters, {len(run.steps)} snapshots to step ")
        texts[-1] += f"{run.steps[-1]}" if len(run.steps) else "–"
        texts[-1] += "" if run.finished else ", unfinished"
    return texts[0] + "." if len(texts) == 1 else "Compared below; each run's own story follows the chart."


def _summary(told: Told, label: str) -> Markup:
    cards = [_card(finding) for finding in findings(told.run, told.found.by_kind)]
    stale = [element("p", text, class_="doubtful note") for text in told.found.stale]
    return element("section", element("div", *cards, class_="cards"), *stale, aria_label=label)


def _card(finding: Finding) -> Markup:
    verdict = [element("span", finding.verdict, class_=f"verdict {finding.mark}")] if finding.verdict else []
    return element("article", element("h3", finding.topic, *verdict), element("p", finding.text))


def _comparison(runs: Mapping[str, Told]) -> Markup:
    columns = compared({name: (told.run, told.found.by_kind) for name, told in runs.items()})
    heading = element("h2", "Side by side")
    return element("section", heading, table(columns, caption="Runs; a header sorts", sortable=True))


def _chart(runs: Mapping[str, Told]) -> Markup:
    controls = [
        element("button", text, type="button", data_do=action, aria_label=label)
        for text, action, label in (
            ("+", "in", "zoom in"),
            ("−", "out", "zoom out"),
            ("all", "all", "show all"),
        )
    ]
    if len(runs) > 1:
        choices = [element("option", "all, compared", value="all")]
        choices += [element("option", name, value=i) for i, name in enumerate(runs)]
        controls.append(element("label", "runs ", element("select", *choices, id="view")))
    aligned = [element("option", text, value=key) for key, text in ALIGNED.items()]
    controls.append(element("label", "time ", element("select", *aligned, id="align")))
    return element(
        "section",
        element("h2", "What happened"),
        element("div", *controls, element("output", "", id="readout", aria_live="polite"), class_="controls"),
        element(
            "div", id="chart", tabindex="0", role="group", aria_label="synoptic chart; arrow keys read values"
        ),
        element("p", _HELP, class_="note"),
        element("noscript", element("p", "The chart needs JavaScript; tables and figures below do not.")),
    )


def _details(name: str, told: Told, *, figures: bool, several: bool) -> Markup:
    parts = [_summary(told, f"summary of {name}")] if several else []
    parts += [
        _fold(title, table(columns, caption=caption)) for title, caption, columns in evidence(told.found)
    ]
    if figures:
        parts.append(_fold("Figures", element("div", *_pictures(told), class_="figures")))
    parts += [_fold("Configuration", _configuration(told.run)), _fold("Provenance", _provenance(told))]
    parts.append(_fold("How to reproduce it", _reproduction(told)))
    heading = element("h2", name if several else "Evidence")
    return element("section", heading, *parts, aria_label=f"details of {name}")


def _fold(title: str, *content: Markup) -> Markup:
    return element("details", element("summary", title), *content)


def _pictures(told: Told) -> list[Markup]:
    pictures = []
    with paper("single"):
        for stem, figure in gallery(told.run, told.found):
            source = "data:image/png;base64," + base64.b64encode(png(figure)).decode()
            image = element("img", src=source, alt=alternative(figure), loading="lazy")
            pictures.append(element("figure", image, element("figcaption", stem.replace("_", " "))))
    return pictures


def _configuration(run: Run) -> Markup:
    if run.config is None:
        return element("p", "This run was recorded or imported; its configuration is not known.")
    fields = asdict(run.config)
    default = asdict(type(run.config)())
    values = [json.dumps(value, default=str) for value in fields.values()]
    changed = ["" if fields[name] == default[name] else "changed" for name in fields]
    columns = {"field": list(fields), "value": values, "default": changed}
    return table(columns, caption="Configuration")


def _provenance(told: Told) -> Markup:
    record = inputs(told.run, told.found)
    facts = {**told.run.provenance, "finish_reason": told.run.finish_reason}
    facts |= {key: record[key] for key in ("hash", "sha256", "snapshots", "finished")}
    rows = table({"fact": list(facts), "value": list(map(str, facts.values()))}, caption="Run")
    results = record["results"]
    if not results:
        return rows
    columns = {"result": [row["file"] for row in results], "SHA-256": [row["sha256"] for row in results]}
    columns["options"] = [json.dumps(row["options"]) for row in results]
    return joined(rows, table(columns, caption="Results"))


def _reproduction(told: Told) -> Markup:
    name = str(told.run.path)
    file = f"{Path(name).name}.toml"
    lines = [] if told.run.config is None else [f"grokscope train {file} --out {name}"]
    for kind, label in told.found.results:
        lines.append(f"grokscope analyze {kind} {name}" + ("" if label is None else f" --name {label}"))
    lines.append(f"grokscope report {name} --out report.html")
    parts = [element("pre", "\n".join(lines), tabindex="0")]
    if told.run.config is not None:
        parts += [element("p", f"with {file}:"), element("pre", told.run.config.to_toml(), tabindex="0")]
    parts.append(element("p", "The options of each result stand under Provenance."))
    return joined(*parts)
