// The stages side by side.

/** The bar behind a row: the root of its share of the largest, so that small ones can be seen. */
function bar(kind, id) {
  const share = state.weights.most[kind] ? state.weights[kind][id] / state.weights.most[kind] : 0;
  return h("i", { className: "bar", style: `width:${(100 * Math.sqrt(share)).toFixed(1)}%` });
}

function nodeRow(graph, kind) {
  return (row, id) => {
    const rule = graph.rule[id];
    row.append(
      bar(kind, id),
      h("b", {}, `%${id}`),
      h("span", { className: "op" }, opTitle(graph, id)),
      rule ? h("span", { className: "rule", title: `found by the rule ${rule}` }, "◆") : "",
      h("span", { className: "end" }, text(graph.ty[id])),
    );
    row.title = `${scopeOf(graph, id)}  ${graphOp(graph, id)}${text(graph.attributes[id])} : ${text(graph.ty[id])}`;
  };
}

const fills = {
  line(row, id) {
    const { file, line, text: source } = lines[id];
    const name = file.split("/").pop();
    row.append(bar("line", id), h("b", {}, `${name}:${line}`), h("span", { className: "op" }, source));
    row.title = `${file}:${line}\n${source}`;
  },
  traced: nodeRow(traced, "traced"),
  node: nodeRow(simplified, "node"),
  kernel(row, id) {
    const kernel = kernels[id];
    const measure = measures[state.measure];
    row.append(
      bar("kernel", id),
      h("b", {}, String(id)),
      h("span", { className: `form ${kernel.form}`, title: kernel.form }, kernel.form[0].toUpperCase()),
      h("span", { className: "op" }, kernel.name),
      h("span", { className: "end" }, measure.show(measure.of(kernel))),
    );
    row.title = `${kernel.name}\n${kernel.form}, ${plural(kernel.covers.length, "op")}`;
  },
  buffer(row, id) {
    const buffer = buffers[id];
    const place = buffer.offset !== null ? `+${showBytes(buffer.offset)}` : buffer.role;
    row.append(
      bar("buffer", id),
      h("span", { className: "op" }, buffer.name),
      h("span", { className: "end" }, `${showBytes(buffer.bytes)} ${buffer.alias !== null ? "in place" : place}`),
    );
    row.title = `${buffer.name} : ${buffer.ty}`;
  },
};

/** The columns from left to right: label, kind, and which numbers belong there. */
const columns = [
  ["Your lines", "line", range(lines.length).sort(byPlace)],
  ["Traced: forward", "traced", range(traced.count).filter((id) => traced.phase[id] === 0)],
  ["Gradients, updates", "traced", range(traced.count).filter((id) => traced.phase[id] !== 0)],
  ["Simplified", "node", range(simplified.count)],
  ["Kernels", "kernel", range(kernels.length)],
  ["Memory", "buffer", range(buffers.length).sort(byLife)],
];

function range(count) {
  return Array.from({ length: count }, (_, number) => number);
}

/** What lies in the arena, by its first kernel; then what stays from run to run. */
function byLife(a, b) {
  const start = ({ offset, life }) => (offset === null || !life ? Infinity : life[0]);
  const [x, y] = [start(buffers[a]), start(buffers[b])];
  return x === y ? a - b : x - y;
}

function byPlace(a, b) {
  return lines[a].file < lines[b].file ? -1 : lines[a].file > lines[b].file ? 1 : lines[a].line - lines[b].line;
}

/** Whether something belongs to the module that is shown. */
function isShown(kind, id, path) {
  switch (kind) {
    case "line": return tracedOfLine[id].some((node) => inScope(scopeOf(traced, node), path));
    case "traced": return inScope(scopeOf(traced, id), path);
    case "node": return inScope(scopeOf(simplified, id), path);
    case "kernel":
      return inScope(kernelScope(id), path) ||
        kernels[id].covers.some((node) => inScope(scopeOf(simplified, node), path));
    case "buffer": return buffers[id].node !== null && inScope(scopeOf(simplified, buffers[id].node), path);
  }
}

const stages = {
  label: "Stages",
  lists: [],
  make() {
    this.lists = columns.map(([label, kind], at) => {
      const list = new List(label, kind, fills[kind], (id) => select(kind, id));
      if (at === 2) list.element.dataset.kind = "backward";
      return list;
    });
    this.element = h("div", { className: "stages" }, this.lists.map((list) => list.element));
    return this.element;
  },
  /** Everything anew: another module or another measure. */
  refresh() {
    this.lists.forEach((list, at) => {
      const ids = columns[at][2];
      list.show(state.scope ? ids.filter((id) => isShown(list.kind, id, state.scope)) : ids);
    });
    this.mark(false);
  },
  /** Marks what belongs to the choice. */
  mark(follow) {
    const found = state.found;
    for (const list of this.lists) {
      const marks = new Map();
      if (found) {
        if (list.kind === "traced") found.also.forEach((id) => marks.set(id, "also"));
        found[list.kind].forEach((id) => marks.set(id, "linked"));
        if (list.kind === state.kind) marks.set(state.id, "linked chosen");
      }
      list.mark(marks, follow);
    }
  },
};
