"use strict";
// Curves over one time axis, with the failures and restarts on it.

const COLORS = ["--blue", "--orange", "--purple", "--green", "--red", "--grey"];
const CHART_HEIGHT = 170;
const MOST_METRICS = 12;
const MARK_PIXELS = 12;
const FILLED = "c8"; // the opacity of areas
const SHARES = [["computing", "computing"], ["waiting for other workers", "waiting_for_workers"], ["waiting for rows", "waiting_for_rows"]];

let zoom = null; // the part of the time that the user has chosen, for all charts
const charts = new Map(); // by place and name

function hasPoints(columns) {
  return columns.slice(1).some((values) => values.some((value) => value !== null && value !== undefined));
}

function curve(curves, fields) {
  return [curves.time, ...fields.map((field) => curves[field] || curves.time.map(() => null))];
}

// The shares one on top of the other: what is drawn is the sum up to each.
function stacked(columns) {
  const sums = [columns[0]];
  let before = columns[0].map(() => 0);
  for (const values of columns.slice(1)) {
    before = values.map((value, place) => (value === null || before[place] === null ? null : before[place] + value));
    sums.push(before);
  }
  return sums;
}

function chartsOf(curves, ofNode) {
  const all = ofNode ? "" : ", all nodes";
  const mean = ofNode ? "" : ", mean of the nodes";
  return [
    { name: "rows", title: `Rows per second${all}`, labels: ["rows/s"], columns: curve(curves, ["rows_per_second"]), format: number, zero: true },
    { name: "step", title: `Time per step${mean}`, labels: ["per step"], columns: curve(curves, ["seconds_per_step"]), format: seconds, zero: true },
    { name: "shares", title: `Where the time goes${mean}`, labels: SHARES.map((each) => each[0]), columns: curve(curves, SHARES.map((each) => each[1])), format: share, isStack: true },
    { name: "cores", title: `Processor cores in use${all}`, labels: ["cores"], columns: curve(curves, ["cores"]), format: number, zero: true },
    { name: "memory", title: `Memory in use${all}`, labels: ["memory"], columns: curve(curves, ["memory"]), format: bytes, zero: true },
    { name: "gpu", title: `GPU utilisation${mean}`, labels: ["utilisation"], columns: curve(curves, ["gpu_utilization"]), format: share, isShare: true },
    { name: "gpu-memory", title: `GPU memory in use${all}`, labels: ["memory"], columns: curve(curves, ["gpu_memory"]), format: bytes, zero: true },
  ].filter((each) => hasPoints(each.columns));
}

function metricCharts() {
  return model.metrics.slice(0, MOST_METRICS).map(([base, names]) => ({
    name: `metric ${base}`, title: base, labels: names, columns: model.reportsOf(names), format: metric, hasDots: true,
    latest: names.map((name) => model.lastOf(name)),
  }));
}

function drawMarks(plot) {
  const { ctx, bbox } = plot;
  const ratio = devicePixelRatio;
  ctx.save();
  ctx.textAlign = "center";
  ctx.font = `bold ${11 * ratio}px sans-serif`;
  const drawn = []; // where there is a mark: events at almost the same time share that of the worst
  for (const [time, kind] of [...model.events].sort((a, b) => eventOf(a[1]).order - eventOf(b[1]).order)) {
    const what = eventOf(kind);
    const x = Math.round(plot.valToPos(time, "x", true));
    if (x < bbox.left || x > bbox.left + bbox.width || drawn.some((each) => Math.abs(each - x) < 2 * ratio)) continue;
    ctx.strokeStyle = ctx.fillStyle = color(what.color);
    ctx.lineWidth = ratio;
    ctx.setLineDash(kind === "failure" ? [] : [4 * ratio, 3 * ratio]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    if (drawn.some((each) => Math.abs(each - x) < MARK_PIXELS * ratio)) continue;
    drawn.push(x);
    ctx.fillText(what.mark, x, bbox.top - 3 * ratio);
  }
  ctx.restore();
}

function setZoom(range) {
  zoom = range;
  byId("unzoom").hidden = range === null;
  for (const chart of charts.values()) chart.draw();
}

function clockTicks(plot, times, axis, space, step) {
  const options = { hour: "2-digit", minute: "2-digit", hour12: false };
  if (step < 60) options.second = "2-digit";
  if (step >= 86400) return times.map((time) => new Date(1000 * time).toLocaleDateString("en-GB", { day: "2-digit", month: "short" }));
  return times.map((time) => new Date(1000 * time).toLocaleTimeString("en-GB", options));
}

class Chart {
  constructor(place, definition) {
    this.figure = element("figure");
    this.figure.append(element("h3", definition.title));
    this.caption = element("figcaption");
    this.canvas = element("div");
    this.canvas.setAttribute("role", "img");
    this.figure.append(this.caption, this.canvas);
    place.append(this.figure);
    this.labels = definition.labels.join("\n");
    this.values = definition.labels.map((label, number) => {
      const text = element("span", label);
      text.style.setProperty("--swatch", `var(${COLORS[number % COLORS.length]})`);
      this.caption.append(text);
      return text;
    });
    this.definition = definition;
    this.plot = new uPlot(this.options(definition), this.drawn(definition), this.canvas);
    new ResizeObserver(() => this.plot.setSize({ width: this.width, height: CHART_HEIGHT })).observe(this.figure);
    this.show();
  }

  get width() {
    return Math.max(200, this.figure.clientWidth - 24);
  }

  drawn(definition) {
    return definition.isStack ? stacked(definition.columns) : definition.columns;
  }

  options(definition) {
    const axis = { stroke: () => color("--faint"), grid: { stroke: () => color("--grid"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const isShare = definition.isStack || definition.isShare;
    const few = (low, high) => (low === null ? [0, 1] : [definition.zero ? 0 : low - 0.05 * (high - low || Math.abs(low) || 1), high + 0.08 * (high - (definition.zero ? 0 : low) || Math.abs(high) || 1)]);
    return {
      width: this.width,
      height: CHART_HEIGHT,
      padding: [16, 26, 0, 0],
      legend: { show: false },
      cursor: { sync: { key: "time" }, drag: { x: true, y: false, setScale: false }, points: { size: 6 } },
      scales: { x: { range: () => zoom || model.span }, y: { range: (plot, low, high) => (isShare ? [0, 1] : few(low, high)) } },
      axes: [
        { ...axis, values: clockTicks, space: 70, size: 32, gap: 8 },
        { ...axis, size: 62, values: (plot, ticks) => ticks.map((each) => definition.format(each)) },
      ],
      series: [{}, ...definition.labels.map((label, number) => this.series(definition, label, number))],
      bands: definition.isStack ? definition.labels.slice(1).map((_, number) => ({ series: [number + 2, number + 1], fill: () => color(COLORS[(number + 1) % COLORS.length]) + FILLED })) : [],
      hooks: {
        draw: [drawMarks],
        setCursor: [() => this.show()],
        setSelect: [(plot) => {
          if (plot.select.width > 4) setZoom([plot.posToVal(plot.select.left, "x"), plot.posToVal(plot.select.left + plot.select.width, "x")]);
          if (plot.select.width) plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        }],
      },
    };
  }

  series(definition, label, number) {
    const name = COLORS[number % COLORS.length];
    const isFirst = definition.isStack && number === 0;
    return {
      label,
      stroke: () => color(name),
      width: definition.isStack ? 0 : 2,
      fill: isFirst ? () => color(name) + FILLED : undefined,
      dash: !definition.isStack && label.startsWith("val_") ? [6, 4] : undefined,
      points: { show: (plot, series, low, high) => high - low < (definition.hasDots ? 40 : 2), size: 5, fill: () => color("--card") },
    };
  }

  update(definition) {
    this.definition = definition;
    this.draw();
  }

  draw() {
    this.plot.setData(this.drawn(this.definition));
    this.show();
  }

  // The values under the pointer, or the last ones.
  show() {
    const { columns, labels, format, latest } = this.definition;
    const at = this.plot ? this.plot.cursor.idx : null;
    const parts = labels.map((label, number) => {
      const values = columns[number + 1];
      const last = values.length - 1;
      const value = at === null || at === undefined ? (latest ? latest[number] : values[last]) : values[at];
      return `${label}: ${format(value)}`;
    });
    parts.forEach((text, number) => setText(this.values[number], text));
    this.canvas.setAttribute("aria-label", `Chart of ${this.definition.title}. ${parts.join(", ")}`);
  }

  remove() {
    this.plot.destroy();
    this.figure.remove();
  }
}

// Show these charts in a place, and no others.
function showCharts(place, definitions) {
  const wanted = new Set(definitions.map((each) => `${place.id} ${each.name}`));
  for (const [key, chart] of charts) {
    if (key.startsWith(`${place.id} `) && !wanted.has(key)) {
      chart.remove();
      charts.delete(key);
    }
  }
  for (const definition of definitions) {
    const key = `${place.id} ${definition.name}`;
    const old = charts.get(key);
    if (old && old.labels === definition.labels.join("\n")) old.update(definition);
    else {
      if (old) old.remove();
      charts.set(key, new Chart(place, definition));
    }
  }
  definitions.forEach((definition, number) => { // in this order, whichever had its first values first
    const { figure } = charts.get(`${place.id} ${definition.name}`);
    if (place.children[number] !== figure) place.insertBefore(figure, place.children[number]);
  });
}

function drawCharts() {
  const metrics = metricCharts();
  const definitions = [...metrics, ...chartsOf(model.curves, false)];
  showCharts(byId("charts"), definitions);
  byId("no-curves").hidden = definitions.length > 0;
  const more = model.metrics.slice(MOST_METRICS).map((each) => each[0]);
  byId("more-metrics").hidden = !more.length;
  setText(byId("more-metrics"), more.length ? `Metrics without a chart: ${more.slice(0, 50).join(", ")}` : "");
}

function redrawCharts() {
  for (const chart of charts.values()) chart.plot.redraw(false);
}
