"use strict";

/* A list of any length, or a tree, of which only the rows in sight are in the page.

   The list is one stop for the Tab key; arrows move inside of it, and the active row is told to
   screen readers by aria-activedescendant, so it doesn't matter that rows come and go. Whatever is
   shown is set as text, never as HTML. */

const ROW_HEIGHT = 24;
const ROWS_BEYOND = 6; // Above and below what is in sight.
const STEPS_SHOWN = 24; // Of indentation: a tree may be a thousand deep.

class Rows {
  /* box: an empty element of the class "rows".
     columns: [{title, wide, number}], the first of which is indented.
     source: {count(), key(index), cells(index) -> texts, state(index) -> a class, level(index),
              expanded(index) -> true, false or null} */
  constructor(box, columns, source, { label, onActive = () => {}, onToggle = () => {} }) {
    this.box = box;
    this.columns = columns;
    this.source = source;
    this.onActive = onActive;
    this.onToggle = onToggle;
    this.active = 0;
    this.drawn = false;
    box.tabIndex = 0;
    box.setAttribute("role", "treegrid");
    box.setAttribute("aria-label", label);
    const head = this.part("head", "row", box);
    head.setAttribute("aria-rowindex", "1");
    for (const column of columns) {
      this.part(this.cellClass(column), "columnheader", head).textContent = column.title;
    }
    this.space = this.part("space", "rowgroup", box);
    box.addEventListener("scroll", () => this.soon());
    box.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.soon()).observe(box);
  }

  part(className, role, parent) {
    const made = document.createElement("div");
    made.className = className;
    made.setAttribute("role", role);
    parent.append(made);
    return made;
  }

  cellClass(column) {
    return `cell${column.wide ? " wide" : ""}${column.number ? " number" : ""}`;
  }

  soon() {
    if (this.drawn) return;
    this.drawn = true;
    requestAnimationFrame(() => {
      this.drawn = false;
      this.draw();
    });
  }

  draw() {
    const { source, box, space } = this;
    const count = source.count();
    this.active = Math.max(0, Math.min(this.active, count - 1));
    space.style.height = `${count * ROW_HEIGHT}px`;
    box.setAttribute("aria-rowcount", String(count + 1));
    const first = Math.max(0, Math.floor(box.scrollTop / ROW_HEIGHT) - ROWS_BEYOND);
    const seen = Math.ceil(box.clientHeight / ROW_HEIGHT) + 2 * ROWS_BEYOND;
    const last = Math.min(count, first + seen);
    const rows = [];
    for (let index = first; index < last; index += 1) rows.push(this.row(index));
    space.replaceChildren(...rows);
    const active = space.querySelector(".active");
    if (active) box.setAttribute("aria-activedescendant", active.id);
    else box.removeAttribute("aria-activedescendant");
  }

  row(index) {
    const { source, columns, box } = this;
    const row = document.createElement("div");
    row.className = `row${index === this.active ? " active" : ""}`;
    row.id = `${box.id}-${index}`;
    row.style.top = `${index * ROW_HEIGHT}px`;
    row.setAttribute("role", "row");
    row.setAttribute("aria-rowindex", String(index + 2));
    row.setAttribute("aria-selected", String(index === this.active));
    const level = source.level(index);
    const expanded = source.expanded(index);
    row.setAttribute("aria-level", String(level + 1));
    if (expanded !== null) row.setAttribute("aria-expanded", String(expanded));
    source.cells(index).forEach((text, at) => {
      const cell = this.part(this.cellClass(columns[at]), "gridcell", row);
      if (at === 0) {
        cell.style.textIndent = `${14 * Math.min(level, STEPS_SHOWN)}px`;
        const deep = level > STEPS_SHOWN ? `[${level}] ` : "";
        const mark = expanded === null ? "" : expanded ? "▾ " : "▸ ";
        cell.textContent = `${mark}${deep}${text}`;
      } else {
        cell.textContent = text;
      }
      if (columns[at].state) cell.classList.add(source.state(index));
      cell.title = text;
    });
    row.addEventListener("click", () => {
      const again = index === this.active;
      this.go(index);
      if (again && expanded !== null) this.toggle(index);
    });
    return row;
  }

  toggle(index) {
    this.onToggle(index);
    this.draw();
  }

  /* Make a row the active one, bring it into sight, and say so. */
  go(index) {
    const count = this.source.count();
    if (!count) return;
    this.active = Math.max(0, Math.min(index, count - 1));
    const { box } = this;
    this.space.style.height = `${count * ROW_HEIGHT}px`; // Else there may be nowhere to scroll to.
    const top = this.active * ROW_HEIGHT;
    const room = box.clientHeight - 2 * ROW_HEIGHT; // Less the head.
    if (top < box.scrollTop) box.scrollTop = top;
    else if (top > box.scrollTop + room) box.scrollTop = top - room;
    this.draw();
    this.onActive(this.active);
  }

  parent(index) {
    const level = this.source.level(index);
    let above = index - 1;
    while (above >= 0 && this.source.level(above) >= level) above -= 1;
    return above;
  }

  key(event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const page = Math.max(1, Math.floor(this.box.clientHeight / ROW_HEIGHT) - 2);
    const { active, source } = this;
    const expanded = source.count() ? source.expanded(active) : null;
    const steps = {
      ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page,
      Home: -active, End: source.count(),
    };
    if (event.key in steps) this.go(active + steps[event.key]);
    else if (event.key === "ArrowRight" && expanded === false) this.toggle(active);
    else if (event.key === "ArrowRight" && expanded) this.go(active + 1);
    else if (event.key === "ArrowLeft" && expanded) this.toggle(active);
    else if (event.key === "ArrowLeft") this.go(Math.max(0, this.parent(active)));
    else if (event.key === "Enter" || event.key === " ") this.onActive(active);
    else return;
    event.preventDefault();
  }
}

/* What both pages write ------------------------------------------------------------------------ */

const byId = (id) => document.getElementById(id);
const number = (value) => Math.round(value).toLocaleString("en");
const nOfM = (shown, total, what) => `${number(shown)} of ${number(total)} ${what}`;

function element(tag, text = "", className = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

function duration(seconds) {
  if (seconds === null || !Number.isFinite(seconds)) return "–";
  if (seconds < 0.001) return `${(seconds * 1e6).toFixed(0)} µs`;
  if (seconds < 1) return `${(seconds * 1000).toFixed(seconds < 0.1 ? 1 : 0)} ms`;
  if (seconds < 120) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 120) return `${minutes} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/* Fill a table: columns as for Rows, rows of texts; a text may also be an element. */
function fillTable(table, columns, rows) {
  const line = (tag, texts) => {
    const made = element("tr");
    texts.forEach((text, at) => {
      const cell = element(tag, "", columns[at].number ? "number" : "");
      cell.append(text);
      made.append(cell);
    });
    return made;
  };
  const head = element("thead");
  head.append(line("th", columns.map((column) => column.title)));
  for (const cell of head.querySelectorAll("th")) cell.scope = "col";
  const body = element("tbody");
  body.append(...rows.map((texts) => line("td", texts)));
  table.replaceChildren(head, body);
}

function meter(share, label) {
  const made = element("meter");
  made.min = 0;
  made.max = 1;
  made.value = Math.max(0, Math.min(1, share));
  made.setAttribute("aria-label", label);
  return made;
}
