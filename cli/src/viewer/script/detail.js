// The journey of what is chosen, from the user's line to code.

/** At most so many entries of a part are shown at first. */
const SHOWN = 12;

/** A part of the journey: a heading, a remark, and links to what belongs there. */
function part(label, kind, ids, remark, describe) {
  if (!ids.length && !remark) return null;
  const list = h("ul", {}, ids.slice(0, SHOWN).map((id) => entry(kind, id, describe)));
  if (ids.length > SHOWN) {
    const more = h("button", { type: "button", className: "more" }, `${grouped(ids.length - SHOWN)} more`);
    more.addEventListener("click", () => {
      list.replaceChildren(...ids.slice(0, 400).map((id) => entry(kind, id, describe)));
      more.remove();
    });
    list.append(h("li", {}, more));
  }
  return h("section", { "data-part": label }, h("h3", {}, label, " ", h("span", { className: "count" }, ids.length || "")),
    remark ? h("p", { className: "remark" }, remark) : null, list);
}

function entry(kind, id, describe) {
  return h("li", {}, link(kind, id), describe ? describe(id) : null);
}

/** A link that chooses. */
function link(kind, id, label) {
  return h("a", { href: `#${kind}=${id}`, className: `to ${kind}` }, label || nameOf(kind, id));
}

function nodeNote(graph) {
  return (id) => {
    const output = graph.outputOf.get(id);
    return h("span", { className: "note" },
      ` ${text(graph.ty[id])}${scopeOf(graph, id) ? ` in ${scopeOf(graph, id)}` : ""}`,
      output ? ` — ${output.updates ? "new value of" : "result"} ${output.name}` : "");
  };
}

function detail(kind, id, found) {
  const forward = found.traced.filter((node) => traced.phase[node] === 0);
  const backward = found.traced.filter((node) => traced.phase[node] !== 0);
  const [also, same] = [found.also.filter((n) => !found.traced.includes(n)), nodeNote(traced)];
  const derived = also.filter((node) => traced.phase[node] === 1);
  const origins = also.filter((node) => traced.phase[node] === 0);
  return [
    heading(kind, id),
    kind === "kernel" ? kernelFigures(id) : null,
    neighbourhood(kind, id),
    kind === "line" ? null : part("Your line", "line", found.line, null, (line) =>
      h("code", { className: "source" }, lines[line].text)),
    kind === "traced" ? null : part("Traced, forward", "traced", forward, null, same),
    kind === "line" ? part("Gradients and updates", "traced", backward, null, same)
      : part("Gradients", "traced", derived, derived.length ? "of this line in this module:" : null, same),
    part("Derived from", "traced", origins, null, same),
    kind !== "line" && kind !== "traced" ? part("Traced, backward", "traced", backward, null, same) : null,
    rewrites(kind, id, found),
    kind === "kernel" ? null : part("Kernels", "kernel", found.kernel, kernelRemark(kind, found), kernelNote),
    refused(kind, found),
    part("Memory", "buffer", found.buffer, null, bufferNote),
    code(kind, found),
  ];
}

function heading(kind, id) {
  const graph = kind === "traced" ? traced : kind === "node" ? simplified : null;
  const about = graph
    ? `${graphOp(graph, id)}${text(graph.attributes[id])} : ${text(graph.ty[id])}`
    : kind === "line" ? lines[id].text : kind === "buffer" ? buffers[id].ty : kernels[id].form;
  const scope = graph ? scopeOf(graph, id) : kind === "kernel" ? kernelScope(id) : "";
  return h("div", { className: "heading" },
    h("span", { className: `tag ${kind}` }, graph === traced ? phaseNames[traced.phase[id]] : kindNames[kind]),
    h("h2", { id: "chosen" }, nameOf(kind, id)),
    h("code", { className: "source" }, about),
    scope ? h("p", { className: "note" }, "in ", moduleLink(scope)) : null);
}

function moduleLink(scope) {
  const button = h("button", { type: "button", className: "module" }, scope);
  button.addEventListener("click", () => showModule(scope));
  return button;
}

function kernelFigures(id) {
  const kernel = kernels[id];
  const figures = [
    ["moves at least", showBytes(kernel.bytes)],
    ["operations", grouped(kernel.operations)],
    ["least time", `${showSeconds(kernel.floor[0])} (${kernel.floor[1]})`],
  ];
  if (kernel.seconds !== null) {
    figures.push(["measured", `${showSeconds(kernel.seconds)}, ${(kernel.seconds / kernel.floor[0]).toFixed(1)} × the least`]);
  }
  return h("dl", {}, figures.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

/** What simplification made of it: which rules, and what was replaced. */
function rewrites(kind, id, found) {
  if (kind === "traced" && !images[id].length) {
    const remark = found.node.length
      ? "Rewritten away: nothing computes this value any more. What needed it became:"
      : "Nobody needs it: dead code.";
    return part("Simplified", "node", found.node, remark, ruleNote);
  }
  if (kind === "node") return replaced(id);
  const gone = kind === "line" ? found.traced.filter((node) => !images[node].length).length : 0;
  return part(kind === "kernel" ? "Fused ops" : "Simplified", "node", found.node, gone ? `${plural(gone, "node")} of them rewritten away` : null, ruleNote);
}

function ruleNote(id) {
  const rule = simplified.rule[id];
  return h("span", { className: "note" }, ` ${text(simplified.ty[id])}${simplified.helps[id] ? ", on the way" : ""}`,
    rule ? h("span", { className: "rule", title: data.rules[rule] || "" }, ` ◆ ${rule}`) : "");
}

function replaced(id) {
  const rule = simplified.rule[id];
  if (!rule) return null;
  return h("section", { "data-part": "Rewrite" }, h("h3", {}, "Rewrite"),
    h("p", {}, h("span", { className: "rule" }, `◆ ${rule}`), " found this way to compute it:"),
    h("code", { className: "source" }, data.rules[rule]));
}

function kernelRemark(kind, found) {
  if (!found.node.length || kind === "buffer") return null;
  const own = found.node.some((node) => kernelsOf[node].length);
  const inputs = found.node.every((node) => graphOp(simplified, node) === "input");
  if (inputs) return null;
  if (!own) return "No kernel of its own: computed wherever it is read.";
  if (kind === "node" && found.kernel.length > 1) return "Computed again instead of kept.";
  return null;
}

function kernelNote(id) {
  const measure = measures[state.measure];
  const { form, covers } = kernels[id];
  return h("span", { className: "note" }, ` ${form}, ${plural(covers.length, "op")}, ${measure.show(measure.of(kernels[id]))}`);
}

function bufferNote(id) {
  const { bytes, offset, alias, life, role } = buffers[id];
  const place = alias !== null ? `in place of ${buffers[alias].name}` : offset !== null ? `arena + ${grouped(offset)}` : role;
  return h("span", { className: "note" }, ` ${showBytes(bytes)}, ${place}${life ? `, kernels ${life[0]}–${Math.min(life[1], kernels.length - 1)}` : ""}`);
}

/** The edges that stayed memory accesses. */
function refused(kind, found) {
  const nodes = new Set(found.node);
  const ids = kind === "kernel"
    ? refusalsOf[found.kernel[0]]
    : unique(found.kernel.flatMap((kernel) => refusalsOf[kernel])).filter(
        (id) => nodes.has(refusals[id].from) || nodes.has(refusals[id].to));
  if (!ids.length) return null;
  // What is computed again was considered once for each copy.
  const same = ({ from, to, reason }) => `${from} ${to} ${reason}`;
  const known = new Set();
  const different = ids.filter((id) => known.size < known.add(same(refusals[id])).size);
  const row = (id) => {
    const { from, to, reason, bytes } = refusals[id];
    return h("li", {}, from === null ? "?" : link("node", from), " → ", to === null ? "?" : link("node", to),
      h("span", { className: "refusal" }, ` ${reason}`), h("span", { className: "note" }, `, ${showBytes(bytes)}`));
  };
  return h("section", { "data-part": "Not fused" }, h("h3", {}, "Not fused ", h("span", { className: "count" }, different.length)),
    h("ul", {}, different.slice(0, 3 * SHOWN).map(row)),
    different.length > 3 * SHOWN ? h("p", { className: "note" }, `and ${grouped(different.length - 3 * SHOWN)} more`) : null);
}

/** The text of the first kernel, and its code, each opened on demand. */
function code(kind, found) {
  if (!found.kernel.length) return null;
  const number = kind === "buffer" && writersOf[found.buffer[0]].length ? writersOf[found.buffer[0]][0] : found.kernel[0];
  const kernel = kernels[number];
  const fold = (label, texts, open) => {
    const body = h("pre", { tabIndex: 0 });
    const fold = h("details", { open }, h("summary", {}, label), body);
    const fill = () => { if (!body.textContent) body.textContent = texts.map((at) => data.texts[at]).join("\n"); };
    if (open) fill();
    fold.addEventListener("toggle", () => { if (fold.open) fill(); });
    return fold;
  };
  return h("section", { "data-part": "Code" }, h("h3", {}, "Code of ", link("kernel", number)),
    fold("Region", [kernel.text], kind === "kernel"),
    kernel.cuda.length ? fold("CUDA C++", kernel.cuda, false) : null,
    kernel.assembly !== null ? fold("Assembly", [kernel.assembly], false) : null);
}

/** The chosen node or kernel between what it reads and what reads it. */
function neighbourhood(kind, id) {
  if (kind === "line" || kind === "buffer") return null;
  const graph = kind === "traced" ? traced : simplified;
  const near = kind === "kernel"
    ? [kernelEdges(kernels[id].reads, writersOf, id), kernelEdges(kernels[id].writes, readersOf, id)]
    : [graph.operands[id], graph.users[id]].map((ids) => unique(ids).map((other) => ({ kind, id: other, label: text(graph.ty[graph.operands[id].includes(other) ? other : id]) })));
  const MOST = 7;
  const rows = Math.max(1, ...near.map((side) => Math.min(side.length, MOST + 1)));
  const [width, step, box] = [400, 26, 128];
  const height = rows * step + 8;
  const picture = s("svg", { viewBox: `0 0 ${width} ${height}`, class: "near", role: "img", "aria-label": "neighbours" });
  const label = (x, y, name, href, style, hint) => {
    const shown = name.length > 19 ? `${name.slice(0, 7)}…${name.slice(-11)}` : name;
    const shape = s("g", { class: style }, s("title", {}, hint || name), s("rect", { x, y: y - 10, width: box, height: 20, rx: 4 }),
      s("text", { x: x + 6, y: y + 4 }, shown));
    return href ? s("a", { href }, shape) : shape;
  };
  const middle = height / 2;
  near.forEach((side, at) => {
    const shown = side.slice(0, MOST);
    if (side.length > MOST) shown.push({ more: side.length - MOST });
    shown.forEach((edge, row) => {
      const y = (height / 2) + (row - (shown.length - 1) / 2) * step;
      const x = at === 0 ? 0 : width - box;
      const ends = at === 0 ? [box, y, (width - box) / 2, middle] : [(width + box) / 2, middle, width - box, y];
      const [x1, y1, x2, y2] = ends;
      const bend = (x1 + x2) / 2;
      picture.append(s("path", { d: `M${x1} ${y1}C${bend} ${y1} ${bend} ${y2} ${x2} ${y2}`, class: edge.reason ? "refused" : "" },
        s("title", {}, [edge.label, edge.reason].filter(Boolean).join(": "))));
      const name = edge.more ? `${edge.more} more` : nameOf(edge.kind, edge.id);
      picture.append(label(x, y, name, edge.more ? null : `#${edge.kind}=${edge.id}`, edge.kind || "",
        [name, edge.label, edge.reason].filter(Boolean).join("\n")));
    });
  });
  picture.append(label((width - box) / 2, middle, nameOf(kind, id), null, "self", null));
  return picture;
}

/** What writes or reads a kernel's buffers, with the reason why the two are not one kernel. */
function kernelEdges(ids, of, kernel) {
  const edges = new Map();
  for (const id of ids) {
    const others = of[id].filter((other) => other !== kernel);
    if (!others.length && of === writersOf) edges.set(`b${id}`, { kind: "buffer", id, label: showBytes(buffers[id].bytes) });
    for (const other of others) {
      const refusal = refusalsOf[kernel].find((at) => refusals[at].kernels.includes(other));
      const reason = refusal === undefined ? "" : refusals[refusal].reason;
      edges.set(`k${other}`, { kind: "kernel", id: other, label: showBytes(buffers[id].bytes), reason });
    }
  }
  return [...edges.values()];
}
