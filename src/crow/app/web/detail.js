// A result beside the query, and why it matches: each side lit where it adds to the score.

import { ask, image, isUpload } from "./api.js";

const $ = (id) => document.getElementById(id);

export class Detail {
  constructor({ closed, step, search, too }) {
    Object.assign(this, { closed, step, search, too, map: "match", told: null });
    this.dialog = $("detail");
    this.sides = { query: $("left"), result: $("right") };
    this.dialog.addEventListener("cancel", (event) => { event.preventDefault(); this.closed(); });
    $("close").onclick = () => this.closed();
    $("previous").onclick = () => this.step(-1);
    $("next").onclick = () => this.step(1);
    $("with").onclick = () => this.search(this.hit);
    $("too").onclick = () => this.too(this.hit);
    $("copy").onclick = () => this.copy();
    for (const button of this.dialog.querySelectorAll("[data-map]")) button.onclick = () => this.choose(button.dataset.map);
    this.dialog.addEventListener("keydown", (event) => this.key(event));
    for (const [name, side] of Object.entries(this.sides)) {
      const frame = side.querySelector(".frame");
      frame.addEventListener("pointermove", (event) => this.point(name, event));
      frame.addEventListener("pointerleave", () => this.captions());
    }
    addEventListener("resize", () => this.dialog.open && this.fit());
  }

  // query: {q, width, height, box, name} or null when one only looks at a picture of the collection.
  async show(query, hit, position) {
    const same = this.hit?.id === hit.id && this.query?.q === query?.q && String(this.query?.box) === String(query?.box);
    if (this.dialog.open && same) return;
    Object.assign(this, { query, hit, told: null });
    this.sides.query.hidden = !query;
    this.dialog.querySelector(".pair").classList.toggle("single", !query);
    this.dialog.querySelector(".maps").hidden = !query;
    $("too").hidden = !query;
    $("previous").disabled = position.first;
    $("next").disabled = position.last;
    $("detail-name").textContent = hit.name;
    $("detail-path").textContent = hit.path;
    $("detail-why").textContent = query ? "Looking for why they match…" : [hit.taken?.replace("T", " "), `${hit.width} × ${hit.height}`].filter(Boolean).join(" · ");
    const asked = this.sides.query.querySelector(".asked");
    asked.hidden = !query?.box;
    if (query?.box) lay(asked, query.box, query);
    if (query) picture(this.sides.query, image(query.q), query.name, query);
    picture(this.sides.result, image(String(hit.id)), hit.name, hit);
    this.paint();
    if (!this.dialog.open) this.dialog.showModal();
    this.fit();
    if (query) await this.explain(query, hit);
  }

  close() {
    if (this.dialog.open) this.dialog.close();
    this.hit = null;
  }

  async explain(query, hit) {
    this.asked?.abort();
    this.asked = new AbortController();
    try {
      const told = await ask("explain", { q: query.q, box: query.box && query.box.join(","), result: hit.id }, { signal: this.asked.signal });
      if (this.hit !== hit) return;
      this.told = told;
      $("detail-why").textContent = why(told, hit.chance) + (query.more ? " The search itself used more than this picture." : "");
      this.dialog.querySelector('[data-map="weights"]').disabled = !told.query.weights;
      this.paint();
    } catch (error) {
      if (error.name !== "AbortError" && this.hit === hit) $("detail-why").textContent = `No match map: ${error.message}`;
    }
  }

  choose(map) {
    this.map = map;
    for (const button of this.dialog.querySelectorAll("[data-map]")) button.setAttribute("aria-pressed", String(button.dataset.map === map));
    this.paint();
  }

  // Pictures as large as their half of the window allows.
  fit() {
    for (const side of Object.values(this.sides)) {
      if (side.hidden || !side.size) continue;
      const room = side.getBoundingClientRect();
      const scale = Math.min(room.width / side.size.width, (room.height - 34) / side.size.height);
      const frame = side.querySelector(".frame");
      frame.style.width = `${Math.max(1, side.size.width * scale)}px`;
      frame.style.height = `${Math.max(1, side.size.height * scale)}px`;
    }
  }

  paint() {
    for (const [name, side] of Object.entries(this.sides)) {
      const [veil, region] = [side.querySelector(".veil"), side.querySelector(".region")];
      const panel = this.told?.[name];
      const cells = this.map === "weights" ? panel?.weights : panel?.cells;
      veil.hidden = !cells || this.map === "none";
      region.hidden = !panel || this.map !== "match";
      if (veil.hidden) continue;
      light(veil, cells, panel.extent, (name === "query" && this.query.box) || [0, 0, side.size.width, side.size.height], side.size);
      if (!region.hidden) lay(region, panel.region, side.size);
    }
    this.captions();
  }

  captions() {
    const { query, result } = this.told || {};
    const text = (panel) => {
      if (!panel || this.map === "none") return "";
      if (this.map === "weights") return "Bright: where the recipe puts its weight";
      if (!this.told.linear) return "Bright: alike, place by place";
      return `cells ${signed(sum(panel.cells))}, constant ${signed(panel.constant)}`;
    };
    this.sides.query.querySelector("figcaption").textContent = text(query);
    this.sides.result.querySelector("figcaption").textContent = text(result);
  }

  // What the place under the pointer adds.
  point(name, event) {
    const panel = this.told?.[name];
    const side = this.sides[name];
    if (!panel || this.map !== "match" || !this.told.linear) return;
    const frame = side.querySelector(".frame").getBoundingClientRect();
    const x = ((event.clientX - frame.left) / frame.width) * side.size.width;
    const y = ((event.clientY - frame.top) / frame.height) * side.size.height;
    const [left, top, right, bottom] = panel.extent;
    const row = panel.cells[Math.floor(((y - top) / (bottom - top)) * panel.cells.length)];
    const cell = row?.[Math.floor(((x - left) / (right - left)) * row.length)];
    if (cell !== undefined) side.querySelector("figcaption").textContent = `this place adds ${signed(cell, 4)} of ${this.told.score.toFixed(3)}`;
  }

  async copy() {
    const say = (text) => ($("copy").firstChild.textContent = text);
    try {
      await navigator.clipboard.writeText(this.hit.path);
      say("Copied");
    } catch {
      getSelection().selectAllChildren($("detail-path"));
      say("Press Ctrl+C");
    }
    setTimeout(() => say("Copy path"), 1600);
  }

  key(event) {
    if (event.metaKey || event.ctrlKey || event.altKey) return;
    const does = {
      ArrowLeft: () => this.step(-1),
      ArrowRight: () => this.step(1),
      c: () => this.copy(),
      s: () => this.search(this.hit),
      a: () => this.query && this.too(this.hit),
      m: () => this.query && this.choose(this.map === "match" ? "none" : "match"),
    }[event.key];
    if (!does) return;
    event.preventDefault();
    does();
  }
}

function picture(side, source, name, size) {
  side.size = { width: size.width, height: size.height };
  const img = side.querySelector("img");
  img.src = source;
  img.alt = isUpload(source.split("/").at(-2)) ? "The picture that is searched for" : name;
  side.querySelector(".veil").hidden = true;
  side.querySelector(".region").hidden = true;
}

function why(told, chance) {
  const luck = chance === null || chance === undefined ? "" : ` Chance of an unrelated picture to score as high: ${percent(chance)}.`;
  if (!told.linear) {
    return `Score ${told.score.toFixed(3)}. ${told.recipe} picks or mixes places, so its score is no sum over them; the map shows instead how alike each place, by itself, is to the other picture.${luck}`;
  }
  const mean = told.query.constant || told.result.constant ? " and one constant (the whitening's mean)" : "";
  return `Score ${told.score.toFixed(3)}, split exactly: on either side it is the sum over the cells${mean}.${luck}`;
}

const percent = (chance) => (chance < 1e-6 ? "below one in a million" : `${(100 * chance).toPrecision(2)} %`);

// Dark where nothing is added, clear where most is: a canvas of one pixel per cell, smoothed by the browser.
// `part` of the picture was looked at; cells lie in `extent`, and their border is carried on to the edge of the part.
function light(veil, cells, extent, part, size) {
  const canvas = veil.querySelector("canvas");
  const [height, width] = [cells.length, cells[0].length];
  Object.assign(canvas, { width: width + 2, height: height + 2 }); // a border, so that smoothing ends at the edge
  const most = Math.max(1e-12, ...cells.flat());
  const data = new ImageData(width + 2, height + 2);
  for (let y = 0; y < height + 2; y++) {
    for (let x = 0; x < width + 2; x++) {
      const cell = cells[clamp(y - 1, height)][clamp(x - 1, width)];
      const strength = Math.max(0, cell / most) ** 0.65;
      data.data.set([8, 9, 14, Math.round(205 * (1 - strength))], 4 * (y * (width + 2) + x));
    }
  }
  canvas.getContext("2d").putImageData(data, 0, 0);
  const [across, down] = [(extent[2] - extent[0]) / width, (extent[3] - extent[1]) / height];
  lay(veil, part, size);
  const within = [extent[0] - across, extent[1] - down, extent[2] + across, extent[3] + down];
  lay(canvas, within.map((edge, i) => edge - part[i % 2]), { width: part[2] - part[0], height: part[3] - part[1] });
}

const clamp = (i, length) => Math.max(0, Math.min(length - 1, i));

function lay(element, [left, top, right, bottom], { width, height }) {
  Object.assign(element.style, {
    left: `${(100 * left) / width}%`,
    top: `${(100 * top) / height}%`,
    width: `${(100 * (right - left)) / width}%`,
    height: `${(100 * (bottom - top)) / height}%`,
  });
}

const sum = (cells) => cells.flat().reduce((a, b) => a + b, 0);
const signed = (value, digits = 3) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(digits)}`;
