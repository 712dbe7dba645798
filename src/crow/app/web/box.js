// A box around the thing one means: drawn, moved and resized by mouse, touch or keyboard, in pixels of the original.

const SMALLEST = 8; // pixels of the screen
const CORNERS = [["w", "n"], ["", "n"], ["e", "n"], ["e", ""], ["e", "s"], ["", "s"], ["w", "s"], ["w", ""]];

export class BoxEditor {
  constructor(stage, box, changed) {
    Object.assign(this, { stage, box, changed, size: null, value: null });
    for (const [x, y] of CORNERS) {
      const handle = document.createElement("b");
      Object.assign(handle.dataset, { x, y });
      handle.style.left = { w: "0", "": "50%", e: "100%" }[x];
      handle.style.top = { n: "0", "": "50%", s: "100%" }[y];
      handle.style.cursor = x && y ? (x === "w") === (y === "n") ? "nwse-resize" : "nesw-resize" : x ? "ew-resize" : "ns-resize";
      box.append(handle);
    }
    stage.addEventListener("pointerdown", (event) => this.begin(event));
    stage.addEventListener("pointermove", (event) => this.drag(event));
    stage.addEventListener("pointerup", () => this.end());
    stage.addEventListener("pointercancel", () => this.end());
    box.addEventListener("keydown", (event) => this.key(event));
  }

  // The picture's size, and the box in it or null.
  set(size, value) {
    Object.assign(this, { size, value: value && size ? inside(value, size) : null });
    this.draw();
  }

  draw() {
    this.box.hidden = !this.value;
    if (!this.value) return;
    const [left, top, right, bottom] = this.value;
    const { width, height } = this.size;
    Object.assign(this.box.style, {
      left: `${(100 * left) / width}%`,
      top: `${(100 * top) / height}%`,
      width: `${(100 * (right - left)) / width}%`,
      height: `${(100 * (bottom - top)) / height}%`,
    });
    const [a, b, c, d] = this.value.map(Math.round);
    this.box.setAttribute("aria-label", `Box from ${a}, ${b} to ${c}, ${d} pixels. Arrow keys move it, with Shift they resize it, Delete removes it.`);
  }

  // A box in the middle, for those who have no pointer.
  middle() {
    if (!this.size) return;
    const { width, height } = this.size;
    this.value = [width / 4, height / 4, (3 * width) / 4, (3 * height) / 4].map(Math.round);
    this.draw();
    this.box.focus();
    this.changed(this.value);
  }

  point(event) {
    const frame = this.stage.getBoundingClientRect();
    const scale = this.size.width / frame.width;
    return [(event.clientX - frame.left) * scale, (event.clientY - frame.top) * scale, scale];
  }

  begin(event) {
    if (!this.size || event.button) return;
    event.preventDefault();
    const [x, y, scale] = this.point(event);
    const handle = event.target.closest("b");
    const what = handle ? { x: handle.dataset.x, y: handle.dataset.y } : event.target === this.box ? "move" : "new";
    this.grip = { what, x, y, least: SMALLEST * scale, before: this.value };
    this.stage.setPointerCapture(event.pointerId);
    if (what !== "new") this.box.focus({ preventScroll: true });
  }

  drag(event) {
    if (!this.grip) return;
    const [x, y] = this.point(event);
    const { what, before, least } = this.grip;
    if (what === "new") {
      const value = [Math.min(x, this.grip.x), Math.min(y, this.grip.y), Math.max(x, this.grip.x), Math.max(y, this.grip.y)];
      if (value[2] - value[0] < least && value[3] - value[1] < least) return;
      this.value = inside(value, this.size, least);
    } else if (what === "move") {
      this.value = moved(before, x - this.grip.x, y - this.grip.y, this.size);
    } else {
      this.value = resized(before, what, x - this.grip.x, y - this.grip.y, this.size, least);
    }
    this.draw();
  }

  end() {
    if (!this.grip) return;
    const { before } = this.grip;
    this.grip = null;
    if (this.value && String(this.value) !== String(before)) {
      this.value = this.value.map(Math.round);
      this.changed(this.value);
    }
  }

  key(event) {
    if (event.key === "Delete" || event.key === "Backspace") {
      event.preventDefault();
      this.changed(null);
      return;
    }
    const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!way || event.metaKey || event.ctrlKey) return;
    event.preventDefault();
    const step = Math.max(1, Math.round(Math.max(this.size.width, this.size.height) / (event.altKey ? 400 : 50)));
    const [x, y] = [way[0] * step, way[1] * step];
    this.value = event.shiftKey
      ? resized(this.value, { x: x ? "e" : "", y: y ? "s" : "" }, x, y, this.size, step)
      : moved(this.value, x, y, this.size);
    this.draw();
    clearTimeout(this.soon);
    this.soon = setTimeout(() => this.changed(this.value), 350); // one search for a series of key strokes
  }
}

function inside([left, top, right, bottom], { width, height }, least = 1) {
  const [x, y] = [Math.max(0, Math.min(left, width - least)), Math.max(0, Math.min(top, height - least))];
  return [x, y, Math.max(x + least, Math.min(right, width)), Math.max(y + least, Math.min(bottom, height))];
}

function moved([left, top, right, bottom], x, y, { width, height }) {
  const dx = Math.max(-left, Math.min(x, width - right));
  const dy = Math.max(-top, Math.min(y, height - bottom));
  return [left + dx, top + dy, right + dx, bottom + dy].map(Math.round);
}

function resized([left, top, right, bottom], side, x, y, { width, height }, least) {
  const low = (edge, by, other) => Math.max(0, Math.min(edge + by, other - least));
  const high = (edge, by, other, end) => Math.min(end, Math.max(edge + by, other + least));
  return [
    side.x === "w" ? low(left, x, right) : left,
    side.y === "n" ? low(top, y, bottom) : top,
    side.x === "e" ? high(right, x, left, width) : right,
    side.y === "s" ? high(bottom, y, top, height) : bottom,
  ].map(Math.round);
}
