"use strict";
// The data of the page, with the relations between its parts in both directions.

const data = JSON.parse(document.getElementById("data").textContent);
const { traced, simplified, kernels, buffers, refusals } = data;
const text = (number) => data.strings[number];

/** The reverse of a relation: for each of `count` targets the numbers of the rows that name it. */
function inverse(rows, count) {
  const found = Array.from({ length: count }, () => []);
  rows.forEach((targets, row) => {
    for (const target of targets) if (found[target][found[target].length - 1] !== row) found[target].push(row);
  });
  return found;
}

// Places that differ in the column alone are one line.
const lines = [];
const lineOf = (() => {
  const numbers = new Map();
  return data.lines.map((place) => {
    const key = `${place.file}:${place.line}`;
    if (!numbers.has(key)) {
      numbers.set(key, lines.length);
      lines.push({ file: place.file, line: place.line, text: place.text || "", name: key });
    }
    return numbers.get(key);
  });
})();
for (const graph of [traced, simplified]) {
  graph.count = graph.op.length;
  graph.users = inverse(graph.operands, graph.count);
  graph.line = graph.line.map((place) => (place === null ? null : lineOf[place]));
  graph.outputOf = new Map(graph.outputs.map(([name, node, updates]) => [node, { name, updates }]));
}

/** The simplified nodes that have the value of each traced one, and those that help to compute it. */
const images = inverse(simplified.sources.map((sources, node) => (simplified.helps[node] ? [] : sources)), traced.count);
const helpers = inverse(simplified.sources.map((sources, node) => (simplified.helps[node] ? sources : [])), traced.count);
const tracedOfLine = inverse(traced.line.map((line) => (line === null ? [] : [line])), lines.length);
/** The kernels that compute each simplified node. */
const kernelsOf = inverse(kernels.map((kernel) => kernel.covers), simplified.count);
const buffersOf = inverse(buffers.map((buffer) => (buffer.node === null ? [] : [buffer.node])), simplified.count);
const writersOf = inverse(kernels.map((kernel) => kernel.writes), buffers.length);
const readersOf = inverse(kernels.map((kernel) => kernel.reads), buffers.length);
const refusalsOf = inverse(
  refusals.map(({ kernels: [a, b] }) => [a, b].filter((kernel) => kernel !== null)),
  kernels.length,
);
// Nodes of one line and module, by phase: a derivative stands where what it is derived from stands.
const placeOf = (node) => (traced.line[node] === null ? null : `${traced.line[node]} ${traced.scope[node]}`);
const ofPlace = new Map();
for (let node = 0; node < traced.count; node++) {
  const place = placeOf(node);
  if (place === null) continue;
  if (!ofPlace.has(place)) ofPlace.set(place, [[], [], []]);
  ofPlace.get(place)[traced.phase[node]].push(node);
}

/** The nearest users, or users of users, for which `is` holds; and whether anyone uses the value at all. */
function nearestUsers(graph, node, is) {
  const [found, seen, stack] = [new Set(), new Set([node]), [node]];
  while (stack.length) {
    for (const user of graph.users[stack.pop()]) {
      if (seen.has(user)) continue;
      seen.add(user);
      if (is(user)) found.add(user);
      else stack.push(user);
    }
  }
  return [...found].sort((a, b) => a - b);
}

/** The kernels that compute a simplified node, or, if it is computed wherever it is read, those that read it. */
function kernelsFor(node) {
  if (kernelsOf[node].length || graphOp(simplified, node) === "input") return kernelsOf[node];
  const readers = nearestUsers(simplified, node, (user) => kernelsOf[user].length > 0);
  return [...new Set(readers.flatMap((reader) => kernelsOf[reader]))].sort((a, b) => a - b);
}

const graphOp = (graph, node) => text(graph.op[node]);
const opTitle = (graph, node) => {
  const op = graphOp(graph, node);
  return op === "input" ? text(graph.attributes[node]) : op;
};
const scopeOf = (graph, node) => text(graph.scope[node]);
const kernelScope = (kernel) => {
  const at = kernels[kernel].name.lastIndexOf("/");
  return at < 0 ? "" : kernels[kernel].name.slice(0, at);
};
const inScope = (scope, path) => path === "" || scope === path || scope.startsWith(`${path}.`);
const phaseNames = ["forward", "backward", "update"];

// What the bars show.
const measures = {
  bytes: { label: "bytes moved", of: (kernel) => kernel.bytes, show: showBytes },
  floor: { label: "least time", of: (kernel) => kernel.floor[0], show: showSeconds },
};
if (data.timed) {
  measures.seconds = { label: "measured time", of: (kernel) => kernel.seconds || 0, show: showSeconds };
}

/** A measure of everything: a kernel's share goes in equal parts to its ops, and theirs to what they stand for. */
function weigh(measure) {
  const weights = {
    kernel: kernels.map(measure.of),
    node: new Float64Array(simplified.count),
    traced: new Float64Array(traced.count),
    line: new Float64Array(lines.length),
    buffer: buffers.map((buffer) => buffer.bytes),
  };
  kernels.forEach((kernel, number) => {
    for (const node of kernel.covers) weights.node[node] += weights.kernel[number] / kernel.covers.length;
  });
  simplified.sources.forEach((sources, node) => {
    for (const source of sources) weights.traced[source] += weights.node[node] / sources.length;
  });
  traced.line.forEach((line, node) => {
    if (line !== null) weights.line[line] += weights.traced[node];
  });
  weights.most = {};
  for (const kind of ["kernel", "node", "traced", "line", "buffer"]) {
    weights.most[kind] = weights[kind].reduce((most, weight) => Math.max(most, weight), 0);
  }
  return weights;
}

function showBytes(bytes) {
  for (const [unit, name] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (bytes >= unit) return `${(bytes / unit).toFixed(1)} ${name}`;
  }
  return `${Math.round(bytes)} B`;
}

function showSeconds(seconds) {
  if (seconds >= 1) return `${seconds.toFixed(2)} s`;
  return seconds >= 1e-3 ? `${(seconds * 1e3).toFixed(2)} ms` : `${(seconds * 1e6).toFixed(1)} µs`;
}

const grouped = (count) => count.toLocaleString("en");
const plural = (count, word) => `${grouped(count)} ${word}${count === 1 ? "" : "s"}`;
