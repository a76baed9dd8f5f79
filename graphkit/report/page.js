"use strict";
const data = JSON.parse(document.getElementById("curves").textContent);
const byId = id => document.getElementById(id);
const tip = byId("tip"), KEPT = "graphkit report";
const HEIGHT = 260, TOP = 10, BOTTOM = 26, RIGHT = 14;
// Limits of a linear axis, whose difference does not overflow. Values outside are drawn at the limit.
const MOST = 8e307;
// A moving average of few points is no improvement.
const many = data.charts.some(chart => chart.series.some(s => s.part === "step" && s.y.length > 100));
const state = {axis: "updates", smooth: many ? 0.6 : 0, log: false, hidden: []};

// --- state that survives a reload ---------------------------------------------------------------------

function remembered() {
  try { return JSON.parse(sessionStorage.getItem(KEPT)) || {}; } catch { return {}; } // the browser may forbid storage
}
function remember() {
  try { sessionStorage.setItem(KEPT, JSON.stringify(state)); } catch { /* then a reload resets the controls */ }
}

// --- numbers as text ----------------------------------------------------------------------------------

function plain(value) {
  if (typeof value !== "number") return value;
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(3).replace(/\.?0+e/, "e").replace("e+", "e");
  return size >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(4)));
}
function bytes(value) {
  const [unit, name] = bytesUnit(value);
  return `${Number((value / unit).toPrecision(4))} ${name}`;
}
function bytesUnit(value) {
  const power = value < 1024 ? 0 : Math.min(Math.floor(Math.log2(value) / 10), 4);
  return [2 ** (10 * power), ["B", "KiB", "MiB", "GiB", "TiB"][power]];
}
function secondsUnit(value) {
  return value < 120 ? [1, "s"] : value < 7200 ? [60, "min"] : value < 172800 ? [3600, "h"] : [86400, "d"];
}
function duration(value) {
  const [unit, name] = secondsUnit(Math.abs(value));
  return `${Number((value / unit).toPrecision(4))} ${name}`;
}
const SHOWN = {number: plain, bytes, seconds: duration};
function place(axis, value) {
  return axis === "seconds" ? duration(value) : axis === "updates" ? `update ${value.toLocaleString("en")}`
    : `epoch ${Number(value.toFixed(2))}`;
}

// --- scales -------------------------------------------------------------------------------------------

// The distance between ticks: the smallest 1, 2 or 5 times a power of ten with at most `count` ticks.
function stepFor(span, count, least = 0) {
  const rough = Math.max(span / count, Number.MIN_VALUE), power = 10 ** Math.floor(Math.log10(rough));
  return Math.max([1, 2, 5, 10].find(factor => factor * power >= rough * 0.999) * power, least);
}
function linearTicks(low, high, count, least) {
  const step = stepFor(high - low, count, least), ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9 && ticks.length < 50; i++) ticks.push(i * step);
  return [ticks, step];
}
// The limits are powers of ten, so that no quotient of the largest and the smallest number overflows.
function logTicks(low, high, count) {
  const first = Math.floor(low), last = Math.ceil(high);
  const decades = last - first, every = Math.max(1, Math.ceil(decades / count)), ticks = [];
  for (let power = first; power <= last; power += every) {
    for (const factor of decades <= 1 ? [1, 1.5, 2, 3, 4, 5, 7] : decades <= 3 ? [1, 2, 5] : [1]) ticks.push(factor * 10 ** power);
  }
  return ticks.filter(tick => Number.isFinite(tick) && Math.log10(tick) >= low - 1e-6 && Math.log10(tick) <= high + 1e-6);
}
function tickText(value, step) {
  if (value === 0) return "0";
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  if (digits > 4 || Math.abs(value) >= 1e7) return value.toExponential(Math.max(0, Math.min(3,
    Math.floor(Math.log10(Math.abs(value)) + 1e-9) - Math.floor(Math.log10(step) + 1e-9)))).replace("e+", "e");
  return value.toLocaleString("en", {minimumFractionDigits: digits, maximumFractionDigits: digits});
}
// The scale of the y axis: ticks with labels, and a function from a value to its position between 0 and 1.
function yScale(values, kind) {
  const log = state.log && values.some(v => v > 0);
  const used = log ? values.filter(v => v > 0) : values;
  let low = Infinity, high = -Infinity;
  for (const v of used) { low = Math.min(low, v); high = Math.max(high, v); }
  if (log) {
    const from = Math.log10(low), to = Math.log10(high), pad = to - from < 0.02 ? 0.2 : (to - from) * 0.05;
    const first = from - pad, last = to + pad;
    return {at: v => v > 0 ? (Math.log10(v) - first) / (last - first) : NaN,
      ticks: logTicks(first, last, 5).map(v => [v, SHOWN[kind](v)])};
  }
  low = Math.max(low, -MOST); high = Math.min(high, MOST);
  const flat = high - low <= Math.abs(high) * 1e-9, zero = kind !== "number";
  if (flat) { const pad = Math.abs(high) * 0.5 || 1; low -= pad; high += pad; }
  if (zero && low >= 0 || flat && low < 0 && values[0] >= 0) low = 0;
  const pad = (high - low) * 0.05;
  // If no value is negative, the axis does not go below 0.
  low = low >= 0 ? Math.max(0, low - pad) : low - pad; high += pad;
  const [unit, name] = kind === "bytes" ? bytesUnit(high) : kind === "seconds" ? secondsUnit(high) : [1, ""];
  const [ticks, step] = linearTicks(low / unit, high / unit, 6);
  const within = v => Math.max(low, Math.min(high, v));
  return {at: v => (within(v) - low) / (high - low), ticks: ticks.map(v => [v * unit, tickText(v, step) + (name && " " + name)])};
}
function xScale(values, axis, width) {
  let low = 0, high = 0;
  for (const v of values) { low = Math.min(low, v); high = Math.max(high, v); }
  if (high === low) high = low + 1;
  const [unit, name] = axis === "seconds" ? secondsUnit(high) : [1, ""];
  const room = axis === "seconds" ? 85 : 32 + 8 * Math.round(high).toLocaleString("en").length;
  const [ticks, step] = linearTicks(low / unit, high / unit, Math.max(2, Math.floor(width / room)), axis === "seconds" ? 0 : 1);
  return {low, high, at: v => (v - low) / (high - low), ticks: ticks.map(v => [v * unit, tickText(v, step) + (name && " " + name)])};
}

// --- curves -------------------------------------------------------------------------------------------

// The exponential moving average, each value divided by the sum of its weights, as in Adam (Kingma and Ba 2015).
function smoothed(values, weight) {
  let mean = 0, count = 0;
  return values.map(v => {
    if (typeof v !== "number") return v;
    mean = weight * mean + (1 - weight) * v;
    count++;
    return mean / (1 - weight ** count);
  });
}
function colour(run, part) {
  if (data.runs.length === 1) return `var(--c${part === "valid" ? 1 : 0})`;
  return run < 8 ? `var(--c${run})` : `hsl(${(run * 137.5) % 360} 55% 52%)`;
}
const PARTS = {step: "steps", train: "training", valid: "validation"};
function name(series) {
  return data.runs.length === 1 ? PARTS[series.part] : `${data.runs[series.run]}, ${PARTS[series.part]}`;
}
function element(parent, tag, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}
// A path through finite points. Any other point interrupts the line.
function path(xs, ys, x, y) {
  let drawn = "", within = false;
  ys.forEach((value, i) => {
    const px = typeof xs[i] === "number" ? x(xs[i]) : NaN, py = typeof value === "number" ? y(value) : NaN;
    const good = Number.isFinite(px) && Number.isFinite(py);
    if (good) drawn += `${within ? "L" : "M"}${px.toFixed(2)} ${py.toFixed(2)}`;
    within = good;
  });
  return drawn;
}
function shownSeries(chart) {
  return chart.series.filter(s => !state.hidden.includes(data.runs[s.run]));
}

function draw(chart) {
  const svg = chart.svg, width = svg.clientWidth || 480;
  svg.replaceChildren();
  svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  const series = shownSeries(chart);
  for (const s of series) s.smooth = s.part === "step" && state.smooth > 0 ? smoothed(s.y, state.smooth) : null;
  const numbers = list => list.filter(v => typeof v === "number");
  const ys = series.flatMap(s => numbers(s.y).filter(Number.isFinite)), xs = series.flatMap(s => numbers(s.x[state.axis]));
  chart.scale = null;
  if (!ys.length || !xs.length || (state.log && !ys.some(v => v > 0))) {
    const why = !series.length ? "all runs are hidden" : !ys.length ? "no finite value" : !xs.length
      ? "shown after the first epoch" : "no positive value for a logarithmic scale";
    element(svg, "text", {class: "empty", x: width / 2, y: HEIGHT / 2}, why);
    return;
  }
  const yAxis = yScale(ys, chart.kind);
  const left = 12 + 6.6 * Math.max(...yAxis.ticks.map(([, text]) => text.length), 1);
  const xAxis = xScale(xs, state.axis, width - left - RIGHT);
  const x = v => left + xAxis.at(v) * (width - left - RIGHT), y = v => HEIGHT - BOTTOM - yAxis.at(v) * (HEIGHT - TOP - BOTTOM);
  for (const [value, text] of yAxis.ticks) {
    element(svg, "line", {class: "grid", x1: left, x2: width - RIGHT, y1: y(value), y2: y(value)});
    element(svg, "text", {class: "ytick", x: left - 8, y: y(value) + 4, "text-anchor": "end"}, text);
  }
  element(svg, "line", {class: "axis", x1: left, x2: width - RIGHT, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM});
  for (const [value, text] of xAxis.ticks) {
    element(svg, "line", {class: "axis", x1: x(value), x2: x(value), y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM + 4});
    const last = x(value) > width - RIGHT - 16;
    element(svg, "text", {class: "xtick", x: last ? width - RIGHT + 4 : x(value), y: HEIGHT - 7,
      "text-anchor": last ? "end" : "middle"}, text);
  }
  for (const s of series) drawSeries(svg, s, x, y, series);
  showEqual(svg);
  chart.cross = element(svg, "line", {class: "cross", y1: TOP, y2: HEIGHT - BOTTOM});
  chart.dots = element(svg, "g", {});
  chart.scale = {x, y, left, right: width - RIGHT, low: xAxis.low, high: xAxis.high};
}
function drawSeries(svg, s, x, y, all) {
  const stroke = colour(s.run, s.part), xs = s.x[state.axis];
  const mark = {"data-run": s.run, "data-part": s.part};
  if (s.smooth) element(svg, "path", {...mark, class: "raw", d: path(xs, s.y, x, y), style: `stroke:${stroke}`});
  // If steps have a line, the means of epochs are dots on it.
  const dotsOnly = s.part === "train" && all.some(o => o.run === s.run && o.part === "step" && o.y.length > 2);
  if (!dotsOnly) element(svg, "path", {...mark, class: s.part, d: path(xs, s.smooth || s.y, x, y), style: `stroke:${stroke}`});
  s.y.forEach((value, i) => {
    if (typeof xs[i] !== "number") return;
    if (typeof value !== "number") {
      const px = x(xs[i]), cross = element(svg, "path", {...mark, class: "bad", style: "stroke:var(--bad)",
        d: `M${px - 4} ${TOP}l8 8m0 -8l-8 8`});
      element(cross, "title", {}, `${name(s)}: ${value} at ${place(state.axis, xs[i])}`);
    } else if (s.part !== "step" && s.y.length <= 60 && Number.isFinite(y(value))) {
      element(svg, "circle", {...mark, cx: x(xs[i]).toFixed(2), cy: y(value).toFixed(2), r: dotsOnly ? 3.2 : 2.4, style: `fill:${stroke}`});
    }
  });
}

// Curves that are equal to the pixel would hide each other: their colours alternate along the line, and their dots become
// rings.
const DASH = 9;
function showEqual(svg) {
  for (const lines of alike(svg, "path[data-run]:not(.raw):not(.bad)", p => p.getAttribute("d"))) lines.forEach((line, i) => {
    line.style.strokeDasharray = `${DASH} ${DASH * (lines.length - 1)}`;
    line.style.strokeDashoffset = -DASH * i;
  });
  for (const dots of alike(svg, "circle[data-run]", c => `${c.getAttribute("cx")} ${c.getAttribute("cy")}`)) {
    dots.forEach((dot, i) => dot.setAttribute("r", Number(dot.getAttribute("r")) + 1.8 * (dots.length - 1 - i)));
  }
}
// Groups of at least two elements with the same position in whole pixels.
function alike(svg, selector, position) {
  const groups = new Map();
  for (const one of svg.querySelectorAll(selector)) {
    const key = position(one).replace(/\d+\.\d+/g, Math.round);
    if (key) groups.set(key, [...(groups.get(key) || []), one]);
  }
  return [...groups.values()].filter(group => group.length > 1);
}

// --- tooltip ------------------------------------------------------------------------------------------

function nearest(xs, wanted) {
  let best = -1;
  xs.forEach((v, i) => { if (typeof v === "number" && (best < 0 || Math.abs(v - wanted) < Math.abs(xs[best] - wanted))) best = i; });
  return best;
}
function point(chart, event) {
  if (!chart.scale) return;
  const box = chart.svg.getBoundingClientRect(), {x, y, left, right, low, high} = chart.scale;
  const wanted = low + (event.clientX - box.left - left) / (right - left) * (high - low);
  const found = shownSeries(chart).map(s => [s, nearest(s.x[state.axis], wanted)]).filter(([, i]) => i >= 0);
  if (!found.length) return;
  // Show the values of all series near the point that is closest to the pointer.
  const [first, at] = found.reduce((a, b) => Math.abs(b[0].x[state.axis][b[1]] - wanted) < Math.abs(a[0].x[state.axis][a[1]] - wanted) ? b : a);
  const here = first.x[state.axis][at], near = (high - low) * 0.05;
  chart.cross.setAttribute("x1", x(here));
  chart.cross.setAttribute("x2", x(here));
  chart.cross.style.visibility = "visible";
  chart.dots.replaceChildren();
  const table = document.createElement("table");
  for (const [s, i] of found.filter(([s, i]) => Math.abs(s.x[state.axis][i] - here) <= near)) {
    const row = table.insertRow(), swatch = Object.assign(document.createElement("span"), {className: "swatch"});
    swatch.style.background = colour(s.run, s.part);
    row.insertCell().append(swatch, name(s));
    row.insertCell().append(Object.assign(document.createElement("b"), {textContent: SHOWN[chart.kind](s.y[i])}));
    row.insertCell().textContent = `${place(state.axis, s.x[state.axis][i])}${s.smooth && typeof s.y[i] === "number"
      ? `, smoothed ${SHOWN[chart.kind](s.smooth[i])}` : ""}`;
    const drawn = (s.smooth || s.y)[i];
    if (typeof drawn === "number" && Number.isFinite(y(drawn))) {
      element(chart.dots, "circle", {cx: x(s.x[state.axis][i]), cy: y(drawn), r: 4, style: `fill:${colour(s.run, s.part)}`});
    }
  }
  tip.replaceChildren(table);
  tip.style.display = "block";
  const beside = event.clientX + 16 + tip.offsetWidth > innerWidth ? event.clientX - 16 - tip.offsetWidth : event.clientX + 16;
  tip.style.left = `${Math.max(4, beside)}px`;
  tip.style.top = `${Math.max(4, Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8))}px`;
}
function leave(chart) {
  tip.style.display = "none";
  if (!chart.scale) return;
  chart.cross.style.visibility = "hidden";
  chart.dots.replaceChildren();
}

// --- the page -----------------------------------------------------------------------------------------

function card(chart) {
  const box = Object.assign(document.createElement("div"), {className: "chart"});
  box.dataset.key = chart.key;
  box.append(Object.assign(document.createElement("h3"), {textContent: chart.title}));
  const parts = Object.assign(document.createElement("div"), {className: "parts"});
  for (const part of Object.keys(PARTS).filter(p => chart.series.some(s => s.part === p))) {
    const entry = document.createElement("span"), line = element(entry, "svg", {viewBox: "0 0 26 9"});
    const stroke = data.runs.length === 1 ? colour(0, part) : "var(--soft)";
    const dots = part === "train" && chart.series.some(s => s.part === "step" && s.y.length > 2);
    if (dots) element(line, "circle", {cx: 13, cy: 5, r: 3.2, style: `fill:${stroke}`});
    else element(line, "path", {class: part, d: "M1 5H25", style: `stroke:${stroke}`});
    entry.append(part === "step" ? "steps" : part === "train" ? (dots ? "epoch mean" : "training") : "validation");
    parts.append(entry);
  }
  chart.svg = element(box, "svg", {role: "img", "aria-label": chart.title});
  box.insertBefore(parts, chart.svg);
  chart.svg.addEventListener("pointermove", event => point(chart, event));
  chart.svg.addEventListener("pointerleave", () => leave(chart));
  return box;
}
function drawAll() {
  remember();
  byId("smoothed").textContent = Number(state.smooth).toFixed(2);
  data.charts.forEach(draw);
}
function legend() {
  if (data.runs.length === 1) return;
  data.runs.forEach((run, i) => {
    const button = Object.assign(document.createElement("button"), {type: "button", title: `show or hide ${run}`});
    const swatch = Object.assign(document.createElement("span"), {className: "swatch"});
    swatch.style.background = colour(i);
    button.append(swatch, run);
    button.setAttribute("aria-pressed", !state.hidden.includes(run));
    button.addEventListener("click", () => {
      state.hidden = state.hidden.includes(run) ? state.hidden.filter(r => r !== run) : [...state.hidden, run];
      button.setAttribute("aria-pressed", !state.hidden.includes(run));
      drawAll();
    });
    byId("legend").append(button);
  });
}
function begin() {
  Object.assign(state, remembered());
  byId("controls").hidden = false;
  for (const swatch of document.querySelectorAll(".runs .swatch")) swatch.style.background = colour(Number(swatch.dataset.run));
  for (const chart of data.charts) byId(chart.costs ? "costs" : "training").querySelector(".charts").append(card(chart));
  for (const id of ["training", "costs"]) byId(id).hidden = !byId(id).querySelector(".chart");
  for (const input of document.querySelectorAll("#axis input")) {
    input.checked = input.value === state.axis;
    input.addEventListener("change", () => { state.axis = input.value; drawAll(); });
  }
  byId("smooth").value = state.smooth;
  byId("smooth").addEventListener("input", event => { state.smooth = Number(event.target.value); drawAll(); });
  byId("smooth").closest("label").hidden = !data.charts.some(c => c.series.some(s => s.part === "step"));
  byId("log").checked = state.log;
  byId("log").addEventListener("change", event => { state.log = event.target.checked; drawAll(); });
  const only = byId("differences");
  if (only) only.addEventListener("change", () => {
    for (const row of document.querySelectorAll(".settings tbody tr:not(.differs)")) row.hidden = only.checked;
  });
  legend();
  drawAll();
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; drawAll(); } });
  // Do not reload while the pointer is on a chart or a control.
  const again = () => document.querySelector(".chart:hover, #controls:hover") ? setTimeout(again, 1000) : location.reload();
  if (data.refresh) setTimeout(again, data.refresh * 1000);
}
begin();
