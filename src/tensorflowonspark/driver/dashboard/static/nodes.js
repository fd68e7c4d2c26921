"use strict";
// The nodes: a strip of coloured cells, a table of which one page is shown, and the details of one node.

const COLUMNS = [
  { field: "name", title: "node", text: String },
  { field: "host", title: "host", text: (value) => value ?? NONE },
  { field: "state", title: "state", text: String },
  { field: "epoch", title: "epoch", isNumber: true, text: (value) => (value === null ? NONE : String(value + 1)) },
  { field: "step", title: "step", isNumber: true, text: (value, number) => (value === null ? NONE : model.nodes.steps[number] ? `${value} / ${model.nodes.steps[number]}` : String(value)) },
  { field: "rows", title: "rows", isNumber: true, text: number },
  { field: "rows_per_second", title: "rows/s", isNumber: true, text: number },
  { field: "seconds_per_step", title: "per step", isNumber: true, text: seconds },
  { field: "waiting_for_rows", title: "waits: rows", isNumber: true, text: share },
  { field: "waiting_for_workers", title: "waits: workers", isNumber: true, text: share },
  { field: "computing", title: "shares of the time", isShares: true },
  { field: "cores", title: "cores", isNumber: true, text: number },
  { field: "memory", title: "memory", isNumber: true, text: bytes },
  { field: "gpu_utilization", title: "GPU", isNumber: true, text: share, isOptional: true },
  { field: "gpu_memory", title: "GPU memory", isNumber: true, text: bytes, isOptional: true },
];
const HEATS = [
  ["state", "state"], ["waiting_for_rows", "waiting for rows"], ["waiting_for_workers", "waiting for other workers"],
  ["seconds_per_step", "time per step"], ["cores", "cores"], ["memory", "memory"],
];
const FEWEST_CELLS = 9;
const SMALL_CELLS = 200;
const STATES = { running: "--green", failed: "--red", restarting: "--amber", returned: "--blue", awaited: "--empty", connected: "--grey", gone: "--grey" };
const DETAIL_MILLISECONDS = 2000;
// eslint-disable-next-line no-control-regex
const ESCAPES = /\x1b\[[0-9;?]*[ -/]*[@-~]/g; // colours of a terminal

const table = { sort: null, descending: false, page: 0, rows: new Map(), shown: "", chosen: null, timer: null };

function isProblem(number) {
  return model.rank(number) < 3;
}

function matching() {
  const wanted = byId("filter").value.trim().toLowerCase();
  const { name, host, state, straggler } = model.nodes;
  const text = (each) => `${name[each]} ${host[each] || ""} ${state[each]} ${straggler[each] ? "straggler" : ""}`.toLowerCase();
  const found = [...name.keys()].filter((each) => !wanted || text(each).includes(wanted));
  if (table.sort === null) return found.sort((a, b) => model.rank(a) - model.rank(b) || a - b);
  const values = model.nodes[table.sort];
  const sign = table.descending ? -1 : 1;
  const isMissing = (each) => values[each] === null || values[each] === undefined;
  const compare = (a, b) => (typeof values[a] === "string" ? values[a].localeCompare(values[b], "en", { numeric: true }) : values[a] - values[b]);
  return found.sort((a, b) => isMissing(a) - isMissing(b) || (isMissing(a) ? a - b : sign * compare(a, b) || a - b));
}

function shownColumns() {
  return COLUMNS.filter((each) => !each.isOptional || (model.nodes[each.field] || []).some((value) => value !== null));
}

function drawHead(columns) {
  const key = `${columns.map((each) => each.field)} ${table.sort} ${table.descending}`;
  if (table.shown === key) return;
  table.shown = key;
  for (const row of table.rows.values()) row.remove();
  table.rows.clear();
  byId("nodes").tHead.rows[0].replaceChildren(...columns.map((column) => {
    const cell = element("th", undefined, column.isNumber ? "number" : "");
    cell.scope = "col";
    const isSorted = table.sort === column.field;
    cell.setAttribute("aria-sort", isSorted ? (table.descending ? "descending" : "ascending") : "none");
    const button = element("button", column.title + (isSorted ? (table.descending ? " ▼" : " ▲") : ""));
    button.type = "button";
    button.dataset.sort = column.field;
    cell.append(button);
    return cell;
  }));
}

function sortBy(field) {
  if (table.sort !== field) [table.sort, table.descending] = [field, false];
  else if (!table.descending) table.descending = true;
  else [table.sort, table.descending] = [null, false]; // problems first
  table.page = 0;
  drawNodes();
  byId("nodes").querySelector(`[data-sort="${field}"]`).focus();
}

function makeRow(columns) {
  const row = element("tr");
  for (const column of columns) {
    const cell = element("td", undefined, column.isNumber ? "number" : "");
    if (column.field === "name") {
      const button = element("button");
      button.type = "button";
      cell.append(button, element("span"));
    } else if (column.isShares) {
      const bar = element("span", undefined, "shares");
      bar.setAttribute("role", "img");
      bar.append(element("i"), element("i"), element("i"));
      cell.append(bar);
    }
    row.append(cell);
  }
  return row;
}

function fillRow(row, number, columns) {
  row.dataset.number = number;
  const rank = model.rank(number);
  row.className = [rank === 0 ? "broken" : rank < 3 ? "problem" : "", table.chosen === number ? "chosen" : ""].join(" ").trim();
  columns.forEach((column, place) => {
    const cell = row.cells[place];
    const value = model.nodes[column.field][number];
    if (column.field === "name") {
      setText(cell.firstChild, value);
      const isStraggler = Boolean(model.nodes.straggler[number]);
      const restarts = model.nodes.restarts[number];
      const marks = [isStraggler ? "straggler" : "", restarts ? `↻ ${restarts}` : ""].filter(Boolean).join(" · ");
      setText(cell.lastChild, marks);
      cell.lastChild.className = marks ? `badge ${isStraggler ? "straggler" : "restarting"}` : "";
    } else if (column.isShares) fillShares(cell.firstChild, number);
    else {
      setText(cell, column.text(value, number));
      if (column.field === "state") cell.className = value;
    }
  });
}

function fillShares(bar, number) {
  const parts = SHARES.map(([label, field]) => [label, model.nodes[field][number]]);
  const text = parts.map(([label, value]) => `${label} ${share(value)}`).join(", ");
  if (bar.title === text) return;
  bar.title = text;
  bar.setAttribute("aria-label", text);
  parts.forEach(([, value], place) => { bar.children[place].style.width = `${100 * (value || 0)}%`; });
}

function drawNodes() {
  const columns = shownColumns();
  drawHead(columns);
  const found = matching();
  const size = Number(byId("size").value);
  const pages = Math.max(1, Math.ceil(found.length / size));
  table.page = Math.min(table.page, pages - 1);
  const shown = found.slice(table.page * size, (table.page + 1) * size);
  const body = byId("nodes").tBodies[0];
  const rows = shown.map((number) => {
    if (!table.rows.has(number)) table.rows.set(number, makeRow(columns));
    return table.rows.get(number);
  });
  rows.forEach((row, place) => fillRow(row, shown[place], columns));
  if (rows.length !== body.rows.length || rows.some((row, place) => body.rows[place] !== row)) {
    const focused = document.activeElement;
    body.replaceChildren(...rows);
    if (body.contains(focused)) focused.focus();
  }
  for (const number of table.rows.keys()) if (!shown.includes(number)) table.rows.delete(number);
  const problems = [...model.nodes.name.keys()].filter(isProblem).length;
  const part = found.length === model.count ? `${model.count}` : `${found.length} of ${model.count}`;
  setText(byId("count"), `${part} nodes${problems ? `, ${problems} with a problem${table.sort === null ? " (first)" : ""}` : ""}`);
  byId("pager").hidden = found.length <= 10 && pages === 1;
  setText(byId("page"), `${Math.min(found.length, table.page * size + 1)} to ${Math.min(found.length, (table.page + 1) * size)} of ${found.length}`);
  byId("previous").disabled = table.page === 0;
  byId("next").disabled = table.page >= pages - 1;
  drawStrip();
}

function drawStrip() {
  const strip = byId("strip");
  const isShown = model.count >= FEWEST_CELLS;
  strip.hidden = byId("strip-key").hidden = byId("heat-label").hidden = !isShown;
  if (!isShown) return;
  strip.classList.toggle("small", model.count > SMALL_CELLS);
  while (strip.children.length > model.count) strip.lastChild.remove();
  while (strip.children.length < model.count) strip.append(element("i"));
  const field = byId("heat").value;
  const values = model.nodes[field];
  const most = field.startsWith("waiting") ? 1 : values.reduce((found, value) => Math.max(found, value || 0), 0) || 1;
  const cells = strip.children;
  for (let each = 0; each < model.count; each += 1) {
    const value = values[each];
    let shade = "var(--empty)";
    if (field === "state") shade = model.nodes.straggler[each] ? "var(--amber)" : `var(${STATES[value] || "--empty"})`;
    else if (value !== null && value !== undefined) shade = `color-mix(in srgb, var(--orange) ${Math.round(100 * Math.min(1, value / most))}%, var(--blue-ground))`;
    if (cells[each].dataset.shade !== shade) cells[each].style.background = cells[each].dataset.shade = shade;
    cells[each].classList.toggle("chosen", each === table.chosen);
  }
  const key = field === "state" ? "green: running, amber: straggler or restarting, red: failed, grey: not up yet or gone, blue: returned"
    : `from pale (0) to orange (${COLUMNS.find((each) => each.field === field).text(most)})`;
  setText(byId("strip-key"), `One cell for each node; ${key}.`);
  strip.setAttribute("aria-label", `One cell for each of ${model.count} nodes; the table below has the same.`);
}

async function choose(number) {
  clearInterval(table.timer);
  table.chosen = table.chosen === number ? null : number;
  byId("detail").hidden = table.chosen === null;
  showCharts(byId("detail-charts"), []);
  setText(byId("lines"), "");
  setText(byId("detail-values"), "");
  drawNodes();
  if (table.chosen === null) return;
  const { name, host } = model.nodes;
  setText(byId("detail-title"), `${name[number]}${host[number] ? ` on ${host[number]}` : ""}`);
  if (model.live) table.timer = setInterval(() => drawDetail(number), DETAIL_MILLISECONDS);
  await drawDetail(number);
  byId("detail").scrollIntoView({ block: "nearest" });
}

async function drawDetail(number) {
  let found = null;
  if (model.details) found = model.details[number] || null;
  else {
    try {
      const answer = await fetch(`node?number=${number}&token=${encodeURIComponent(token())}`);
      if (answer.ok) found = await answer.json();
    } catch { /* the line of the connection shows it */ }
    if (!found && table.chosen === number && byId("lines").textContent) return; // the last state stays
  }
  if (table.chosen !== number) return;
  if (!found) {
    setText(byId("lines"), model.details ? "The report has no lines of this node." : "The driver can't be reached.");
    return;
  }
  const values = Object.entries(found.values).map(([name, value]) => `${name}: ${metric(value)}`);
  const gpus = found.gpus.map(([address, used, memory, total]) => `GPU ${address}: ${share(used)}, ${bytes(memory)} of ${bytes(total)}`);
  setText(byId("detail-values"), [...values, ...gpus].join(" · "));
  showCharts(byId("detail-charts"), chartsOf(found.curves, true));
  const lines = byId("lines");
  const isAtEnd = lines.scrollTop + lines.clientHeight >= lines.scrollHeight - 4;
  setText(lines, found.lines.map((line) => line.replace(ESCAPES, "")).join("\n") || "No lines yet.");
  if (isAtEnd) lines.scrollTop = lines.scrollHeight;
}

function prepareNodes() {
  for (const [field, label] of HEATS) {
    const option = element("option", label);
    option.value = field;
    byId("heat").append(option);
  }
  byId("heat").addEventListener("change", drawStrip);
  byId("filter").addEventListener("input", () => { table.page = 0; drawNodes(); });
  byId("size").addEventListener("change", () => { table.page = 0; drawNodes(); });
  byId("previous").addEventListener("click", () => { table.page -= 1; drawNodes(); });
  byId("next").addEventListener("click", () => { table.page += 1; drawNodes(); });
  byId("close").addEventListener("click", () => choose(table.chosen));
  byId("nodes").tHead.addEventListener("click", (event) => event.target.dataset.sort && sortBy(event.target.dataset.sort));
  byId("nodes").tBodies[0].addEventListener("click", (event) => {
    const row = event.target.closest("tr");
    if (row) choose(Number(row.dataset.number));
  });
  const cellOf = (event) => (event.target.tagName === "I" ? [...byId("strip").children].indexOf(event.target) : -1);
  byId("strip").addEventListener("click", (event) => cellOf(event) >= 0 && choose(cellOf(event)));
  byId("strip").addEventListener("mouseover", (event) => {
    const number = cellOf(event);
    if (number < 0) return;
    const { name, host, state, straggler } = model.nodes;
    event.target.title = `${name[number]} on ${host[number] || NONE}: ${state[number]}${straggler[number] ? ", straggler" : ""}`;
  });
}
