"use strict";
// The interactive synoptic chart (one uPlot per panel, one time axis for all) and the sortable tables.
(() => {
  const { runs, aligned } = JSON.parse(document.getElementById("data").textContent);
  const box = document.getElementById("chart");
  const readout = document.getElementById("readout");
  const viewChoice = document.getElementById("view");
  const alignChoice = document.getElementById("align");
  const DASHES = { solid: [], dashed: [6, 4], dotted: [2, 3] };
  const AXIS_WIDTH = 64;
  const hidden = new Set();
  let plots = [];
  let zoom = null; // [from, to] on the time axis, null for all of it
  let busy = false;

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const ink = (color) => (color === "#000000" ? css("--ink") : color);
  const faint = (color, alpha) => color + Math.round(alpha * 255).toString(16).padStart(2, "0");
  const number = (value) => (value == null ? "–" : String(Number(value.toPrecision(4))));

  // ---- What is shown -------------------------------------------------------------------------------

  function timeOf(run, align) {
    const { memorized, generalized } = run.milestones;
    if (align === "step") return (step) => step;
    if (align === "memorized") return memorized && ((step) => step - memorized.step);
    if (align === "generalized") return generalized && ((step) => step - generalized.step);
    const delay = memorized && generalized ? generalized.step - memorized.step : 0;
    return delay ? (step) => (step - memorized.step) / delay : null;
  }

  // The panels of one run with all their lines, or of all runs with the main line of each.
  function shown() {
    const chosen = viewChoice && viewChoice.value === "all" ? runs : [runs[viewChoice ? viewChoice.value : 0]];
    const comparing = chosen.length > 1;
    const panels = new Map();
    let missing = 0;
    for (const run of chosen) {
      const time = timeOf(run, alignChoice.value);
      if (!time) { missing += 1; continue; }
      for (const panel of run.panels) {
        if (!panels.has(panel.key)) panels.set(panel.key, { ...panel, lines: [], spans: [], marks: [] });
        const target = panels.get(panel.key);
        for (const line of panel.lines) {
          if (comparing && !line.main) continue;
          target.lines.push({
            ...line,
            label: comparing ? run.name : line.label,
            color: comparing ? run.color : line.color,
            dash: comparing ? "solid" : line.dash,
            times: line.steps.map(time),
            key: comparing ? run.name : panel.key + "/" + line.label,
          });
        }
        if (!comparing) {
          target.spans = panel.spans.map((s) => ({ ...s, low: time(s.low), high: time(s.high) }));
        }
        for (const [name, crossing] of Object.entries(run.milestones)) {
          if (!crossing) continue;
          const [below, at] = [time(crossing.below ?? 0), time(crossing.step)];
          target.marks.push({ name, below, at, color: comparing ? run.color : "#000000", comparing });
        }
      }
    }
    return { panels: [...panels.values()], missing, comparing };
  }

  // ---- One panel -----------------------------------------------------------------------------------

  function hiddenValues(panel) {
    if (panel.scale !== "log") return 0;
    return panel.lines.reduce((sum, line) => sum + line.values.filter((v) => v != null && v <= 0).length, 0);
  }

  const positive = (panel, values) =>
    panel.scale === "log" ? values.map((v) => (v != null && v > 0 ? v : null)) : values;

  // uPlot wants one array of times for all lines; where a line has no point it is `undefined`, a gap is null.
  function tables(panel) {
    const parts = [];
    const series = [{}];
    const bands = [];
    panel.lines.forEach((line) => {
      const show = !hidden.has(line.key);
      const stroke = ink(line.color);
      series.push({
        label: line.label, stroke, width: line.main ? 2 : 1.4, dash: DASHES[line.dash], show, spanGaps: true,
        points: { show: line.marked, size: 6, stroke, fill: stroke },
      });
      parts.push([line.times, positive(panel, line.values)]);
      if (!line.low) return;
      for (const bound of [line.high, line.low]) {
        series.push({ stroke: "transparent", width: 0, show, spanGaps: true, points: { show: false } });
        parts.push([line.times, positive(panel, bound)]);
      }
      bands.push({ series: [series.length - 2, series.length - 1], fill: faint(stroke, 0.2) });
    });
    return { data: uPlot.join(parts), series, bands };
  }

  function extent(panel) {
    const values = panel.lines.filter((line) => !hidden.has(line.key)).flatMap((line) =>
      [line.values, line.low, line.high].filter(Boolean).flatMap((some) => positive(panel, some)));
    const known = values.filter((v) => v != null);
    return known.length ? [Math.min(...known), Math.max(...known)] : [panel.scale === "log" ? 0.1 : 0, 1];
  }

  function vertical(panel) {
    if (panel.limits) return { range: () => panel.limits };
    if (panel.scale === "log") {
      return { distr: 3, range: () => { const [a, b] = extent(panel); return [a / 1.3, b * 1.3]; } };
    }
    if (panel.scale === "symlog") {
      const sizes = panel.lines.flatMap((l) => l.values).filter((v) => v).map(Math.abs).sort((a, b) => a - b);
      const middle = sizes.length ? sizes[Math.floor(sizes.length / 2)] : 1;
      const linear = 10 ** Math.floor(Math.log10(middle / 10));
      return {
        distr: 4, asinh: linear,
        range: () => { const [a, b] = extent(panel); return [a < 0 ? a * 1.4 : a / 1.4, b > 0 ? b * 1.4 : b / 1.4]; },
      };
    }
    return { range: () => { const [a, b] = extent(panel); const d = (b - a || 1) * 0.05; return [a - d, b + d]; } };
  }

  function horizontal(all) {
    const first = Math.min(...all.filter((t) => t > 0), Infinity);
    const range = (u, low, high) => zoom || bounds(all);
    if (alignChoice.value !== "step" || !isFinite(first)) return { time: false, range };
    return { time: false, distr: 4, asinh: 10 ** Math.ceil(Math.log10(first)), range };
  }

  function bounds(all) {
    const [low, high] = [Math.min(...all), Math.max(...all)];
    return low < high ? [low, high] : [low - 1, high + 1];
  }

  const short = (value) => {
    const size = Math.abs(value);
    if (size >= 1e6) return value / 1e6 + "M";
    if (size >= 1e3) return value / 1e3 + "k";
    return String(Number(value.toPrecision(6)));
  };
  const ticks = (u, splits) => splits.map((v) => (v == null ? "" : short(v)));
  const values = (u, splits) => splits.map((v) => {
    if (v == null) return "";
    const size = Math.abs(v);
    return size && (size >= 1e5 || size < 1e-3) ? v.toExponential(0).replace("e+", "e") : String(Number(v.toPrecision(6)));
  });

  // Ticks of a (signed) logarithmic axis: powers of ten, on a short one also twice and five times these.
  function powers(u, axis, min, max) {
    const scale = u.scales[u.axes[axis].scale];
    const signed = scale.distr === 4;
    const [low, high] = [signed ? scale.asinh : min, Math.max(Math.abs(min), Math.abs(max))];
    const factors = Math.log10(high / low) < 2 ? [1, 2, 5] : [1];
    const found = signed ? [0] : [];
    for (let e = Math.floor(Math.log10(low)); 10 ** e <= high; e += 1) {
      for (const factor of factors) {
        const value = Number((factor * 10 ** e).toPrecision(1));
        if (value >= low * 0.999) found.push(value, ...(signed ? [-value] : []));
      }
    }
    return found.filter((v) => v >= min && v <= max).sort((x, y) => x - y);
  }

  // As many labels as there is room for, zero and the largest first.
  function sparse(u, splits, axis) {
    const room = u.axes[axis].side % 2 ? 16 : 34;
    const taken = [];
    const kept = new Set();
    for (const v of [...splits].sort((x, y) => (y === 0) - (x === 0) || Math.abs(y) - Math.abs(x))) {
      const at = u.valToPos(v, u.axes[axis].scale);
      if (taken.some((other) => Math.abs(other - at) < room)) continue;
      taken.push(at);
      kept.add(v);
    }
    return splits.map((v) => (kept.has(v) ? v : null));
  }

  const lines = (distr) => (distr > 1 ? { splits: powers } : {});

  function annotate(panel, isFirst) {
    return (u) => {
      const { ctx } = u;
      const { left, top, width, height } = u.bbox;
      const x = (time) => Math.min(left + width, Math.max(left, u.valToPos(time, "x", true)));
      const inside = (time) => time >= u.scales.x.min && time <= u.scales.x.max;
      ctx.save();
      for (const span of panel.spans) {
        ctx.fillStyle = faint(span.color, 0.22);
        ctx.fillRect(x(span.low), top, x(span.high) - x(span.low), height);
      }
      for (const mark of panel.marks) {
        const color = ink(mark.color);
        ctx.fillStyle = faint(color.length === 7 ? color : "#888888", 0.12);
        ctx.fillRect(x(mark.below), top, x(mark.at) - x(mark.below), height);
        if (!inside(mark.at)) continue;
        ctx.strokeStyle = ctx.fillStyle = color;
        ctx.lineWidth = devicePixelRatio;
        ctx.setLineDash((mark.name === "memorized" ? [2, 3] : [6, 4]).map((n) => n * devicePixelRatio));
        ctx.beginPath();
        ctx.moveTo(x(mark.at), top);
        ctx.lineTo(x(mark.at), top + height);
        ctx.stroke();
        ctx.setLineDash([]);
        triangle(ctx, x(mark.at), top, mark.name === "generalized");
        if (!isFirst || mark.comparing) continue;
        ctx.font = `${12 * devicePixelRatio}px system-ui, sans-serif`;
        ctx.textAlign = x(mark.at) > left + width / 2 ? "right" : "left";
        ctx.fillText(mark.name, x(mark.at), top - (mark.name === "memorized" ? 8 : 22) * devicePixelRatio);
      }
      ctx.restore();
    };
  }

  function triangle(ctx, x, y, full) {
    const size = 4 * devicePixelRatio;
    ctx.beginPath();
    ctx.moveTo(x - size, y - size);
    ctx.lineTo(x + size, y - size);
    ctx.lineTo(x, y + size);
    ctx.closePath();
    if (full) ctx.fill();
    ctx.stroke();
  }

  // Values with a doubt: a ring of paper on top of the point.
  function doubts(panel) {
    return (u) => {
      for (const line of panel.lines) {
        if (hidden.has(line.key)) continue;
        line.notes.forEach((note, i) => {
          const value = positive(panel, [line.values[i]])[0];
          if (!note || value == null) return;
          const [px, py] = [u.valToPos(line.times[i], "x", true), u.valToPos(value, "y", true)];
          if (px < u.bbox.left || px > u.bbox.left + u.bbox.width) return;
          u.ctx.save();
          u.ctx.fillStyle = css("--paper");
          u.ctx.beginPath();
          u.ctx.arc(px, py, 1.9 * devicePixelRatio, 0, 7);
          u.ctx.fill();
          u.ctx.restore();
        });
      }
    };
  }

  function draw(panel, number_, count, times, home) {
    const isLast = number_ === count - 1;
    const section = document.createElement("div");
    section.className = "panel";
    const legend = document.createElement("div");
    legend.className = "legend";
    const lost = hiddenValues(panel);
    const title = document.createElement("strong");
    title.textContent = panel.label + (lost ? ` (${lost} at or below 0 not shown)` : "");
    legend.append(title, ...panel.lines.map((line) => toggle(line)));
    for (const span of panel.spans) legend.append(swatch(span));
    if (panel.lines.some((line) => line.thinned)) legend.append(note("long lines: extremes only"));
    section.append(legend);
    home.append(section);
    const { data, series, bands } = tables(panel);
    const axis = { stroke: css("--ink"), grid: { stroke: css("--grid"), width: 1 }, ticks: { stroke: css("--grid"), width: 1 }, font: "12px system-ui, sans-serif" };
    const [across, up] = [horizontal(times), vertical(panel)];
    const plot = new uPlot({
      width: Math.max(240, home.clientWidth), height: isLast ? 150 : 128, series, bands,
      padding: [number_ === 0 ? 36 : 8, 14, 0, 0],
      legend: { show: false },
      cursor: { points: { size: 8 }, drag: { x: true, y: false, dist: 8 }, y: false },
      scales: { x: across, y: up },
      axes: [
        { ...axis, scale: "x", values: isLast ? ticks : () => [], size: isLast ? 34 : 10, filter: sparse, space: 44, ...lines(across.distr) },
        { ...axis, scale: "y", values, size: AXIS_WIDTH, filter: sparse, space: 24, ...lines(up.distr) },
      ],
      hooks: {
        drawClear: [annotate(panel, number_ === 0)],
        draw: [doubts(panel)],
        setCursor: [(u) => follow(u)],
        setSelect: [(u) => { if (u.select.width > 2) setZoom([u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")]); }],
      },
    }, data, section);
    plot.over.addEventListener("dblclick", () => setZoom(null));
    return { plot, panel, legend };
  }

  function swatch(span) {
    const item = note(span.label);
    const patch = document.createElement("i");
    patch.className = "patch";
    patch.style.background = faint(span.color, 0.4);
    item.prepend(patch);
    return item;
  }

  function note(text) {
    const item = document.createElement("span");
    item.className = "note";
    item.textContent = text;
    return item;
  }

  const clipped = (name) => (name.length > 34 ? `${name.slice(0, 14)}…${name.slice(-19)}` : name);

  function toggle(line) {
    const button = document.createElement("button");
    button.type = "button";
    button.dataset.key = line.key;
    button.setAttribute("aria-pressed", String(!hidden.has(line.key)));
    const dash = document.createElement("i");
    dash.className = "dash " + line.dash;
    dash.style.borderColor = ink(line.color);
    const value = document.createElement("output");
    const name = Object.assign(document.createElement("span"), { className: "name", textContent: clipped(line.label), title: line.label });
    button.append(dash, name, value);
    button.addEventListener("click", () => {
      hidden.has(line.key) ? hidden.delete(line.key) : hidden.add(line.key);
      build();
      box.querySelector(`button[data-key="${CSS.escape(line.key)}"]`).focus();
    });
    return button;
  }

  // ---- Reading, zooming ----------------------------------------------------------------------------

  function nearest(times, time) {
    let [low, high] = [0, times.length - 1];
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      times[middle] < time ? (low = middle) : (high = middle);
    }
    return Math.abs(times[low] - time) <= Math.abs(times[high] - time) ? low : high;
  }

  // All panels point at the time under the pointer, and every name tells its value there.
  function follow(source) {
    if (busy) return;
    const { left } = source.cursor;
    if (left == null || left < 0) return;
    point(source.posToVal(left, "x"), source);
  }

  function point(time, source) {
    busy = true;
    for (const { plot, panel, legend } of plots) {
      if (plot !== source) plot.setCursor({ left: plot.valToPos(time, "x"), top: 0 });
      panel.lines.forEach((line) => {
        const at = nearest(line.times, time);
        const isOff = time < line.times[0] || time > line.times[line.times.length - 1];
        const where = line.marked ? ` at ${line.steps[at]}` : ""; // few points: say which one is read
        const text = isOff ? "–" : [number(line.values[at]) + where, line.notes[at]].filter(Boolean).join(", ");
        const output = legend.querySelector(`button[data-key="${CSS.escape(line.key)}"] output`);
        output.textContent = text;
        output.title = isOff ? "" : `at step ${line.steps[at]}`;
      });
    }
    busy = false;
    const unit = alignChoice.value === "step" ? "step " : "";
    const rounded = alignChoice.value === "milestones" ? time.toFixed(2) : Math.round(time);
    readout.textContent = `${unit}${rounded}${unit ? "" : " (" + aligned[alignChoice.value] + ")"}`;
    point.time = time;
  }

  function setZoom(range) {
    zoom = range && range[1] > range[0] ? range : null;
    for (const { plot } of plots) {
      plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
      plot.redraw(true, true);
      plot.setData(plot.data);
    }
  }

  function scaleZoom(factor) {
    if (!plots.length) return;
    const plot = plots[0].plot;
    const { min, max } = plot.scales.x;
    const [a, b] = [plot.valToPos(min, "x"), plot.valToPos(max, "x")];
    const middle = point.time >= min && point.time <= max ? plot.valToPos(point.time, "x") : (a + b) / 2;
    const ends = [middle - (middle - a) * factor, middle + (b - middle) * factor].map((p) => plot.posToVal(p, "x"));
    const [low, high] = bounds(plots.flatMap((p) => p.panel.lines.flatMap((line) => line.times)));
    setZoom(ends[0] <= low && ends[1] >= high ? null : [Math.max(low, ends[0]), Math.min(high, ends[1])]);
  }

  const actions = { in: () => scaleZoom(0.6), out: () => scaleZoom(1 / 0.6), all: () => setZoom(null) };

  function move(by) {
    if (!plots.length) return;
    const { min, max } = plots[0].plot.scales.x;
    const every = [...new Set(plots.flatMap((p) => p.panel.lines.flatMap((line) => line.times)))]
      .filter((t) => t >= min && t <= max).sort((a, b) => a - b);
    const at = point.time == null ? -1 : nearest(every, point.time);
    point(every[Math.min(every.length - 1, Math.max(0, at + by))], null);
  }

  box.addEventListener("keydown", (event) => {
    if (event.target !== box) return;
    const keys = {
      ArrowRight: () => move(1), ArrowLeft: () => move(-1), PageDown: () => move(10), PageUp: () => move(-10),
      Home: () => move(-1e9), End: () => move(1e9),
      "+": actions.in, "=": actions.in, "-": actions.out, 0: actions.all, Escape: actions.all,
    };
    if (!keys[event.key] || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    keys[event.key]();
  });
  document.querySelectorAll("[data-do]").forEach((b) => b.addEventListener("click", () => actions[b.dataset.do]()));

  // ---- All of it -----------------------------------------------------------------------------------

  function build() {
    plots.forEach(({ plot }) => plot.destroy());
    box.replaceChildren();
    const { panels, missing } = shown();
    const times = panels.flatMap((panel) => panel.lines.flatMap((line) => line.times));
    plots = panels.map((panel, i) => draw(panel, i, panels.length, times, box));
    const label = aligned[alignChoice.value] + (missing ? ` (${missing} of ${runs.length} runs without it)` : "");
    box.append(Object.assign(document.createElement("p"), { className: "time", textContent: label }));
    if (point.time != null && plots.length) point(point.time, null);
  }

  function sort(header) {
    const table = header.closest("table");
    const column = header.cellIndex;
    const down = header.getAttribute("aria-sort") === "ascending";
    table.querySelectorAll("thead th").forEach((h) => h.setAttribute("aria-sort", "none"));
    header.setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = (row) => {
      const cell = row.cells[column];
      return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
    };
    const isMissing = (v) => v === "–" || v === "";
    const rows = [...table.tBodies[0].rows];
    rows.sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (isMissing(x) || isMissing(y)) return isMissing(x) - isMissing(y); // last, whichever way
      const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
      return down ? -order : order;
    });
    table.tBodies[0].append(...rows);
  }

  document.querySelectorAll("table.sortable thead button").forEach((button) =>
    button.addEventListener("click", () => sort(button.parentElement)));
  for (const choice of [viewChoice, alignChoice]) {
    if (choice) choice.addEventListener("change", () => { zoom = null; point.time = null; readout.textContent = ""; build(); });
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", build);
  let width = 0;
  new ResizeObserver(() => {
    if (Math.abs(box.clientWidth - width) < 2) return;
    width = box.clientWidth;
    build();
  }).observe(box);
})();
