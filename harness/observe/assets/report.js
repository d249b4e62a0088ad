"use strict";

/* Draw a report from the data in the page; harness/observe/_report_data.py says what is in it.

   Times in the data are whole numbers of data.unit seconds since the start. Runs are columns: the
   run with the number 7 has the name runs.name[7], and so on; a parent comes before its children. */

const data = JSON.parse(byId("data").textContent);
const { runs, statuses } = data;
const count = runs.id.length;
const seconds = (units) => units * data.unit;
const present = statuses.filter((_, at) => runs.status.includes(at));
const share = (part, whole) => (whole ? `${((100 * part) / whole).toFixed(1)} %` : "–");
const statusOf = (run) => statuses[runs.status[run]];

const children = Array.from({ length: count }, () => []);
const depth = new Int32Array(count);
const roots = [];
for (let run = 0; run < count; run += 1) {
  const parent = runs.parent[run];
  if (parent < 0) roots.push(run);
  else children[parent].push(run);
  depth[run] = parent < 0 ? 0 : depth[parent] + 1;
}

/* The head ------------------------------------------------------------------------------------- */

byId("title").textContent = data.title;
document.title = `${data.title}: report`;
byId("facts").textContent = data.facts;
byId("constraint").textContent = data.constraint;

/* Where the time went -------------------------------------------------------------------------- */

function showParts() {
  byId("parts-words").textContent = data.parts_words;
  const whole = data.parts.reduce((sum, [, part]) => sum + part, 0);
  fillTable(
    byId("parts"),
    [{ title: "what" }, { title: "time", number: true }, { title: "share", number: true },
      { title: "" }],
    data.parts.map(([name, part]) => [
      name, duration(part), share(part, whole), meter(whole ? part / whole : 0, name),
    ]),
  );
  const { shown, total } = data.path;
  byId("path-box").hidden = !total;
  byId("path-count").textContent = nOfM(shown.length, total, "steps, the longest");
  fillTable(
    byId("path"),
    [{ title: "run" }, { title: "what" }, { title: "from", number: true },
      { title: "time", number: true }],
    shown.map(([run, name, part, at, length]) => [
      runButton(run, name), part, duration(seconds(at)), duration(seconds(length)),
    ]),
  );
}

function runButton(run, name) {
  if (run < 0) return element("span", name);
  const button = element("button", name);
  button.type = "button";
  button.addEventListener("click", () => reveal(run));
  return button;
}

/* The tree ------------------------------------------------------------------------------------- */

const expanded = new Uint8Array(count);
for (const run of roots) expanded[run] = 1;
let visible = [];
let flat = false; // Whether what was searched for is shown, without the tree around it.
let chosen = -1;

function listVisible() {
  const text = byId("filter").value.trim().toLowerCase();
  const status = byId("status").value;
  flat = Boolean(text || status);
  visible = [];
  if (flat) {
    for (let run = 0; run < count; run += 1) {
      const fits = !status || statusOf(run) === status;
      if (fits && (!text || runs.name[run].toLowerCase().includes(text))) visible.push(run);
    }
  } else {
    const pending = roots.slice().reverse(); // Not recursion: a tree may be very deep.
    while (pending.length) {
      const run = pending.pop();
      visible.push(run);
      if (expanded[run]) {
        for (let at = children[run].length - 1; at >= 0; at -= 1) pending.push(children[run][at]);
      }
    }
  }
  byId("found").textContent = nOfM(visible.length, data.total_runs, "runs listed");
}

const tree = new Rows(
  byId("tree"),
  [
    { title: "run", wide: true }, { title: "status", state: true },
    { title: "start", number: true }, { title: "time", number: true },
    { title: "runs below", number: true },
  ],
  {
    count: () => visible.length,
    cells: (index) => {
      const run = visible[index];
      return [
        runs.name[run], statusOf(run), duration(seconds(runs.at[run])),
        duration(seconds(runs.for[run])), children[run].length ? number(children[run].length) : "",
      ];
    },
    state: (index) => statusOf(visible[index]),
    level: (index) => (flat ? 0 : depth[visible[index]]),
    expanded: (index) => {
      const run = visible[index];
      return flat || !children[run].length ? null : Boolean(expanded[run]);
    },
  },
  {
    label: "Runs",
    onActive: (index) => choose(visible[index]),
    onToggle: (index) => {
      expanded[visible[index]] ^= 1;
      listVisible();
    },
  },
);

function relist() {
  listVisible();
  tree.active = Math.max(0, visible.indexOf(chosen));
  tree.go(tree.active);
}

function reveal(run) {
  byId("filter").value = "";
  byId("status").value = "";
  for (let above = runs.parent[run]; above >= 0; above = runs.parent[above]) expanded[above] = 1;
  listVisible();
  tree.go(visible.indexOf(run));
  byId("tree").focus();
}

function choose(run) {
  if (run === undefined || run === chosen) return;
  chosen = run;
  showRun(run);
  timeline.soon();
}

for (const name of present) {
  const option = element("option", name);
  option.value = name;
  byId("status").append(option);
}
byId("filter").addEventListener("input", relist);
byId("status").addEventListener("change", relist);
byId("expand").addEventListener("click", () => {
  expanded.fill(1);
  relist();
});
byId("collapse").addEventListener("click", () => {
  expanded.fill(0);
  relist();
});

/* The chosen run ------------------------------------------------------------------------------- */

const WAITS_LISTED = 20;
const waitsOf = new Map();
data.waits.run.forEach((run, at) => {
  if (!waitsOf.has(run)) waitsOf.set(run, []);
  waitsOf.get(run).push(at);
});

function pathOf(run) {
  const names = [];
  for (let one = run; one >= 0; one = runs.parent[one]) names.push(runs.name[one]);
  const path = names.reverse();
  return path.length > 12 ? [...path.slice(0, 6), "…", ...path.slice(-6)].join("/") : path.join("/");
}

function showRun(run) {
  const at = seconds(runs.at[run]);
  const length = seconds(runs.for[run]);
  const parts = [element("h3", pathOf(run))];
  const facts = element("p");
  facts.append(
    element("span", statusOf(run), statusOf(run)),
    `, from ${duration(at)} to ${duration(at + length)} (${duration(length)}), `,
    `${number(children[run].length)} runs below it, id ${runs.id[run]}`,
  );
  parts.push(facts);
  const failure = data.failures.of_run[run];
  if (failure !== undefined) {
    parts.push(element("p", `${failure.error}: ${failure.message}`, "failed"));
  }
  parts.push(...partsList(data.parts_of_run[run] || []), ...waitsList(waitsOf.get(run) || []));
  parts.push(...callsList(data.calls[run]));
  byId("run").replaceChildren(...parts);
}

/* Numbers of parts, each followed by its time. */
function partsList(parts) {
  const words = [];
  for (let at = 0; at < parts.length; at += 2) {
    words.push(`${data.part_names[parts[at]]} ${duration(seconds(parts[at + 1]))}`);
  }
  return words.length ? [element("p", `Where its time went: ${words.join(", ")}`)] : [];
}

function waitsList(waits) {
  if (!waits.length) return [];
  const all = data.waits;
  const table = element("table");
  const shown = waits.slice(0, WAITS_LISTED);
  fillTable(
    table,
    [{ title: "waited for" }, { title: "from", number: true }, { title: "time", number: true }],
    shown.map((at) => [
      all.reasons[all.reason[at]], duration(seconds(all.at[at])), duration(seconds(all.for[at])),
    ]),
  );
  return [element("p", nOfM(shown.length, waits.length, "waits"), "dim"), table];
}

function callsList(calls) {
  if (!calls) return [];
  const parts = [
    element("p", nOfM(calls.shown.length, calls.total, "calls of models and tools"), "dim"),
  ];
  for (const call of calls.shown) {
    const box = element("details");
    box.append(element("summary", call.words));
    if (call.messages) {
      const { shown, total } = call.messages;
      box.append(element("p", nOfM(shown.length, total, "messages"), "dim"));
      for (const [role, text] of shown) {
        box.append(element("p", role, "dim"), element("pre", text));
      }
    } else {
      box.append(element("p", "Its messages weren't recorded.", "dim"));
    }
    parts.push(box);
  }
  return parts;
}

/* The timeline --------------------------------------------------------------------------------- */

class Timeline {
  constructor(canvas) {
    this.canvas = canvas;
    this.whole = Math.max(1, data.whole);
    this.from = 0;
    this.to = this.whole;
    this.top = 0; // In lanes.
    this.lanes = count ? Math.max(...chunked(runs.lane)) + 1 : 1;
    this.asked = false;
    this.byLane = Array.from({ length: this.lanes }, () => []);
    for (let run = 0; run < count; run += 1) this.byLane[runs.lane[run]].push(run);
    for (const lane of this.byLane) lane.sort((one, other) => runs.at[one] - runs.at[other]);
    new ResizeObserver(() => this.soon()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.soon());
    this.listen();
  }

  get width() { return this.canvas.clientWidth; }

  get height() { return this.canvas.clientHeight - 18; } // Less the scale.

  get laneHeight() { return Math.max(4, Math.min(18, this.height / this.lanes)); }

  soon() {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => {
      this.asked = false;
      this.draw();
    });
  }

  move(from, to) {
    const shortest = Math.max(10, this.whole / 1e6);
    const length = Math.min(this.whole, Math.max(shortest, to - from));
    const middle = (from + to) / 2;
    this.from = Math.max(0, Math.min(middle - length / 2, this.whole - length));
    this.to = this.from + length;
    this.soon();
  }

  zoom(factor, at = (this.from + this.to) / 2) {
    this.move(at - (at - this.from) * factor, at + (this.to - at) * factor);
  }

  scroll(lanes) {
    const room = Math.max(0, this.lanes - this.height / this.laneHeight);
    this.top = Math.max(0, Math.min(room, this.top + lanes));
    this.soon();
  }

  timeAt(x) { return this.from + ((this.to - this.from) * x) / this.width; }

  listen() {
    const { canvas } = this;
    const length = () => this.to - this.from;
    const keys = {
      ArrowLeft: () => this.move(this.from - length() / 5, this.to - length() / 5),
      ArrowRight: () => this.move(this.from + length() / 5, this.to + length() / 5),
      ArrowUp: () => this.scroll(-10),
      ArrowDown: () => this.scroll(10),
      "+": () => this.zoom(0.5),
      "=": () => this.zoom(0.5),
      "-": () => this.zoom(2),
      0: () => this.move(0, this.whole),
      Home: () => this.move(0, length()),
      End: () => this.move(this.whole - length(), this.whole),
    };
    canvas.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.altKey || event.metaKey || !(event.key in keys)) return;
      keys[event.key]();
      event.preventDefault();
    });
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      if (event.shiftKey) this.scroll(event.deltaY / 10);
      else this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.timeAt(event.offsetX));
    }, { passive: false });
    let drag = null;
    canvas.addEventListener("pointerdown", (event) => {
      drag = { x: event.offsetX, y: event.offsetY, from: this.from, to: this.to, moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!drag) return;
      const shift = event.offsetX - drag.x;
      if (Math.abs(shift) > 3 || Math.abs(event.offsetY - drag.y) > 3) drag.moved = true;
      if (!drag.moved) return;
      const by = (-shift * (drag.to - drag.from)) / this.width;
      this.move(drag.from + by, drag.to + by);
      this.scroll((drag.y - event.offsetY) / this.laneHeight);
      drag.y = event.offsetY;
    });
    canvas.addEventListener("pointerup", (event) => {
      if (drag && !drag.moved) this.pick(event.offsetX, event.offsetY);
      drag = null;
    });
    byId("zoom-in").addEventListener("click", () => this.zoom(0.5));
    byId("zoom-out").addEventListener("click", () => this.zoom(2));
    byId("zoom-all").addEventListener("click", () => this.move(0, this.whole));
  }

  pick(x, y) {
    const lane = this.byLane[Math.floor(this.top + y / this.laneHeight)] || [];
    const at = this.timeAt(x);
    const slack = (3 * (this.to - this.from)) / this.width;
    const run = lane.find(
      (one) => runs.at[one] - slack <= at && at <= runs.at[one] + runs.for[one] + slack,
    );
    if (run !== undefined) reveal(run);
  }

  draw() {
    const { canvas, width, height, laneHeight } = this;
    if (!width) return;
    const dots = devicePixelRatio || 1;
    canvas.width = width * dots;
    canvas.height = canvas.clientHeight * dots;
    const pen = canvas.getContext("2d");
    pen.scale(dots, dots);
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    const colours = statuses.map((name) => colour(name) || colour("dim"));
    const scale = width / (this.to - this.from);
    let seen = 0;
    for (let lane = Math.floor(this.top); lane < this.lanes; lane += 1) {
      const y = (lane - this.top) * laneHeight;
      if (y > height) break;
      let drawnTo = -1; // What falls on a pixel that is drawn already isn't drawn again.
      for (const run of this.byLane[lane]) {
        const left = (runs.at[run] - this.from) * scale;
        if (left > width) break;
        const right = Math.max(left + 1, left + runs.for[run] * scale);
        if (right < 0) continue;
        seen += 1;
        if (right <= drawnTo + 0.5 && run !== chosen) continue;
        drawnTo = right;
        const failed = statusOf(run) !== "ok";
        pen.fillStyle = colours[runs.status[run]];
        pen.globalAlpha = failed ? 1 : 0.55;
        const start = Math.max(-1, left);
        pen.fillRect(start, y, Math.min(width + 1, right) - start - 0.3, laneHeight - 1);
        this.drawWaits(pen, run, scale, y, colour);
        if (right - left > 40 && laneHeight >= 12) this.write(pen, run, left, right, y, colour);
        if (run === chosen) {
          pen.globalAlpha = 1;
          pen.strokeStyle = colour("fore");
          pen.lineWidth = 2;
          pen.strokeRect(start, y, Math.min(width, right) - start, laneHeight - 1);
        }
      }
    }
    pen.globalAlpha = 1;
    this.drawScale(pen, colour);
    byId("seen").textContent =
      `${duration(seconds(this.from))} to ${duration(seconds(this.to))}: ` +
      nOfM(seen, data.total_runs, "runs in sight");
  }

  drawWaits(pen, run, scale, y, colour) {
    const waits = waitsOf.get(run);
    if (!waits || this.laneHeight < 4) return;
    pen.fillStyle = colour("soft");
    pen.globalAlpha = 0.8;
    for (const at of waits) {
      const left = (data.waits.at[at] - this.from) * scale;
      const length = data.waits.for[at] * scale;
      if (length >= 1 && left < this.width && left + length > 0) {
        pen.fillRect(Math.max(0, left), y + 1, Math.min(length, this.width), this.laneHeight - 3);
      }
    }
  }

  write(pen, run, left, right, y, colour) {
    pen.save();
    pen.beginPath();
    pen.rect(Math.max(0, left), y, right - Math.max(0, left) - 4, this.laneHeight);
    pen.clip();
    pen.globalAlpha = 1;
    pen.fillStyle = colour("fore");
    pen.font = "11px system-ui, sans-serif";
    pen.fillText(runs.name[run].slice(0, 80), Math.max(0, left) + 3, y + this.laneHeight - 5);
    pen.restore();
  }

  drawScale(pen, colour) {
    pen.fillStyle = colour("back");
    pen.fillRect(0, this.height, this.width, 18);
    pen.fillStyle = colour("dim");
    pen.font = "11px system-ui, sans-serif";
    const step = this.width / 6;
    for (let mark = 0; mark < 6; mark += 1) {
      const words = duration(seconds(this.timeAt(mark * step)));
      pen.fillText(words, mark * step + 2, this.height + 13);
    }
  }
}

/* Math.max(...list) fails for long lists, so take the largest of parts of it. */
function chunked(list) {
  const largest = [0];
  for (let at = 0; at < list.length; at += 10000) {
    largest.push(Math.max(...list.slice(at, at + 10000)));
  }
  return largest;
}

const timeline = new Timeline(byId("timeline"));
byId("timeline-count").textContent = nOfM(count, data.total_runs, "runs");
byId("runs-count").textContent = nOfM(count, data.total_runs, "runs");
byId("legend").textContent =
  `Each bar is a run, coloured by how it ended (${present.join(", ")}). What it waited for is ` +
  `light: ${nOfM(data.waits.run.length, data.waits.total, "waits")} are in this page.`;

/* Failures, stragglers, limits, ceiling -------------------------------------------------------- */

function showFailures() {
  const { groups, total, total_groups: totalGroups } = data.failures;
  byId("failures-count").textContent =
    `${number(total)} errors, ${nOfM(groups.length, totalGroups, "kinds")}`;
  byId("failures").replaceChildren(...groups.map((group) => {
    const box = element("details");
    const summary = element("summary");
    summary.append(
      element("strong", group.error, "failed"), `: ${group.messages[0] || ""} `,
      element("span", `${number(group.total)} times`, "count"),
    );
    box.append(summary);
    if (group.traceback.length) {
      box.append(element("pre", group.traceback.join("\n")));
    }
    if (group.messages.length > 1) {
      box.append(
        element("p", nOfM(group.messages.length, group.total_messages, "messages"), "dim"),
        element("pre", group.messages.join("\n")),
      );
    }
    box.append(element("p", nOfM(group.runs.length, group.total, "runs"), "dim"));
    const list = element("p");
    list.append(...group.runs.map(([run, name]) => runButton(run, name)));
    box.append(list);
    return box;
  }));
}

function showStragglers() {
  const { shown, total, words } = data.stragglers;
  byId("stragglers-count").textContent = nOfM(shown.length, total, "runs, the slowest");
  byId("stragglers-words").textContent = words;
  fillTable(
    byId("stragglers"),
    [{ title: "run" }, { title: "time", number: true }, { title: "middle one", number: true },
      { title: "times that", number: true }],
    shown.map(([run, name, length, median]) => [
      runButton(run, name), duration(length), duration(median),
      median ? (length / median).toFixed(1) : "–",
    ]),
  );
}

const SVG = "http://www.w3.org/2000/svg";

function chart(points, label) {
  const svg = document.createElementNS(SVG, "svg");
  const set = (node, values) => {
    for (const [name, value] of Object.entries(values)) node.setAttribute(name, value);
    return node;
  };
  set(svg, { class: "chart low", viewBox: "0 0 1000 110", preserveAspectRatio: "none", role: "img" });
  svg.setAttribute("aria-label", label);
  const top = Math.max(1, ...points.map(([, use]) => use));
  const y = (use) => 105 - (100 * use) / top;
  const line = (values) => svg.append(set(document.createElementNS(SVG, "polyline"), {
    fill: "none", "vector-effect": "non-scaling-stroke", ...values,
  }));
  line({ points: `0,${y(1)} 1000,${y(1)}`, stroke: "var(--failed)", "stroke-dasharray": "4 4" });
  const drawn = points.map(([at, use]) => `${(1000 * at) / Math.max(1, data.whole)},${y(use)}`);
  line({ points: drawn.join(" "), stroke: "var(--mark)", "stroke-width": "1.5" });
  return svg;
}

function showLimits() {
  const { shown, total, words, what } = data.limits;
  byId("limits-count").textContent = nOfM(shown.length, total, what);
  byId("limits").replaceChildren(...shown.flatMap((one) => [
    element("h3", `${one.name}: ${one.of}`),
    element("p", one.words, "dim"),
    chart(one.points, `${one.name}, ${one.of}: ${one.words}`),
  ]));
  byId("limits").append(element("p", words, "dim"));
}

function showCeiling() {
  byId("ceiling-words").textContent = data.ceiling.words;
  byId("ceiling").hidden = !data.ceiling.rows.length;
  fillTable(
    byId("ceiling"),
    [{ title: "workers", number: true }, { title: "times as fast as one", number: true }],
    data.ceiling.rows.map(([workers, times]) => [number(workers), times.toFixed(1)]),
  );
}

showParts();
showFailures();
showStragglers();
showLimits();
showCeiling();
listVisible();
tree.draw();
timeline.soon();
