"use strict";
// The state that the driver sends, part by part.

const model = {
  time: 0, // of the driver's last snapshot
  summary: {},
  nodes: { name: [] },
  curves: { time: [] },
  reports: [],
  events: [],
  details: null, // of a report: by node
  live: true,

  apply(data) {
    Object.assign(this, data, { nodes: { ...this.nodes, ...data.roster, ...data.nodes } });
  },

  get count() {
    return this.nodes.name.length;
  },

  // The time that the charts show.
  get span() {
    const last = (times) => times[times.length - 1] || 0;
    const reports = this.reports.length ? this.reports[this.reports.length - 1][0] : 0;
    const end = Math.max(last(this.curves.time), reports, ...this.events.slice(-1).map((each) => each[0]));
    const begin = this.summary.begun || end;
    return [begin, Math.max(end, begin + 5)];
  },

  get isOver() {
    return this.summary.state === "ended" || this.summary.state === "failed";
  },

  rank(number) {
    const state = this.nodes.state[number];
    if (state === "failed") return 0;
    if (state === "restarting" || (state === "gone" && !this.isOver)) return 1;
    if (this.nodes.straggler[number]) return 2;
    if (state === "awaited" || state === "connected") return 3;
    return 4;
  },

  // Metrics by the name that training and validation share: [[name, [[label, metric], ...]], ...].
  get metrics() {
    const names = new Set();
    for (const report of this.reports) for (const name of Object.keys(report[3])) names.add(name);
    const groups = new Map();
    for (const name of [...names].sort((a, b) => (a.startsWith("val_") ? 1 : 0) - (b.startsWith("val_") ? 1 : 0))) {
      const base = name.startsWith("val_") ? name.slice(4) : name;
      if (!groups.has(base)) groups.set(base, []);
      groups.get(base).push(name);
    }
    return [...groups];
  },

  // The reports of some metrics, as uPlot takes them: a value that is missing is undefined, and NaN is a gap.
  reportsOf(names) {
    const rows = this.reports.filter((report) => names.some((name) => Object.hasOwn(report[3], name)));
    const values = (name) => rows.map((row) => {
      const value = Object.hasOwn(row[3], name) ? row[3][name] : undefined;
      return typeof value === "string" ? null : value;
    });
    return [rows.map((row) => row[0]), ...names.map(values)];
  },

  lastOf(name) {
    for (let place = this.reports.length - 1; place >= 0; place -= 1) {
      if (Object.hasOwn(this.reports[place][3], name)) return this.reports[place][3][name];
    }
    return undefined;
  },

  // By metric: how often it was no number, which one last, and in which epoch.
  get notNumbers() {
    const found = new Map();
    for (const [, epoch, , values] of this.reports) {
      for (const [name, value] of Object.entries(values)) {
        if (typeof value !== "string") continue;
        const before = found.get(name) || { times: 0, epoch };
        found.set(name, { times: before.times + 1, first: before.first ?? epoch, epoch, value });
      }
    }
    return found;
  },
};
