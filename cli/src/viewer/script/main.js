// What the passes did; the choice, which is in the address, so that links and the browser's history work; and the search.

const passes = {
  label: "Passes",
  make() {
    const row = ({ name, about, nodes: [before, after], ops, notes }, at) => h("section", { className: "pass" },
      h("h3", {}, `${at + 1}  ${name} `, h("span", { className: "note" }, about)),
      h("p", {}, `${grouped(before)} → ${grouped(after)} nodes`),
      h("div", { className: "changes" }, Object.entries(ops).map(([op, [from, to]]) =>
        h("span", { className: to > from ? "more" : "less" }, `${op} ${from} → ${to}`))),
      h("ul", {}, notes.map((note) => this.note(note))));
    this.element = h("div", { className: "passes", tabIndex: 0 },
      h("p", { className: "remark" }, `From ${plural(traced.count, "traced node")} to ${plural(simplified.count, "node")}, then ${plural(kernels.length, "kernel")}. Ops whose number changed:`),
      data.passes.map(row));
    return this.element;
  },
  /** A rule that fired leads to a node that it found. */
  note(note) {
    const rule = note.split(" × ")[1];
    const found = rule ? simplified.rule.indexOf(rule) : -1;
    return h("li", {}, note.replace("simplify: ", ""), found >= 0
      ? [h("code", { className: "source" }, data.rules[rule]), link("node", found, "a node that it found")] : null);
  },
  refresh() {},
  mark() {},
};

const tabs = { stages, picture, memory, passes };

const state = {
  tab: "stages", scope: "", kind: null, id: null, found: null, measure: "bytes", weights: weigh(measures.bytes),
};

/** Chooses something; the address takes it. */
function select(kind, id) {
  location.hash = `${kind}=${id}${state.tab === "stages" ? "" : `&tab=${state.tab}`}`;
}

/** Does what the address says. */
function follow() {
  const wanted = new URLSearchParams(location.hash.slice(1));
  const tab = wanted.get("tab");
  if (tab in tabs && tab !== state.tab) showTab(tab);
  if (wanted.has("module") && modules.has(wanted.get("module"))) showModule(wanted.get("module"));
  const kind = kinds.find((kind) => wanted.has(kind));
  const id = kind === undefined ? NaN : Number(wanted.get(kind));
  const isThere = Number.isInteger(id) && id >= 0 && id < countOf[kind];
  state.kind = isThere ? kind : null;
  state.id = isThere ? id : null;
  state.found = isThere ? journey(kind, id) : null;
  if (isThere && state.scope && !isShown(kind, id, state.scope)) showModule("");
  const panel = document.getElementById("detail");
  panel.replaceChildren(...(isThere ? detail(kind, id, state.found).filter(Boolean) : welcome()));
  panel.scrollTop = 0;
  tabs[state.tab].mark(true);
}

function welcome() {
  const heaviest = (kind) => range(countOf[kind]).sort((a, b) => state.weights[kind][b] - state.weights[kind][a]).slice(0, 8);
  const rates = `Least times: ${(data.rates[0] / 1e9).toFixed(0)} GB/s and ${(data.rates[1] / 1e9).toFixed(0)} GFLOP/s in products. A kernel's share goes in equal parts to its ops.`;
  return [
    h("div", { className: "heading" }, h("h2", {}, "Choose anything"),
      h("p", { className: "note" }, "A line of yours, an op, a kernel or a buffer: everything that belongs to it is marked in all columns, and its journey from your line to machine code is told here.")),
    part("Heaviest lines", "line", heaviest("line"), null, (id) => h("span", { className: "note" }, ` ${measures[state.measure].show(state.weights.line[id])}  ${lines[id].text}`)),
    part("Heaviest kernels", "kernel", heaviest("kernel"), null, kernelNote),
    h("section", {}, h("h3", {}, "Memory"), h("dl", {}, data.memory.map(([name, bytes]) => [h("dt", {}, name), h("dd", {}, showBytes(bytes))]))),
    h("section", {}, h("h3", {}, "Keys"), h("dl", {}, [["/", "search"], ["1 – 4", "views"], ["↑ ↓ Enter", "in a column or the modules"], ["Esc", "nothing chosen"], ["Alt ←", "what was chosen before"]]
      .map(([key, what]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)]))),
    h("p", { className: "note" }, rates),
  ];
}

function showTab(name) {
  state.tab = name;
  const view = document.getElementById("view");
  const tab = tabs[name];
  view.replaceChildren(tab.element || tab.make());
  for (const button of document.querySelectorAll("#tabs button")) {
    button.setAttribute("aria-selected", String(button.dataset.tab === name));
  }
  tab.refresh();
  tab.mark(true);
}

function openTab(name) {
  const chosen = state.kind === null ? "" : `${state.kind}=${state.id}`;
  showTab(name);
  history.replaceState(null, "", `#${[chosen, name === "stages" ? "" : `tab=${name}`].filter(Boolean).join("&")}`);
}

const search = {
  active: 0,
  hits: [],
  /** At most so many of each kind are listed. */
  find(words) {
    const parts = words.toLowerCase().split(/\s+/).filter(Boolean);
    if (!parts.length) return [];
    const about = {
      line: (id) => `${lines[id].name} ${lines[id].text}`,
      traced: (id) => `${nameOf("traced", id)} ${graphOp(traced, id)} ${scopeOf(traced, id)} ${text(traced.ty[id])}`,
      node: (id) => `${nameOf("node", id)} ${graphOp(simplified, id)} ${scopeOf(simplified, id)} ${text(simplified.ty[id])} ${simplified.rule[id] || ""}`,
      kernel: (id) => kernels[id].name,
      buffer: (id) => buffers[id].name,
    };
    return ["line", "kernel", "traced", "node", "buffer"].flatMap((kind) => {
      const hits = [];
      for (let id = 0; id < countOf[kind] && hits.length < 12; id++) {
        const hay = about[kind](id).toLowerCase();
        if (parts.every((word) => hay.includes(word))) hits.push({ kind, id });
      }
      return hits;
    });
  },
  draw() {
    const list = document.getElementById("found");
    list.hidden = !this.hits.length;
    document.getElementById("search").setAttribute("aria-expanded", String(!list.hidden));
    list.replaceChildren(...this.hits.map(({ kind, id }, at) => h("li", {
      role: "option", className: at === this.active ? "active" : "", "aria-selected": String(at === this.active), "data-at": String(at),
    }, h("span", { className: `tag ${kind}` }, kindNames[kind]), nameOf(kind, id),
    h("span", { className: "note" }, kind === "traced" ? ` ${scopeOf(traced, id)}` : kind === "node" ? ` ${scopeOf(simplified, id)}` : kind === "line" ? ` ${lines[id].text}` : ""))));
    const row = list.children[this.active];
    if (row) row.scrollIntoView({ block: "nearest" });
  },
  take(at) {
    const hit = this.hits[at];
    document.getElementById("search").blur();
    if (hit) select(hit.kind, hit.id);
  },
  listen() {
    const input = document.getElementById("search");
    input.addEventListener("input", () => { this.hits = this.find(input.value); this.active = 0; this.draw(); });
    input.addEventListener("blur", () => { this.hits = []; this.draw(); });
    input.addEventListener("keydown", (event) => {
      if (event.key === "ArrowDown") this.active = Math.min(this.hits.length - 1, this.active + 1);
      else if (event.key === "ArrowUp") this.active = Math.max(0, this.active - 1);
      else if (event.key === "Enter") { this.take(this.active); return; }
      else if (event.key === "Escape") { input.value = ""; input.blur(); }
      else return;
      event.preventDefault();
      event.stopPropagation();
      this.draw();
    });
    document.getElementById("found").addEventListener("mousedown", (event) => {
      const row = event.target.closest("li");
      event.preventDefault(); // The search keeps the focus: without it, the list would close before its row is taken.
      if (row) this.take(Number(row.dataset.at));
    });
  },
};

function pressed(event) {
  if (event.target.matches("input, select") || event.ctrlKey || event.metaKey || event.altKey) return;
  const names = Object.keys(tabs);
  if (event.key === "/") document.getElementById("search").focus();
  else if (event.key === "Escape") location.hash = state.tab === "stages" ? "" : `tab=${state.tab}`;
  else if (/^[1-9]$/.test(event.key) && names[event.key - 1]) openTab(names[event.key - 1]);
  else return;
  event.preventDefault();
}

function start() {
  document.getElementById("title").textContent = data.title;
  const facts = [data.how, `${grouped(traced.count)} → ${grouped(simplified.count)} nodes`, plural(kernels.length, "kernel"), `${showBytes(data.arena)} arena`];
  document.getElementById("facts").replaceChildren(...facts.map((fact) => h("span", {}, fact)));
  document.getElementById("tabs").append(...Object.entries(tabs).map(([name, { label }], at) => {
    const button = h("button", { type: "button", role: "tab", "data-tab": name, title: `key ${at + 1}` }, label);
    button.addEventListener("click", () => openTab(name));
    return button;
  }));
  const measure = document.getElementById("measure");
  measure.append(...Object.entries(measures).map(([name, { label }]) => h("option", { value: name }, label)));
  const weighAll = () => {
    state.measure = measure.value;
    state.weights = weigh(measures[state.measure]);
    weighModules();
    tree.draw();
    tabs[state.tab].refresh();
    if (state.kind === null) follow();
  };
  measure.addEventListener("change", weighAll);
  if (data.timed) measure.value = "seconds";
  const dark = matchMedia("(prefers-color-scheme: dark)");
  document.getElementById("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const isDark = root.dataset.theme ? root.dataset.theme === "dark" : dark.matches;
    root.dataset.theme = isDark ? "light" : "dark";
    tabs[state.tab].refresh();
  });
  tree.listen();
  search.listen();
  addEventListener("keydown", pressed);
  addEventListener("hashchange", follow);
  // Links choose by their address; the view stays.
  addEventListener("click", (event) => {
    const anchor = event.target.closest && event.target.closest("a[href^='#']");
    if (!anchor || event.ctrlKey || event.metaKey) return;
    const [kind, id] = anchor.getAttribute("href").slice(1).split("=");
    event.preventDefault();
    select(kind, Number(id));
  });
  showTab("stages");
  weighAll();
  follow();
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
}

start();
