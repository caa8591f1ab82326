// The arena over time: kernels from left to right, addresses from top to bottom.

const memory = {
  label: "Memory plan",
  range: [0, kernels.length + 1],
  make() {
    this.canvas = h("canvas", { tabIndex: 0, role: "img", "aria-label": "The arena over time; arrow keys move, + and − zoom" });
    this.legend = h("p", { className: "remark" });
    this.element = h("div", { className: "memory" }, this.legend, this.canvas);
    this.rects = buffers.map((buffer, id) => ({ ...buffer, id })).filter(({ offset, life }) => offset !== null && life);
    // Small ones last, so that they lie on top.
    this.rects.sort((a, b) => b.bytes - a.bytes);
    this.live = new Float64Array(kernels.length + 1);
    for (const { life, bytes, alias } of this.rects) {
      if (alias === null) for (let at = life[0]; at <= Math.min(life[1], kernels.length); at++) this.live[at] += bytes;
    }
    this.canvas.addEventListener("mousemove", (event) => this.hover(event));
    this.canvas.addEventListener("mouseleave", () => { document.getElementById("tip").hidden = true; });
    this.canvas.addEventListener("click", (event) => {
      const hit = this.hit(event);
      if (hit) select("buffer", hit.id);
    });
    this.canvas.addEventListener("dblclick", () => this.zoom(0));
    this.canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoom(event.deltaY < 0 ? 0.8 : 1.25, this.kernelAt(event.offsetX));
    }, { passive: false });
    this.canvas.addEventListener("keydown", (event) => this.pressed(event));
    new ResizeObserver(() => this.refresh()).observe(this.element);
    return this.element;
  },
  mark() { this.refresh(); },
  /** Phase of the forward or backward node whose value a buffer holds. */
  phase({ node }) {
    const source = node === null ? undefined : simplified.sources[node][0];
    return source === undefined ? 0 : traced.phase[source];
  },
  refresh() {
    const { canvas, element } = this;
    const width = element.clientWidth;
    const height = Math.max(220, element.clientHeight - this.legend.offsetHeight - 8);
    if (!width) return;
    const ratio = window.devicePixelRatio || 1;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    this.frame = { left: 64, top: 4, width: width - 72, height: height - 112, strip: 64 };
    const c = canvas.getContext("2d");
    c.scale(ratio, ratio);
    c.clearRect(0, 0, width, height);
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    c.font = `11px ${style.getPropertyValue("--mono")}`;
    this.axes(c, colour);
    const fills = ["--forward", "--backward", "--update"].map(colour);
    c.save();
    c.beginPath();
    c.rect(this.frame.left, 0, this.frame.width, height);
    c.clip();
    const marked = new Set(state.found ? state.found.buffer : []);
    for (const rect of this.rects) {
      const [x, y, w, tall] = this.place(rect);
      c.globalAlpha = marked.size && !marked.has(rect.id) ? 0.35 : 0.85;
      c.fillStyle = fills[this.phase(rect)];
      c.fillRect(x, y, w, tall);
      if (tall > 2 && w > 2) {
        c.globalAlpha = 0.6;
        c.strokeStyle = colour("--ground");
        c.strokeRect(x + 0.5, y + 0.5, w - 1, tall - 1);
      }
      if (w > 60 && tall > 13) {
        c.globalAlpha = 1;
        c.fillStyle = colour("--on-fill");
        c.fillText(rect.name.slice(0, Math.floor(w / 7)), x + 4, y + 12);
      }
    }
    c.globalAlpha = 1;
    c.lineWidth = 2;
    c.strokeStyle = colour("--chosen");
    for (const rect of this.rects.filter(({ id }) => marked.has(id))) {
      const [x, y, w, tall] = this.place(rect);
      c.strokeRect(x, y, Math.max(w, 2), Math.max(tall, 2));
    }
    this.curve(c, colour);
    c.restore();
    const peak = this.live.reduce((best, bytes, at) => (bytes > this.live[best] ? at : best), 0);
    const swatch = (name, label) => h("span", { className: "swatch" }, h("i", { style: `background:var(${name})` }), label);
    this.legend.replaceChildren(
      `Arena of ${showBytes(data.arena)}; most is live at kernel ${peak}: ${showBytes(this.live[peak])}. `,
      swatch("--forward", "forward"), swatch("--backward", "backward"), swatch("--update", "updates"),
      " Wheel or + − zooms, arrows move, a double click shows all.");
  },
  axes(c, colour) {
    const { left, top, width, height, strip } = this.frame;
    c.fillStyle = colour("--faint");
    c.strokeStyle = colour("--line");
    for (let part = 0; part <= 4; part++) {
      const y = top + (height * part) / 4;
      c.beginPath();
      c.moveTo(left, Math.round(y) + 0.5);
      c.lineTo(left + width, Math.round(y) + 0.5);
      c.stroke();
      c.textAlign = "right";
      c.fillText(showBytes((data.arena * part) / 4), left - 6, Math.min(y + 10, top + height));
    }
    c.fillText("live", left - 6, top + height + 34 + strip / 2);
    c.textAlign = "center";
    const [from, to] = this.range;
    for (let part = 0; part <= 8; part++) {
      const kernel = Math.round(from + ((to - from) * part) / 8);
      c.fillText(String(Math.min(kernel, kernels.length)), Math.min(left + width - 10, this.x(kernel)), top + height + 16);
    }
    c.textAlign = "left";
  },
  curve(c, colour) {
    const { top, height, strip } = this.frame;
    const bottom = top + height + 30 + strip;
    const most = this.live.reduce((a, b) => Math.max(a, b), 1);
    c.fillStyle = colour("--heat");
    for (let at = 0; at < this.live.length; at++) {
      const tall = (strip * this.live[at]) / most;
      c.fillRect(this.x(at), bottom - tall, Math.max(1, this.x(at + 1) - this.x(at)), tall);
    }
  },
  x(kernel) {
    const [from, to] = this.range;
    return this.frame.left + ((kernel - from) / (to - from)) * this.frame.width;
  },
  kernelAt(x) {
    const [from, to] = this.range;
    return from + ((x - this.frame.left) / this.frame.width) * (to - from);
  },
  place({ life: [first, last], offset, bytes }) {
    const { top, height } = this.frame;
    const scale = height / Math.max(1, data.arena);
    return [this.x(first), top + offset * scale, this.x(last + 1) - this.x(first), Math.max(0.5, bytes * scale)];
  },
  hit({ offsetX, offsetY }) {
    const inside = (rect) => {
      const [x, y, w, tall] = this.place(rect);
      return offsetX >= x && offsetX < x + Math.max(w, 2) && offsetY >= y && offsetY < y + Math.max(tall, 2);
    };
    for (let at = this.rects.length - 1; at >= 0; at--) if (inside(this.rects[at])) return this.rects[at];
    return null;
  },
  hover(event) {
    const tip = document.getElementById("tip");
    const rect = this.hit(event);
    tip.hidden = !rect;
    this.canvas.style.cursor = rect ? "pointer" : "default";
    if (!rect) return;
    const [first, last] = rect.life;
    const end = last >= kernels.length ? "the end" : `${last} ${kernels[last].name}`;
    tip.replaceChildren(h("b", {}, rect.name), h("div", {}, `${rect.ty}, ${showBytes(rect.bytes)} at ${grouped(rect.offset)}`),
      h("div", {}, `from ${first} ${kernels[Math.min(first, kernels.length - 1)].name}`), h("div", {}, `to ${end}`),
      rect.alias === null ? "" : h("div", {}, `in place of ${buffers[rect.alias].name}`));
    tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8)}px`;
  },
  zoom(factor, around) {
    const [from, to] = this.range;
    const middle = around === undefined ? (from + to) / 2 : around;
    const all = kernels.length + 1;
    const size = factor === 0 ? all : Math.max(4, Math.min(all, (to - from) * factor));
    const start = Math.max(0, Math.min(all - size, middle - ((middle - from) / (to - from)) * size));
    this.range = [start, start + size];
    this.refresh();
  },
  pressed(event) {
    const [from, to] = this.range;
    const step = (to - from) / 8;
    const move = (by) => {
      const start = Math.max(0, Math.min(kernels.length + 1 - (to - from), from + by));
      this.range = [start, start + to - from];
      this.refresh();
    };
    if (event.key === "ArrowLeft") move(-step);
    else if (event.key === "ArrowRight") move(step);
    else if (event.key === "+" || event.key === "=") this.zoom(0.7);
    else if (event.key === "-") this.zoom(1.4);
    else if (event.key === "0") this.zoom(0);
    else return;
    event.preventDefault();
  },
};
