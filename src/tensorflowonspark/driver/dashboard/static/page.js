"use strict";
// The page as a whole: totals, notices, events, and the connection to the driver.

const SHOWN_EVENTS = 100;
const SHOWN_NAMES = 5;
const AGAIN_MILLISECONDS = 5000;
const RETRY_MILLISECONDS = 2000;
const SILENT_MILLISECONDS = 45000; // the driver answers within 10 s

let asked = 0; // the time of the last request

function token() {
  return new URLSearchParams(location.search).get("token") || "";
}

function drawTotals() {
  const now = model.summary;
  const states = model.nodes.state || [];
  const counted = model.isOver ? "returned" : "running"; // after the end nothing runs
  const up = states.filter((state) => state === counted).length;
  const step = now.step === null || now.step === undefined ? NONE : now.steps ? `${now.step} / ${now.steps}` : String(now.step);
  const totals = {
    elapsed: duration(model.time - now.begun),
    epoch: now.epoch === null || now.epoch === undefined ? NONE : String(now.epoch + 1),
    step,
    rows: number(now.rows),
    "rows/s": number(now.rows_per_second),
    "time per step": seconds(now.seconds_per_step),
    nodes: `${up} / ${model.count} ${counted}`,
    restarts: String(now.restarts),
    goodput: share(now.goodput),
  };
  const place = byId("totals");
  for (const [name, text] of Object.entries(totals)) {
    let tile = place.querySelector(`[data-name="${name}"]`);
    if (!tile) {
      tile = element("dl");
      tile.dataset.name = name;
      tile.append(element("dt", name), element("dd"));
      place.append(tile);
    }
    setText(tile.lastChild, text);
  }
  place.querySelector('[data-name="goodput"]').title = now.goodput_text || "";
}

function drawHeader() {
  const { name, state, tensorboard } = model.summary;
  setText(byId("name"), name || "TensorFlow cluster");
  setText(byId("state"), state || "");
  byId("state").className = `badge ${["new", "running", "ended", "failed"].includes(state) ? state : ""}`;
  document.title = `${state || ""} · ${name || "TensorFlow cluster"}`;
  const link = byId("tensorboard");
  link.hidden = !/^https?:\/\//.test(tensorboard || "") || model.isOver; // a node has sent it
  if (!link.hidden && link.href !== tensorboard) link.href = tensorboard;
}

function named(numbers) {
  const shown = numbers.slice(0, SHOWN_NAMES).map((each) => `${model.nodes.name[each]}${model.nodes.host[each] ? ` on ${model.nodes.host[each]}` : ""}`);
  return shown.join(", ") + (numbers.length > SHOWN_NAMES ? ` and ${numbers.length - SHOWN_NAMES} more` : "");
}

function notices() {
  const found = [];
  const all = [...model.nodes.name.keys()];
  const failed = all.filter((each) => model.nodes.state[each] === "failed");
  const last = model.events[model.events.length - 1];
  if (model.summary.state === "failed" && last) found.push(["error", `The cluster has failed: ${last[2]}`]);
  else if (failed.length) found.push(["error", `Failed: ${named(failed)}`]);
  const slow = all.filter((each) => model.nodes.straggler[each]);
  if (slow.length) found.push(["warning", `Straggler: the other workers ${model.isOver ? "waited" : "wait"} for ${named(slow)}`]);
  for (const [name, { times, first, epoch, value }] of [...model.notNumbers].slice(0, SHOWN_NAMES)) {
    const when = first === epoch ? `in epoch ${epoch + 1}` : `from epoch ${first + 1} to ${epoch + 1}`;
    found.push(["warning", `${name} was no number (${value}) ${when}, in ${times} report${times > 1 ? "s" : ""}: its curve has gaps`]);
  }
  if (model.summary.sources) found.push(["", `Rows of an epoch: ${model.summary.sources}`]);
  if (model.isOver && model.summary.goodput) found.push(["", `Time of the nodes: ${model.summary.goodput_text}`]);
  if (model.summary.advice) found.push(["", `Advice: ${model.summary.advice}`]);
  return found;
}

function drawNotices() {
  const place = byId("notices");
  const found = notices();
  found.forEach(([kind, text], number) => {
    const line = place.children[number] || place.appendChild(element("p"));
    line.className = kind;
    setText(line, text);
  });
  while (place.children.length > found.length) place.lastChild.remove();
}

function drawEvents() {
  const shown = model.events.slice(-SHOWN_EVENTS).reverse();
  const body = byId("events").tBodies[0];
  const newest = shown.length ? `${model.events.length} ${shown[0][0]} ${shown[0][2]}` : "none";
  if (body.dataset.newest === newest) return;
  body.dataset.newest = newest;
  body.replaceChildren(...shown.map(([time, kind, text, node]) => {
    const row = element("tr");
    const what = eventOf(kind);
    const cell = element("td", `${what.mark} ${what.text}`);
    cell.style.color = `var(${what.color})`;
    const when = element("td", clock(time));
    when.title = moment(time);
    row.append(when, cell, element("td", node || ""), element("td", text));
    return row;
  }));
  if (!shown.length) {
    const cell = element("td", "Nothing so far.");
    cell.colSpan = 4;
    body.appendChild(element("tr")).append(cell);
  }
  const kinds = new Set(model.events.map((each) => each[1]));
  const key = byId("marks");
  key.replaceChildren();
  for (const kind of ["failure", "restart"]) {
    if (!kinds.has(kind) && !(kind === "restart" && kinds.has("node_restart"))) continue;
    key.append(element("b", eventOf(kind).mark, kind), ` ${eventOf(kind).text}  `);
  }
}

function draw() {
  drawHeader();
  drawTotals();
  drawNotices();
  drawNodes();
  drawCharts();
  drawEvents();
}

// At most one drawing for each frame, and none while nobody sees the page.
let isPending = false;
function drawSoon() {
  if (isPending) return;
  isPending = true;
  requestAnimationFrame(() => {
    isPending = false;
    draw();
  });
}

function showConnection(text, isLost = false) {
  setText(byId("connection"), text);
  byId("connection").className = isLost ? "lost" : "";
}

// Ask for what has changed, again and again: the driver answers when its next snapshot is due.
async function follow() {
  let etag = "";
  for (let isOver = false; !isOver;) {
    const [headers, data] = await ask(etag).catch(() => [null, null]);
    if (headers === null) {
      showLost();
      await pause(RETRY_MILLISECONDS);
    } else if (data === null) {
      showConnection("The driver refuses this page: it may belong to an earlier cluster, or too many pages are open.", true);
      await pause(AGAIN_MILLISECONDS);
    } else {
      etag = headers.get("ETag");
      isOver = headers.has("Ended");
      showConnection("live");
      if ("time" in data) { // else nothing has changed
        model.apply(data);
        drawSoon();
      }
    }
  }
  clearInterval(table.timer);
  byId("report").hidden = byId("stacks").hidden = true;
  showConnection(`The cluster has ended (${clock(Date.now() / 1000)}). This page keeps its last state.`);
}

// Return the headers of the driver's answer, and its data: null if it refuses. Without an answer this fails.
async function ask(etag) {
  const request = new AbortController();
  asked = Date.now();
  // A computer that has slept, or changed its network, may wait for ever for a connection that is gone.
  const watch = setInterval(() => Date.now() - asked > SILENT_MILLISECONDS && request.abort(), AGAIN_MILLISECONDS);
  try {
    const headers = etag ? { "If-None-Match": etag } : {};
    const answer = await fetch(`state?token=${encodeURIComponent(token())}`, { headers, signal: request.signal });
    if (answer.status === 304) return [answer.headers, {}];
    return [answer.headers, answer.ok ? await answer.json() : null];
  } finally {
    clearInterval(watch);
  }
}

function pause(milliseconds) {
  return new Promise((resolve) => { setTimeout(resolve, milliseconds); });
}

function showLost() {
  const since = clock(model.time || Date.now() / 1000);
  showConnection(`No connection to the driver since ${since}: trying again. The page shows the last state.`, true);
}

const THEMES = { auto: "Theme: as the system", light: "Theme: light", dark: "Theme: dark" };

function setTheme(name) {
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  setText(byId("theme"), THEMES[name]);
  byId("theme").dataset.name = name;
  try { localStorage.setItem("theme", name); } catch { /* a browser that keeps nothing */ }
  redrawCharts();
}

function savedTheme() {
  try { return localStorage.getItem("theme"); } catch { return null; }
}

function begin() {
  prepareNodes();
  setTheme(Object.hasOwn(THEMES, savedTheme()) ? savedTheme() : "auto");
  byId("theme").addEventListener("click", () => {
    const names = Object.keys(THEMES);
    setTheme(names[(names.indexOf(byId("theme").dataset.name) + 1) % names.length]);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawCharts);
  byId("unzoom").addEventListener("click", () => setZoom(null));
  const data = JSON.parse(byId("data").textContent);
  if (data === null) {
    for (const name of ["report", "stacks"]) {
      byId(name).href = `${name}?token=${encodeURIComponent(token())}`;
      byId(name).hidden = false;
    }
    showConnection("connecting");
    follow();
  } else {
    model.live = false;
    model.apply(data);
    showConnection(`Report of ${moment(model.time)}`);
    draw();
  }
}

begin();
