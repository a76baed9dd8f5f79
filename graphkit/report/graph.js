// --- numbers as text ----------------------------------------------------------------------------------

function bytes(value) {
  const power = value < 1024 ? 0 : Math.min(Math.floor(Math.log2(value) / 10), 4);
  return `${Number((value / 2 ** (10 * power)).toPrecision(4))} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}
function si(value) {
  const power = value < 1000 ? 0 : Math.min(Math.floor(Math.log10(value) / 3), 6);
  return `${Number((value / 1000 ** power).toPrecision(4))} ${["", "k", "M", "G", "T", "P", "E"][power]}`.trim();
}
function duration(value) {
  const [unit, name] = value < 1e-3 ? [1e-6, "\u00b5s"] : value < 1 ? [1e-3, "ms"] : [1, "s"];
  return `${Number((value / unit).toPrecision(3))} ${name}`;
}
const SHOWN = {flops: si, bytes, time: duration};
const spoken = (what, value) => typeof value === "number" ? SHOWN[what](value) : value === null ? "unknown" : value;

// --- elements -----------------------------------------------------------------------------------------

// Texts of the file are only ever inserted as text, never as HTML.
function make(tag, content = "", ...children) {
  const made = document.createElement(tag);
  made.textContent = content;
  made.append(...children);
  return made;
}
function link(content, action) {
  const made = make("button", content);
  made.type = "button";
  made.addEventListener("click", action);
  return made;
}
function table(rows) {
  return make("table", "", make("tbody", "", ...rows.map(cells =>
    make("tr", "", ...cells.map(cell => typeof cell === "string" ? make("td", cell) : make("td", "", cell))))));
}
function cell(first, second) {
  const made = make("span", "", typeof first === "string" ? document.createTextNode(first) : first);
  made.append(make("small", second));
  return made;
}

// --- the panel ----------------------------------------------------------------------------------------

const readers = data.nodes.map(() => []); // for each node, the nodes that read its results
data.nodes.forEach((node, number) => node.inputs.forEach(([, , , source]) => {
  if (source >= 0 && readers[source].at(-1) !== number) readers[source].push(number);
}));
const nodeLink = number => link(text(data.nodes[number].name), () => goTo(number));

function showPanel() {
  const view = data.views[state.view], i = state.item, panel = byId("panel");
  panel.scrollTop = 0;
  if (i < 0) panel.replaceChildren(...aboutView(view));
  else if (view.kind[i] === NODE) panel.replaceChildren(...aboutNode(view.entry[i]));
  else if (view.kind[i] === GROUP) panel.replaceChildren(...aboutGroup(view, i));
  else panel.replaceChildren(...aboutValue(view, i));
}
function aboutView(view) {
  const nodes = view.kind.filter(kind => kind === NODE).length, groups = view.kind.filter(kind => kind === GROUP).length;
  const facts = [["nodes", nodes.toLocaleString("en")]];
  if (groups) facts.push(["groups", groups.toLocaleString("en")]);
  for (const what of ["flops", "bytes", ...data.timed ? ["time"] : []]) facts.push([NAMES[what], SHOWN[what](sums[what][state.view]) + more(view, what)]);
  if (data.timed && state.view === 0) facts.push(["steps without a node", duration(data.unmatched)]);
  return [make("h2", text(view.title)), table(facts), make("h3", "Inputs, outputs and groups"),
    table(view.kind.flatMap((kind, i) => kind === NODE ? [] :
      [[["input", "output", "", "group"][kind], cell(link(text(view.name[i]), () => choose(i, true)), typeOf(view, i))]]))];
}
const isSymbolic = (view, what) => view.kind.some((kind, i) => kind === NODE && typeof data.nodes[view.entry[i]][what] === "string");
const more = (view, what) => isSymbolic(view, what) ? ", without symbolic amounts" : "";
const typeOf = (view, i) => view.type[i] < 0 ? "" : text(view.type[i]);
function aboutGroup(view, i) {
  const facts = ["flops", "bytes", ...data.timed ? ["time"] : []].map(what => [NAMES[what], SHOWN[what](measure(view, i, what))]);
  return [make("h2", text(view.name[i])), table(facts), link("Open the group", () => open(view.opens[i]))];
}
function aboutValue(view, i) {
  const made = [make("h2", text(view.name[i])), table([["kind", view.kind[i] === INPUT ? "input" : "output"], ["type", typeOf(view, i)]])];
  if (view.entry[i] >= 0) made.push(make("h3", "Computed by"), nodeLink(view.entry[i]));
  return made;
}
function aboutNode(number) {
  const node = data.nodes[number];
  const facts = [["operator", text(node.op)], ["kind", data.kinds[node.kind]], ["FLOPs", spoken("flops", node.flops)],
    ["bytes read and written", spoken("bytes", node.bytes)]];
  if (node.steps) {
    facts.push(["time per run", duration(node.time)]);
    for (const [step, implementation, seconds, calls] of node.steps) {
      facts.push(["step", cell(text(step), [text(implementation), duration(seconds), `calls recorded: ${calls}`].filter(Boolean).join(", "))]);
    }
  } else if (data.timed) facts.push(["time per run", "no step of its own: fused into another node, or computed before the run"]);
  const made = [make("h2", text(node.name)), table(facts)];
  const add = (title, rows) => { if (rows.length) made.push(make("h3", title), table(rows)); };
  add("Subgraphs", node.bodies.map(([part, view]) => [link(`Open ${text(part)}`, () => open(view))]));
  add("Attributes", node.attributes.map(([name, value]) => [text(name), text(value)]));
  const [stored, read] = [node.inputs.filter(i => text(i[4])), node.inputs.filter(i => !text(i[4]))];
  add("Inputs", read.map(([formal, name, type, source]) =>
    [text(formal), cell(source < 0 ? text(name) : link(text(name), () => goTo(source)), text(type))]));
  add("Parameters and constants", stored.map(([formal, name, type, , what]) =>
    [text(formal), cell(text(name), `${text(type)}; ${text(what)}`)]));
  add("Outputs", node.outputs.map(([name, type]) => [cell(text(name), text(type))]));
  add("Read by", readers[number].slice(0, 200).map(reader => [nodeLink(reader)]));
  return made;
}

// --- selection and views ------------------------------------------------------------------------------

function choose(i, moves = false) {
  state.item = i;
  if (moves && i >= 0) centre(i);
  showPanel();
  draw();
}
function open(view, fresh = true) {
  state.places[state.view] = [state.zoom, state.left, state.top];
  state.view = view;
  state.item = -1;
  if (fresh && state.places[view]) [state.zoom, state.left, state.top] = state.places[view];
  else begin();
  showPath();
  mark();
  showLegend();
  showPanel();
  draw();
}
function goTo(number) {
  const [view, item] = data.nodes[number].at;
  if (view !== state.view) open(view);
  choose(item, true);
}
function showPath() {
  const above = [];
  for (let view = state.view; view >= 0; view = data.views[view].parent) above.unshift(view);
  byId("path").replaceChildren(...above.flatMap((view, i) => [...i ? [" \u203a "] : [],
    view === state.view ? make("strong", text(data.views[view].title)) : link(text(data.views[view].title), () => open(view))]));
}
function enter() {
  const view = data.views[state.view], i = state.item;
  if (i < 0) return;
  if (view.kind[i] === GROUP) open(view.opens[i]);
  else if (inner(view, i).length) open(inner(view, i)[0][1]);
}
function leave() {
  const closed = state.view, parent = data.views[closed].parent;
  if (parent < 0) return;
  open(parent);
  const view = data.views[parent];
  choose(view.kind.findIndex((_, i) => view.opens[i] === closed || inner(view, i).some(([, body]) => body === closed)), true);
}
// To a box that reads the selected one (down), or that it reads.
function follow(down) {
  const edge = data.views[state.view].edges.find(edge => edge[down ? 0 : 1] === state.item);
  if (edge) choose(edge[down ? 1 : 0], true);
  else if (state.item < 0 && data.views[state.view].x.length) choose(0, true);
}

// --- finding ------------------------------------------------------------------------------------------

function find() {
  const wanted = byId("query").value.trim().toLowerCase();
  state.matches = wanted === "" ? [] : data.nodes.flatMap((node, number) =>
    text(node.name).toLowerCase().includes(wanted) || text(node.op).toLowerCase().includes(wanted) ? [number] : []);
  state.at = -1;
  mark();
  tellMatches();
  draw();
}
function mark() {
  state.found = new Set(state.matches.filter(number => data.nodes[number].at[0] === state.view).map(number => data.nodes[number].at[1]));
}
function tellMatches() {
  const count = state.matches.length;
  byId("matches").textContent = byId("query").value.trim() === "" ? ""
    : state.at < 0 ? `${count.toLocaleString("en")} found` : `${state.at + 1} of ${count.toLocaleString("en")}`;
}
function step(by) {
  if (!state.matches.length) return;
  state.at = state.at < 0 ? (by > 0 ? 0 : state.matches.length - 1) : (state.at + by + state.matches.length) % state.matches.length;
  goTo(state.matches[state.at]);
  tellMatches();
}

// --- colours and legend -------------------------------------------------------------------------------

const NAMES = {kind: "kind of operator", flops: "FLOPs", bytes: "bytes", time: "time"};
function showLegend() {
  const view = data.views[state.view], legend = byId("legend");
  if (state.colour === "kind") {
    const used = new Set(view.kind.flatMap((kind, i) => kind === NODE ? [data.nodes[view.entry[i]].kind] : []));
    legend.replaceChildren(...[...used].sort().map(kind => {
      const swatch = make("i");
      swatch.style.background = `var(--k${kind})`;
      return make("span", "", swatch, data.kinds[kind]);
    }));
    return;
  }
  const scale = make("i");
  scale.className = "scale";
  legend.replaceChildren("0 ", scale, ` ${SHOWN[state.colour](largest(view, state.colour))} (square-root scale)`,
    isSymbolic(view, state.colour) ? " Symbolic amounts count as 0: give input shapes." : "");
}
for (const what of ["kind", "flops", "bytes", ...data.timed ? ["time"] : []]) {
  const option = make("option", NAMES[what]);
  option.value = what;
  byId("colour").append(option);
}
byId("colour").addEventListener("change", event => {
  state.colour = event.target.value;
  showLegend();
  draw();
});

// --- controls -----------------------------------------------------------------------------------------

byId("query").addEventListener("input", find);
byId("find").addEventListener("submit", event => { event.preventDefault(); step(1); });
byId("previous").addEventListener("click", () => step(-1));
byId("in").addEventListener("click", () => zoomAt(1.4));
byId("out").addEventListener("click", () => zoomAt(1 / 1.4));
byId("fit").addEventListener("click", fit);
byId("full").addEventListener("click", () => zoomAt(1 / state.zoom));
canvas.addEventListener("wheel", event => {
  event.preventDefault();
  zoomAt(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0015)), event.offsetX, event.offsetY);
}, {passive: false});
let held = null;
canvas.addEventListener("pointerdown", event => {
  held = {x: event.offsetX, y: event.offsetY, moved: 0};
  canvas.setPointerCapture(event.pointerId);
  canvas.classList.add("moving");
});
canvas.addEventListener("pointermove", event => {
  if (!held) return;
  move(held.x - event.offsetX, held.y - event.offsetY);
  held = {x: event.offsetX, y: event.offsetY, moved: held.moved + Math.abs(held.x - event.offsetX) + Math.abs(held.y - event.offsetY)};
});
canvas.addEventListener("pointerup", event => {
  canvas.classList.remove("moving");
  if (held && held.moved < 5) choose(itemAt(event.offsetX, event.offsetY));
  held = null;
});
canvas.addEventListener("pointercancel", () => { held = null; canvas.classList.remove("moving"); });
canvas.addEventListener("dblclick", event => { choose(itemAt(event.offsetX, event.offsetY)); enter(); });
const KEYS = {
  ArrowLeft: () => move(-80, 0), ArrowRight: () => move(80, 0), ArrowUp: () => move(0, -80), ArrowDown: () => move(0, 80),
  PageUp: () => move(0, -0.9 * canvas.clientHeight), PageDown: () => move(0, 0.9 * canvas.clientHeight),
  "+": () => zoomAt(1.4), "=": () => zoomAt(1.4), "-": () => zoomAt(1 / 1.4), 0: fit, "/": () => byId("query").focus(),
  n: () => step(1), p: () => step(-1), d: () => follow(true), u: () => follow(false), Enter: enter, Backspace: leave,
  Escape: () => choose(-1),
};
canvas.addEventListener("keydown", event => {
  const action = KEYS[event.key];
  if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  action();
});
byId("query").addEventListener("keydown", event => { if (event.key === "Escape") canvas.focus(); });
new ResizeObserver(draw).observe(canvas);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); draw(); });

readColours();
if (data.timed) byId("colour").value = state.colour = "time";
open(0, false);
