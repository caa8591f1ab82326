// The modules: as a tree beside everything, and as a picture of what flows between them.

/** Modules by path, each with its parts in the order in which forward reaches them. */
const modules = (() => {
  const root = { path: "", name: "program", parts: [], parent: null, own: 0, first: 0 };
  const all = new Map([["", root]]);
  const of = (path) => {
    if (all.has(path)) return all.get(path);
    const at = path.lastIndexOf(".");
    const parent = of(at < 0 ? "" : path.slice(0, at));
    const module = { path, name: path.slice(at + 1), parts: [], parent, own: 0, first: Infinity };
    all.set(path, module);
    parent.parts.push(module);
    return module;
  };
  for (let node = 0; node < traced.count; node++) {
    const module = of(scopeOf(traced, node));
    module.own += 1;
    if (graphOp(traced, node) === "input") continue;
    for (let up = module; up; up = up.parent) up.first = Math.min(up.first, node);
  }
  const sort = (module) => {
    module.parts.sort((a, b) => a.first - b.first);
    module.parts.forEach(sort);
    module.nodes = module.own + module.parts.reduce((sum, part) => sum + part.nodes, 0);
  };
  sort(root);
  return all;
})();

/** A measure of each module: the sum over the nodes that were traced in it. */
function weighModules() {
  for (const module of modules.values()) module.weight = 0;
  for (let node = 0; node < traced.count; node++) {
    const weight = state.weights.traced[node];
    for (let up = modules.get(scopeOf(traced, node)); up; up = up.parent) up.weight += weight;
  }
}

const tree = {
  /** At first: everything down to what is repeated. */
  open: new Set(["", ...[...modules.values()].filter(({ name }) => /^\d+$/.test(name)).map(({ parent }) => parent.path)
    .filter((path) => !/\d/.test(path))]),
  active: "",
  rows: [],
  draw() {
    const rows = [];
    const add = (module, depth) => {
      rows.push({ module, depth });
      if (this.open.has(module.path)) module.parts.forEach((part) => add(part, depth + 1));
    };
    add(modules.get(""), 0);
    this.rows = rows;
    const most = modules.get("").weight || 1;
    document.getElementById("tree").replaceChildren(...rows.map(({ module, depth }) => {
      const fold = h("span", { className: "fold" }, module.parts.length ? (this.open.has(module.path) ? "▾" : "▸") : "");
      const row = h("li", {
        className: `${module.path === state.scope ? "chosen" : ""} ${module.path === this.active ? "active" : ""}`,
        role: "treeitem", "data-path": module.path, style: `padding-left:${4 + depth * 12}px`,
        "aria-expanded": String(this.open.has(module.path)), "aria-selected": String(module.path === state.scope),
      }, h("i", { className: "bar", style: `width:${(100 * Math.sqrt(module.weight / most)).toFixed(1)}%` }), fold,
      h("span", { className: "op" }, module.name),
      h("span", { className: "end" }, measures[state.measure].show(module.weight)));
      row.title = `${module.path || "everything"}: ${plural(module.nodes, "traced node")}`;
      return row;
    }));
    const whole = document.getElementById("whole");
    whole.hidden = state.scope === "";
  },
  toggle(path) {
    if (!this.open.delete(path)) this.open.add(path);
    this.draw();
    if (state.tab === "picture") picture.refresh();
  },
  listen() {
    const element = document.getElementById("tree");
    element.addEventListener("click", (event) => {
      const row = event.target.closest("li");
      if (!row) return;
      this.active = row.dataset.path;
      if (event.target.closest(".fold") && modules.get(this.active).parts.length) this.toggle(this.active);
      else showModule(state.scope === this.active ? "" : this.active);
    });
    element.addEventListener("keydown", (event) => this.pressed(event));
    document.getElementById("whole").addEventListener("click", () => showModule(""));
  },
  pressed(event) {
    const at = Math.max(0, this.rows.findIndex(({ module }) => module.path === this.active));
    const module = this.rows[at].module;
    const isOpen = this.open.has(module.path);
    const move = (step) => { this.active = this.rows[Math.max(0, Math.min(this.rows.length - 1, at + step))].module.path; };
    if (event.key === "ArrowDown") move(1);
    else if (event.key === "ArrowUp") move(-1);
    else if (event.key === "ArrowRight" && module.parts.length) { if (isOpen) move(1); else this.open.add(module.path); }
    else if (event.key === "ArrowLeft") { if (isOpen) this.open.delete(module.path); else if (module.parent) this.active = module.parent.path; }
    else if (event.key === "Enter" || event.key === " ") showModule(state.scope === module.path ? "" : module.path);
    else return;
    event.preventDefault();
    this.draw();
    const row = document.querySelector("#tree .active");
    if (row) row.scrollIntoView({ block: "nearest" });
  },
};

/** Shows one module alone, or all of them. */
function showModule(path) {
  state.scope = path;
  for (let up = modules.get(path).parent; up; up = up.parent) tree.open.add(up.path);
  tree.active = path;
  tree.draw();
  tabs[state.tab].refresh();
}

// The picture: a row for each module that is not opened, and arcs for the tensors between them.
const picture = {
  label: "Picture",
  make() {
    this.element = h("div", { className: "picture", tabIndex: 0 });
    this.element.addEventListener("click", (event) => {
      const row = event.target.closest("[data-path]");
      if (!row) return;
      if (modules.get(row.dataset.path).parts.length) tree.toggle(row.dataset.path);
      else showModule(state.scope === row.dataset.path ? "" : row.dataset.path);
    });
    return this.element;
  },
  mark() { this.refresh(); },
  refresh() {
    const rows = [];
    const rowOf = new Map();
    const add = (module, depth) => {
      const isOpen = tree.open.has(module.path) && module.parts.length > 0;
      rowOf.set(module.path, rows.length);
      rows.push({ module, depth, isOpen });
      if (isOpen) module.parts.forEach((part) => add(part, depth + 1));
      else cover(module, rows.length - 1);
    };
    const cover = (module, row) => {
      rowOf.set(module.path, row);
      module.parts.forEach((part) => cover(part, row));
    };
    add(modules.get(state.scope), 0);
    this.draw(rows, this.edges(rows, rowOf));
  },
  /** Bytes of the forward tensors between rows. */
  edges(rows, rowOf) {
    const edges = new Map();
    for (let node = 0; node < traced.count; node++) {
      if (traced.phase[node] !== 0) continue;
      const to = rowOf.get(scopeOf(traced, node));
      if (to === undefined) continue;
      for (const operand of unique(traced.operands[node])) {
        const from = rowOf.get(scopeOf(traced, operand));
        if (from === undefined || from === to) continue;
        const key = from * rows.length + to;
        const edge = edges.get(key) || { from, to, tensors: new Set() };
        edge.tensors.add(operand);
        edges.set(key, edge);
      }
    }
    return [...edges.values()];
  },
  draw(rows, edges) {
    const [step, box, top] = [30, 420, 12];
    const chosen = state.found ? new Set(state.found.traced.map((node) => scopeOf(traced, node))) : new Set();
    const reach = edges.reduce((most, { from, to }) => Math.max(most, Math.abs(to - from)), 1);
    const spread = Math.min(18, 360 / reach);
    const width = box + 60 + reach * spread;
    const most = modules.get(state.scope).weight || 1;
    const svg = s("svg", { width, height: rows.length * step + 2 * top, class: "modules" });
    const y = (row) => top + row * step + step / 2;
    for (const { from, to, tensors } of edges) {
      const bytes = [...tensors].reduce((sum, node) => sum + traced.bytes[node], 0);
      const out = box + 10 + Math.abs(to - from) * spread;
      const [a, b] = [y(from) + 4, y(to) - 4];
      const shapes = unique([...tensors].map((node) => traced.ty[node])).slice(0, 6).map(text).join("\n");
      const hint = `${rows[from].module.path || "program"} → ${rows[to].module.path || "program"}\n${plural(tensors.size, "tensor")}, ${showBytes(bytes)}\n${shapes}`;
      svg.append(s("path", {
        d: `M${box} ${a}C${out} ${a} ${out} ${b} ${box + 3} ${b}`, class: "flow",
        "stroke-width": (0.6 + Math.log2(1 + bytes / 4096) / 4).toFixed(2),
      }, s("title", {}, hint)), s("path", { d: `M${box + 7} ${b - 4}L${box} ${b}L${box + 7} ${b + 4}Z`, class: "head" }));
    }
    rows.forEach(({ module, depth, isOpen }, row) => {
      const x = depth * 16;
      const weight = isOpen ? module.weight - module.parts.reduce((sum, part) => sum + part.weight, 0) : module.weight;
      const share = Math.sqrt(Math.max(0, weight) / most);
      const fold = module.parts.length ? (isOpen ? "▾ " : "▸ ") : "";
      const count = isOpen ? module.own : module.nodes;
      const mark = [...chosen].some((path) => (isOpen ? path === module.path : inScope(path, module.path) && module.path !== ""));
      svg.append(s("g", { "data-path": module.path, class: mark ? "marked" : "" },
        s("title", {}, `${module.path || "program"}\n${plural(count, "traced node")}${isOpen ? " of its own" : ""}\n${measures[state.measure].label}: ${measures[state.measure].show(weight)}`),
        s("rect", { x, y: y(row) - 12, width: box - x, height: 24, rx: 5, class: "box" }),
        s("rect", { x, y: y(row) - 12, width: Math.max(0, (box - x) * share), height: 24, rx: 5, class: "heat" }),
        s("text", { x: x + 8, y: y(row) + 4 }, `${fold}${module.name}`),
        s("text", { x: box - 8, y: y(row) + 4, class: "figure" }, `${grouped(count)} nodes  ${measures[state.measure].show(weight)}`)));
    });
    const remark = h("p", { className: "remark" }, "Modules in the order in which forward reaches them, and the tensors that flow between them; gradients count to the module that they are of. A click opens a module.");
    this.element.replaceChildren(remark, svg);
  },
};
