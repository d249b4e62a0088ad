"use strict";

/* Show the pictures of a running program as they come; see harness/observe/_live.py. */

// From the address, out of sight, and kept for a reload in this tab alone.
const token = location.hash.slice(1) || sessionStorage.getItem("token") || "";
sessionStorage.setItem("token", token);
history.replaceState(null, "", location.pathname);
const asked = { headers: { Authorization: `Bearer ${token}` }, cache: "no-store" };

const SECONDS_BETWEEN_TRIES = 2;
let picture = null;
let chosen = null; // The id of the run that the buttons act on.

const tree = new Rows(
  byId("tree"),
  [
    { title: "run", wide: true },
    { title: "state", state: true },
    { title: "age", number: true },
    { title: "waits for", wide: true },
  ],
  {
    count: () => (picture ? picture.runs.shown.length : 0),
    cells: (index) => {
      const run = picture.runs.shown[index];
      return [run.name, run.state, duration(run.seconds), run.waits_for];
    },
    state: (index) => picture.runs.shown[index].state,
    level: (index) => picture.runs.shown[index].depth,
    expanded: () => null,
  },
  {
    label: "Live runs",
    onActive: (index) => choose(picture.runs.shown[index]),
  },
);

function choose(run) {
  chosen = run && run.id;
  byId("chosen").textContent = run ? `${run.name} (${run.id})` : "It has ended; choose another.";
  for (const name of ["stop", "cancel"]) byId(name).disabled = !run;
}

async function act(action) {
  const run = encodeURIComponent(chosen);
  const answer = await fetch(`/runs/${run}/${action}`, { ...asked, method: "POST" });
  const said = await answer.json().catch(() => ({}));
  byId("said").textContent = answer.ok ? `Asked it to ${action}.` : said.error || "Refused.";
}

for (const name of ["stop", "cancel"]) {
  byId(name).addEventListener("click", () => act(name).catch(() => say("The program is gone.")));
}

function say(words) {
  const state = byId("state");
  if (state.textContent !== words) state.textContent = words; // Else it is read out again.
}

function show(next) {
  picture = next;
  byId("program").textContent = `${next.program} (process ${next.pid})`;
  document.title = `${next.program}: live`;
  const fanOuts = next.fan_outs.shown;
  byId("fan-outs-count").textContent = nOfM(fanOuts.length, next.fan_outs.total, "fan-outs");
  fillTable(
    byId("fan-outs"),
    [
      { title: "fan-out" }, { title: "done", number: true }, { title: "failed", number: true },
      { title: "in flight", number: true }, { title: "per second", number: true },
      { title: "left" }, { title: "" },
    ],
    fanOuts.map((one) => [
      one.name,
      one.total === null ? number(one.done) : `${number(one.done)} of ${number(one.total)}`,
      number(one.failed),
      number(one.in_flight),
      one.per_second.toFixed(1),
      one.over ? "over" : duration(one.seconds_left),
      one.total ? meter(one.done / one.total, `${one.name}: done`) : "",
    ]),
  );
  const { to_start: toStart, waiting_for_limits: waiting } = next.queue;
  byId("queue").textContent =
    `Queue: ${number(toStart)} to start, ${number(waiting)} waiting for limits.`;
  showLimits(next.limits);
  showFailures(next.failures);
  byId("runs-count").textContent = nOfM(next.runs.shown.length, next.runs.total, "live runs");
  byId("actions").hidden = !next.may_cancel;
  const at = next.runs.shown.findIndex((run) => run.id === chosen);
  if (at >= 0) tree.active = at;
  else if (chosen !== null) choose(null);
  tree.draw();
}

function showLimits(limits) {
  byId("no-limits").hidden = limits.length > 0;
  byId("limits").hidden = !limits.length;
  const rows = [];
  for (const one of limits) {
    for (const part of one.dimensions) {
      rows.push([
        one.name, part.name, `${number(part.used)} of ${number(part.limit)}`,
        meter(part.use, `${one.name}: ${part.name}`),
      ]);
    }
    const most = one.concurrent === null ? "" : ` of ${number(one.concurrent)}`;
    const paused = one.paused_seconds ? `, paused for ${duration(one.paused_seconds)}` : "";
    const line = `${number(one.in_flight)}${most}, ${number(one.waiting)} waiting${paused}`;
    rows.push([one.name, "at once", line, ""]);
  }
  fillTable(
    byId("limits"), [{ title: "limit" }, { title: "of" }, { title: "used" }, { title: "" }], rows,
  );
}

function showFailures(failures) {
  byId("failures-count").textContent = number(failures.total);
  fillTable(
    byId("failures"),
    [{ title: "error" }, { title: "items", number: true }],
    failures.kinds.map(([kind, count]) => [kind, number(count)]),
  );
  byId("examples").replaceChildren(...failures.examples.map((one) => element("li", one)));
}

/* Events of a stream: lines up to an empty one, of which those that begin with "data: " count. */
async function follow() {
  const answer = await fetch("/events", asked);
  if (!answer.ok) throw new Error(await answer.text());
  say("Live.");
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (pending + value).split("\n\n");
    pending = events.pop();
    const last = events.pop();
    if (last) show(JSON.parse(last.slice("data: ".length)));
  }
}

async function run() {
  for (;;) {
    try {
      await follow();
      say("The program has ended, or has closed this page's connection.");
    } catch (error) {
      const why = error instanceof TypeError ? "" : ` (${error.message.trim()})`;
      say(`Not connected: the program has ended, or doesn't answer${why}.`);
    }
    await new Promise((resolve) => setTimeout(resolve, SECONDS_BETWEEN_TRIES * 1000));
  }
}

run();
