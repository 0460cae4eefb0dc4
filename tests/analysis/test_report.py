"""The page: everything is in it, a stranger's text does nothing, and nothing is fetched."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from grokscope.analysis.commands.main import main
from grokscope.analysis.figures.gallery import alternative, gallery
from grokscope.analysis.figures.style import paper
from grokscope.analysis.findings import findings
from grokscope.analysis.found import digest, found, inputs
from grokscope.analysis.markup import Markup, element, embedded, joined, shown, table
from grokscope.analysis.report import Told, report
from grokscope.analysis.report_tables import along, compared, evidence
from grokscope.runs.milestones import milestones
from memory_run import random_run
from tiny_run import grokked, tiny

EVIL = "</script><script>alert(1)</script>\" onload='x' &amp; \u2028"
VOID = ("meta", "img", "link", "br")


class Outline(HTMLParser):
    """Tags, attributes and whether every element is closed in order."""

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.links = [], [], []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.links += [value for name, value in attributes if name in ("src", "href", "action", "data")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def told():
    run = grokked()
    return Told(run, found(run))


@pytest.fixture(scope="module")
def page(told):
    return report({"tiny": told}, command=("grokscope", "report", "tiny"))


def data_of(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page)[1])


def test_the_page_is_whole_html_that_fetches_nothing(page):
    outline = Outline(page)
    assert all(link.startswith(("data:image/png;base64,", "#")) for link in outline.links)
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|WebSocket", page)
    policy = next(a["content"] for tag, a in outline.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy
    assert [a["lang"] for tag, a in outline.tags if tag == "html"] == ["en"]
    assert page.count("The MIT License") == 1  # of uPlot, which the page contains
    identities = [a["id"] for _, a in outline.tags if "id" in a]
    assert len(identities) == len(set(identities))


def test_every_picture_has_words(page):
    words = [attributes.get("alt", "") for tag, attributes in Outline(page).tags if tag == "img"]
    assert len(words) >= 10
    assert min(map(len, words)) > 20


def test_words_of_a_picture_name_its_lines_and_their_ends(told):
    with paper():
        figures = dict(gallery(told.run, told.found))
    norm = told.run.metrics["squared_norm"].value
    assert alternative(figures["squared_norm"]).startswith(
        f"squared norm ‖θ‖² against optimizer step: all parameters from {norm[0]:.3g} to {norm[-1]:.3g}"
    )


def test_the_chart_has_the_numbers_of_the_run(told, page):
    (run,) = data_of(page)["runs"]
    accuracy = next(panel for panel in run["panels"] if panel["key"] == "accuracy")
    train = next(line for line in accuracy["lines"] if line["label"] == "train")
    series = told.run.metrics["train_correct"]
    assert train["steps"] == series.step.tolist()
    np.testing.assert_allclose(train["values"], series.value / told.run.provenance["train_total"], rtol=1e-6)
    assert run["milestones"]["memorized"]["step"] == milestones(told.run).memorized.step


def test_what_is_needed_to_do_it_again_is_there(told, page):
    assert told.run.hash in page
    assert "grokscope train tiny-0.toml" in page
    assert f"grokscope analyze trajectory {told.run.path}" in page
    for line in told.run.config.to_toml().splitlines():
        assert line.replace('"', "&quot;").replace("'", "&#x27;") in page
    for path in told.found.paths.values():
        assert digest(path) in page


def test_several_runs_stand_in_one_table(told):
    other = replace(told.run, index=replace(told.run.index, metrics={}))
    page = report({"one": told, "other": Told(other, found(other))}, figures=False)
    outline = Outline(page)
    assert sum(attributes.get("class") == "sortable" for _, attributes in outline.tags) == 1
    assert [run["name"] for run in data_of(page)["runs"]] == ["one", "other"]
    columns = compared({"one": (told.run, told.found.by_kind), "other": (other, {})})
    assert columns["generalized"] == [milestones(told.run).generalized.step, None]
    assert "lr" not in columns  # equal settings don't fill the table


def test_a_strangers_text_is_text(told, tmp_path):
    run = random_run(tmp_path)
    run.provenance, run.finish_reason, run.hash = {EVIL: EVIL}, EVIL, EVIL
    (tmp_path / "run.h5").write_bytes(b"")
    page = report({EVIL: Told(run, told.found._replace(results={}, paths={}, stale=(EVIL,)))}, command=[EVIL])
    assert "<script>alert" not in page
    outline = Outline(page)
    assert not any("onload" in attributes for _, attributes in outline.tags)
    assert [tag for tag, _ in outline.tags].count("script") == 3
    assert data_of(page)["runs"][0]["name"] == EVIL
    with pytest.raises(ValueError, match="at least one run"):
        report({})


def test_a_result_that_is_left_out_is_named(told):
    page = report({"tiny": told._replace(found=told.found._replace(stale=("x.h5 is stale",)))}, figures=False)
    assert "x.h5 is stale" in page


def test_findings_tell_milestones_and_verdicts(told):
    story = {finding.topic: finding for finding in findings(told.run, told.found.by_kind)}
    memorized = milestones(told.run).memorized
    assert story["Memorized"].verdict == f"step {memorized.step}"
    assert f"After step {memorized.below}, not later than {memorized.step}" in story["Memorized"].text
    assert story["Prediction"].verdict == told.found.by_kind["delay"].verdict
    curve = told.found.by_kind["trajectory"]
    assert f"{100 * curve.random_walk_null[0]:.1f} %" in story["Trajectory"].text
    never = replace(told.run, index=replace(told.run.index, metrics={}))
    assert findings(never, {})[1].verdict == "not reached"


def test_tables_have_a_row_per_snapshot_and_only_known_columns(told):
    tables = {title: columns for title, _, columns in evidence(told.found)}
    assert {"Trajectory", "Commutator", "Surface", "Delay"} <= set(tables)
    for columns in tables.values():
        assert len({len(values) for values in columns.values()}) == 1
        assert len(columns) > 2
    curve = told.found.by_kind["surface"]
    assert along("unknown kind", curve)["plane loss"] == list(curve.plane_loss)


def test_inputs_are_named_with_their_digests(told):
    record = inputs(told.run, told.found)
    assert record["hash"] == told.run.hash
    assert record["sha256"] == digest(tiny() / "run.h5")
    kinds = {row["kind"]: row for row in record["results"]}
    assert kinds["commutator"]["options"]["pairs"] == 2
    assert json.loads(json.dumps(record)) == record


def test_markup_escapes_all_but_markup():
    assert element("p", "a < b", Markup("<b>c</b>"), title='"') == '<p title="&quot;">a &lt; b<b>c</b></p>'
    assert element("img", alt="x", hidden=True, width=None) == '<img alt="x" hidden>'
    assert joined("&") == "&amp;"
    assert json.loads(embedded({"a": EVIL})) == {"a": EVIL}
    assert not set("<>&") & set(embedded({"a": EVIL}))
    assert [shown(v) for v in (None, float("nan"), np.float32(0.5), True, 3, "x")] == [
        "–",
        "–",
        "0.5",
        "yes",
        "3",
        "x",
    ]


def test_a_table_tells_numbers_to_the_sorter():
    text = table(
        {"run": ["a"], "x": [np.float64(1.5)], "y": [None], "ok": [True]}, caption="t", sortable=True
    )
    assert 'data-value="1.5"' in text
    assert text.count("data-value") == 1
    assert text.count("aria-sort") == 4


def test_the_command_writes_a_page_and_says_how_large(tmp_path, capsys):
    out = tmp_path / "deep" / "page.html"
    assert main(["report", str(tiny()), "--out", str(out), "--no-figures", "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told == {"page": str(out), "bytes": out.stat().st_size, "stale": []}
    assert main(["report", "--out", str(out)]) == 2
    assert list(out.parent.iterdir()) == [out]


def test_figures_of_several_runs_come_with_a_record(tmp_path, capsys):
    runs = [str(tiny()), str(tiny(1, analyzed=False))]
    none = str(tmp_path / "no results")  # drawn in another test
    words = ["figures", *runs, "--out", str(tmp_path), "--align", "milestones", "--results", none]
    assert main(words) == 0
    record = json.loads((tmp_path / "figures.json").read_text())
    assert record["command"][:2] == ["grokscope", "figures"]
    assert [one["snapshots"] for one in record["inputs"]] == [29, 29]
    assert "compare_accuracy.png" in record["figures"]
    assert "tiny-0/synoptic.pdf" in record["figures"]
    for name, sum_ in record["figures"].items():
        assert digest(tmp_path / name) == sum_
    assert main(["figures", str(tiny()), "--out", str(tmp_path), "--align", "generalized"]) == 2
    assert "at least two" in capsys.readouterr().err
