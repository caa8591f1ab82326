// What became of something: from a line to code and back.

const kinds = ["line", "traced", "node", "kernel", "buffer"];
const unique = (numbers) => [...new Set(numbers)].sort((a, b) => a - b);

/** What became of a traced node: the simplified nodes that have its value, or else those that took its place. */
function fate(node) {
  if (images[node].length) return { stays: true, nodes: unique([...images[node], ...helpers[node]]) };
  return {
    stays: false,
    nodes: unique(nearestUsers(traced, node, (user) => images[user].length > 0).flatMap((user) => images[user])),
  };
}

/** The nodes of a line, or all that belong to one node: those of its line and module in each phase. */
function tracedBy(kind, id) {
  switch (kind) {
    case "line": return tracedOfLine[id];
    case "traced": return [id];
    case "node": return simplified.sources[id];
    case "kernel": return unique(kernels[id].covers.flatMap((node) => simplified.sources[node]));
    case "buffer": return buffers[id].node === null ? [] : simplified.sources[buffers[id].node];
  }
}

/**
 * The journey of a thing: for each kind the numbers of what belongs to it. `also` has the derivatives of forward nodes, and
 * for derivatives what they are derived from.
 */
function journey(kind, id) {
  const own = tracedBy(kind, id);
  const found = { line: [], traced: own, node: [], kernel: [], buffer: [], also: [] };
  found.line = kind === "line" ? [id] : unique(own.map((node) => traced.line[node]).filter((line) => line !== null));
  if (kind === "line" || kind === "traced") found.node = unique(own.flatMap((node) => fate(node).nodes));
  else if (kind === "node") found.node = [id];
  else if (kind === "kernel") found.node = kernels[id].covers;
  else found.node = buffers[id].node === null ? [] : [buffers[id].node];
  if (kind === "kernel") found.kernel = [id];
  else if (kind === "buffer") found.kernel = unique([...writersOf[id], ...readersOf[id]]);
  else found.kernel = unique(found.node.flatMap(kernelsFor));
  if (kind === "buffer") found.buffer = [id];
  else if (kind === "kernel") found.buffer = unique([...kernels[id].writes, ...kernels[id].reads]);
  else found.buffer = unique(found.node.flatMap((node) => buffersOf[node]));
  if (kind === "traced" || kind === "node") {
    const places = new Set(own.map(placeOf).filter((place) => place !== null));
    const other = (node) => (traced.phase[node] === 0 ? 1 : 0);
    const phases = new Set(own.map(other));
    found.also = unique([...places].flatMap((place) => [...phases].flatMap((phase) => ofPlace.get(place)[phase])));
  }
  return found;
}

/** Each thing as a name for lists and the search. */
function nameOf(kind, id) {
  switch (kind) {
    case "line": return lines[id].name;
    case "traced": return `%${id} ${opTitle(traced, id)}`;
    case "node": return `%${id} ${opTitle(simplified, id)}`;
    case "kernel": return kernels[id].name;
    case "buffer": return buffers[id].name;
  }
}

const kindNames = {
  line: "line", traced: "traced", node: "simplified", kernel: "kernel", buffer: "buffer",
};
const countOf = {
  line: lines.length, traced: traced.count, node: simplified.count, kernel: kernels.length, buffer: buffers.length,
};
