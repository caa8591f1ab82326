// Elements, and lists of which only what is on the screen exists.

/** An element with properties, attributes (names with a dash, and `role`), and children. */
function h(tag, properties, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties || {})) {
    if (name.includes("-") || name === "role" || name === "for") element.setAttribute(name, value);
    else if (name === "style") element.style.cssText = value;
    else element[name] = value;
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

/** An SVG element. */
function s(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

const ROW = 22;

/** A column of rows of one kind. `fill(row, id)` writes a row; `choose(id)` is called when the user takes one. */
class List {
  constructor(label, kind, fill, choose) {
    this.kind = kind;
    this.fill = fill;
    this.choose = choose;
    this.rows = [];
    this.active = 0;
    this.count = h("span", { className: "count" });
    this.rail = h("div", { className: "rail" });
    this.body = h("div", { className: "rows", tabIndex: 0, role: "listbox", "aria-label": label }, this.rail);
    this.element = h("div", { className: "column", "data-kind": kind }, h("h2", {}, label, " ", this.count), this.body);
    this.body.addEventListener("scroll", () => this.draw(), { passive: true });
    this.body.addEventListener("click", (event) => this.clicked(event));
    this.body.addEventListener("keydown", (event) => this.pressed(event));
    new ResizeObserver(() => this.draw()).observe(this.body);
  }

  /** Shows these numbers, in this order. */
  show(ids) {
    this.rows = ids;
    this.active = 0;
    this.count.textContent = grouped(ids.length);
    this.rail.style.height = `${ids.length * ROW}px`;
    this.draw();
  }

  /** Marks rows: a map from number to class. Scrolls to the first one if none is in sight. */
  mark(marks, follow) {
    this.marks = marks;
    if (follow) {
      const first = this.rows.findIndex((id) => marks.has(id));
      if (first >= 0) {
        this.active = first;
        const { scrollTop, clientHeight } = this.body;
        const inSight = this.rows
          .slice(Math.ceil(scrollTop / ROW), Math.floor((scrollTop + clientHeight) / ROW))
          .some((id) => marks.has(id));
        if (!inSight) this.body.scrollTop = Math.max(0, first * ROW - clientHeight / 3);
      }
    }
    this.draw();
  }

  draw() {
    const { scrollTop, clientHeight } = this.body;
    const first = Math.max(0, Math.floor(scrollTop / ROW) - 4);
    const end = Math.min(this.rows.length, Math.ceil((scrollTop + clientHeight) / ROW) + 4);
    const rows = [];
    for (let at = first; at < end; at++) {
      const id = this.rows[at];
      const mark = (this.marks && this.marks.get(id)) || "";
      const row = h("div", {
        className: `row ${mark} ${at === this.active ? "active" : ""}`, role: "option", style: `top:${at * ROW}px`,
        id: `${this.kind}-${this.element.dataset.kind === "backward" ? "b" : ""}${id}`, "data-id": String(id),
        "aria-selected": String(mark.includes("chosen")),
      });
      this.fill(row, id);
      rows.push(row);
    }
    this.rail.replaceChildren(...rows);
  }

  clicked(event) {
    const row = event.target.closest(".row");
    if (!row) return;
    this.active = this.rows.indexOf(Number(row.dataset.id));
    this.choose(Number(row.dataset.id));
  }

  pressed(event) {
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20, Home: -Infinity, End: Infinity };
    if (event.key === "Enter" || event.key === " ") {
      if (this.rows.length) this.choose(this.rows[this.active]);
    } else if (event.key in steps) {
      this.active = Math.max(0, Math.min(this.rows.length - 1, this.active + steps[event.key]));
      const top = this.active * ROW;
      if (top < this.body.scrollTop) this.body.scrollTop = top;
      if (top + ROW > this.body.scrollTop + this.body.clientHeight) {
        this.body.scrollTop = top + ROW - this.body.clientHeight;
      }
      this.draw();
    } else {
      return;
    }
    event.preventDefault();
  }
}
