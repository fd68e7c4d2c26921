"use strict";
// Texts for numbers, times and events.

const NONE = "–";

function number(value) {
  if (value === null || value === undefined) return NONE;
  const size = Math.abs(value);
  if (size >= 1e6) return new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4 }).format(value);
  return new Intl.NumberFormat("en", { maximumSignificantDigits: size >= 1000 ? 6 : 4 }).format(value);
}

function bytes(value) {
  if (value === null || value === undefined) return NONE;
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let power = 0;
  while (Math.abs(value) >= 1000 && power < units.length - 1) {
    value /= 1000;
    power += 1;
  }
  return `${Number(value.toPrecision(3))} ${units[power]}`;
}

function seconds(value) {
  if (value === null || value === undefined) return NONE;
  if (value >= 1) return `${Number(value.toPrecision(3))} s`;
  return value >= 1e-3 || value === 0 ? `${Number((1e3 * value).toPrecision(3))} ms` : `${Number((1e6 * value).toPrecision(3))} µs`;
}

function share(value) {
  return value === null || value === undefined ? NONE : `${Math.round(100 * value)} %`;
}

function metric(value) {
  if (value === null || value === undefined) return NONE;
  if (typeof value === "string") return value; // NaN, which JSON does not have
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || size >= 1e6) ? value.toExponential(2) : String(Number(value.toPrecision(4)));
}

function duration(value) {
  const whole = Math.max(0, Math.round(value));
  const two = (part) => String(part).padStart(2, "0");
  const days = Math.floor(whole / 86400);
  const clock = `${Math.floor((whole % 86400) / 3600)}:${two(Math.floor((whole % 3600) / 60))}:${two(whole % 60)}`;
  return days ? `${days} d ${clock}` : clock;
}

function clock(time) {
  return new Date(1000 * time).toLocaleTimeString("en-GB");
}

function moment(time) {
  return new Date(1000 * time).toLocaleString("en-GB");
}

const EVENTS = {
  started: { mark: "▸", text: "started", color: "--grey", order: 3 },
  failure: { mark: "✕", text: "failure", color: "--red", order: 0 },
  notice: { mark: "!", text: "notice", color: "--amber", order: 1 },
  restart: { mark: "↻", text: "restart", color: "--amber", order: 1 },
  node_restart: { mark: "↻", text: "restart of a node", color: "--amber", order: 1 },
  ended: { mark: "■", text: "ended", color: "--grey", order: 2 },
};

function eventOf(kind) {
  return EVENTS[kind] || { mark: "•", text: String(kind), color: "--grey", order: 4 };
}

function byId(id) {
  return document.getElementById(id);
}

// What comes from nodes gets into the page as text only, never as HTML.
function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function setText(where, text) {
  if (where.textContent !== text) where.textContent = text;
}

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
