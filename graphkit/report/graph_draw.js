"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const byId = id => document.getElementById(id);
const canvas = byId("graph"), pen = canvas.getContext("2d");
const INPUT = 0, OUTPUT = 1, NODE = 2, GROUP = 3, LINE = 15, MARGIN = 24;
// Below this zoom, boxes have no text. LEAST: a box of 1 pixel is drawn as one of this height.
const READABLE = 0.45, LEAST = 1.2;
const text = number => data.texts[number];
// zoom: pixels per unit. left, top: the place of the drawing in the upper left corner.
const state = {view: 0, zoom: 1, left: 0, top: 0, item: -1, colour: "kind", matches: [], at: -1, found: new Set(), places: {}};

// --- sums of views ------------------------------------------------------------------------------------

function amount(node, what) {
  return typeof node[what] === "number" ? node[what] : 0;
}
// A group has the sum of its nodes. Groups follow the views that contain them.
function total(what) {
  const sums = data.views.map(view => view.kind.reduce((sum, kind, i) =>
    sum + (kind === NODE ? amount(data.nodes[view.entry[i]], what) : 0), 0));
  for (let i = data.views.length - 1; i > 0; i--) {
    const view = data.views[i], parent = data.views[view.parent];
    if (parent.opens.includes(i)) sums[view.parent] += sums[i];
  }
  return sums;
}
const sums = {flops: total("flops"), bytes: total("bytes"), time: total("time")};
function measure(view, i, what) {
  return view.kind[i] === NODE ? amount(data.nodes[view.entry[i]], what)
    : view.kind[i] === GROUP ? sums[what][view.opens[i]] : 0;
}
function largest(view, what) {
  return view.kind.reduce((most, _, i) => Math.max(most, measure(view, i, what)), 0);
}

// --- colours ------------------------------------------------------------------------------------------

let colours = {};
function readColours() {
  const style = getComputedStyle(document.documentElement);
  const names = ["card", "text", "soft", "axis", "edge", "cold", "hot", "found", "chosen", "given", "result", "group", "page"];
  colours = Object.fromEntries(names.map(name => [name, style.getPropertyValue(`--${name}`).trim()]));
  colours.kinds = data.kinds.map((_, i) => style.getPropertyValue(`--k${i}`).trim());
}
function parts(colour) {
  const digits = colour.length === 4 ? [...colour.slice(1)].map(c => c + c).join("") : colour.slice(1, 7);
  return [0, 2, 4].map(i => parseInt(digits.slice(i, i + 2), 16));
}
function between(share) {
  const [a, b] = [parts(colours.cold), parts(colours.hot)];
  return a.map((from, i) => Math.round(from + (b[i] - from) * share));
}
// The square root makes small differences visible.
function fill(view, i, most) {
  const kind = view.kind[i];
  if (state.colour !== "kind" && (kind === NODE || kind === GROUP)) {
    return `rgb(${between(most ? Math.sqrt(measure(view, i, state.colour) / most) : 0).join(",")})`;
  }
  if (kind === NODE) return colours.kinds[data.nodes[view.entry[i]].kind];
  return kind === INPUT ? colours.given : kind === OUTPUT ? colours.result : colours.group;
}
function ink(colour) {
  if (!colour.startsWith("rgb")) return colours.text;
  const [r, g, b] = colour.slice(4, -1).split(",").map(Number);
  return 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#16181c" : "#fff";
}

// --- drawing ------------------------------------------------------------------------------------------

const drawn = {boxes: 0, edges: 0}; // of the last picture
let waiting = false;
function draw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; paint(); });
}
function paint() {
  const view = data.views[state.view], scale = devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * scale)) canvas.width = Math.round(width * scale);
  if (canvas.height !== Math.round(height * scale)) canvas.height = Math.round(height * scale);
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.setTransform(scale * state.zoom, 0, 0, scale * state.zoom, -state.left * state.zoom * scale, -state.top * state.zoom * scale);
  const seen = {x0: state.left, y0: state.top, x1: state.left + width / state.zoom, y1: state.top + height / state.zoom};
  drawn.edges = paintEdges(view, seen);
  drawn.boxes = paintBoxes(view, seen);
}
// The edges of the selected box are drawn last, in its colour.
function paintEdges(view, seen) {
  const arrows = state.zoom >= READABLE / 2, late = [];
  let count = 0;
  pen.lineWidth = Math.max(1.1, 0.7 / state.zoom);
  pen.strokeStyle = pen.fillStyle = colours.edge;
  for (const edge of view.edges) {
    if (!touches(view, edge, seen)) continue;
    count += 1;
    if (edge[0] === state.item || edge[1] === state.item) late.push(edge);
    else curve(view, edge, arrows);
  }
  pen.lineWidth = Math.max(2, 1.4 / state.zoom);
  pen.strokeStyle = pen.fillStyle = colours.chosen;
  for (const edge of late) curve(view, edge, arrows);
  return count;
}
function ends(view, [a, b]) {
  return [view.x[a] + view.w[a] / 2, view.y[a] + view.h[a], view.x[b] + view.w[b] / 2, view.y[b]];
}
function touches(view, edge, seen) {
  const [x1, y1, x2, y2] = ends(view, edge);
  if (y2 < seen.y0 || y1 > seen.y1) return false;
  let low = Math.min(x1, x2), high = Math.max(x1, x2);
  for (let i = 2; i < edge.length; i += 2) { low = Math.min(low, edge[i]); high = Math.max(high, edge[i]); }
  return high >= seen.x0 && low <= seen.x1;
}
function curve(view, edge, arrow) {
  const [x1, y1, x2, y2] = ends(view, edge);
  let x = x1, y = y1;
  pen.beginPath();
  pen.moveTo(x, y);
  for (let i = 2; i <= edge.length; i += 2) {
    const last = i === edge.length, toX = last ? x2 : edge[i], toY = last ? y2 - 4 : edge[i + 1], middle = (y + toY) / 2;
    pen.bezierCurveTo(x, middle, toX, middle, toX, toY);
    [x, y] = [toX, toY];
  }
  pen.stroke();
  if (!arrow) return;
  pen.beginPath();
  pen.moveTo(x2 - 3.5, y2 - 6);
  pen.lineTo(x2 + 3.5, y2 - 6);
  pen.lineTo(x2, y2);
  pen.fill();
}
function paintBoxes(view, seen) {
  const most = state.colour === "kind" ? 0 : largest(view, state.colour), readable = state.zoom >= READABLE;
  let count = 0;
  pen.textAlign = "center";
  for (let i = 0; i < view.x.length; i++) {
    const x = view.x[i], y = view.y[i], w = view.w[i], h = Math.max(view.h[i], LEAST / state.zoom);
    if (x > seen.x1 || x + w < seen.x0 || y > seen.y1 || y + h < seen.y0) continue;
    count += 1;
    const colour = fill(view, i, most), opens = view.kind[i] === GROUP || inner(view, i).length > 0;
    const marked = i === state.item ? colours.chosen : state.found.has(i) ? colours.found : "";
    pen.fillStyle = colour;
    pen.strokeStyle = marked || colours.axis;
    pen.lineWidth = marked ? Math.max(3, 2.5 / state.zoom) : opens ? 2 : 1;
    pen.beginPath();
    pen.roundRect(x, y, w, h, view.kind[i] === NODE ? 3 : 10);
    pen.fill();
    pen.stroke();
    if (!readable) continue;
    pen.fillStyle = ink(colour);
    view.lines[i].forEach((line, k) => {
      pen.font = `${k ? "" : "bold "}11px ui-monospace, Consolas, "Liberation Mono", monospace`;
      pen.fillText(text(line) + (opens && !k ? " \u25be" : ""), x + w / 2, y + 4 + (k + 0.75) * LINE);
    });
  }
  return count;
}
function inner(view, i) {
  return view.kind[i] === NODE ? data.nodes[view.entry[i]].bodies : [];
}

// --- moving -------------------------------------------------------------------------------------------

function bounds(view) {
  let right = 0, bottom = 0;
  for (let i = 0; i < view.x.length; i++) {
    right = Math.max(right, view.x[i] + view.w[i]);
    bottom = Math.max(bottom, view.y[i] + view.h[i]);
  }
  return [right, bottom];
}
function fit() {
  const [right, bottom] = bounds(data.views[state.view]);
  state.zoom = Math.min(2, canvas.clientWidth / (right + 2 * MARGIN), canvas.clientHeight / (bottom + 2 * MARGIN));
  state.left = right / 2 - canvas.clientWidth / 2 / state.zoom;
  state.top = bottom / 2 - canvas.clientHeight / 2 / state.zoom;
  draw();
}
// The whole drawing if it is readable, otherwise its top.
function begin() {
  fit();
  if (state.zoom >= 0.6 * READABLE) return;
  const view = data.views[state.view], first = view.x.length ? view.x[0] + view.w[0] / 2 : 0;
  state.zoom = 0.9;
  state.left = first - canvas.clientWidth / 2 / state.zoom;
  state.top = -MARGIN;
  draw();
}
function zoomAt(factor, x = canvas.clientWidth / 2, y = canvas.clientHeight / 2) {
  const zoom = Math.min(8, Math.max(0.001, state.zoom * factor));
  state.left += x / state.zoom - x / zoom;
  state.top += y / state.zoom - y / zoom;
  state.zoom = zoom;
  draw();
}
function move(x, y) {
  state.left += x / state.zoom;
  state.top += y / state.zoom;
  draw();
}
function centre(i) {
  const view = data.views[state.view];
  if (state.zoom < READABLE) state.zoom = 0.9;
  state.left = view.x[i] + view.w[i] / 2 - canvas.clientWidth / 2 / state.zoom;
  state.top = view.y[i] + view.h[i] / 2 - canvas.clientHeight / 2 / state.zoom;
  draw();
}
function itemAt(x, y) {
  const view = data.views[state.view], px = state.left + x / state.zoom, py = state.top + y / state.zoom;
  return view.x.findIndex((left, i) => px >= left && px <= left + view.w[i] && py >= view.y[i] && py <= view.y[i] + view.h[i]);
}
