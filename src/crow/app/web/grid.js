// The wall of photographs: rows of equal height that fill the width, only those near the window in the document.

import { thumbnail } from "./api.js";

const CAPTION = 22;
const DIVIDE = 46;
const AHEAD = 900; // pixels above and below the window that are kept ready

export class Grid {
  constructor(root, { href, open, add }) {
    Object.assign(this, { root, href, open, add });
    this.clear();
    let asked = false;
    const later = () => {
      if (asked) return;
      asked = true;
      requestAnimationFrame(() => { asked = false; this.draw(); });
    };
    addEventListener("scroll", later, { passive: true });
    new ResizeObserver(() => this.relayout()).observe(root);
    root.addEventListener("keydown", (event) => this.key(event));
    root.addEventListener("click", (event) => this.click(event));
    root.addEventListener("focusin", (event) => {
      const cell = event.target.closest(".cell");
      if (cell) this.current = Number(cell.dataset.at);
    });
  }

  clear() {
    this.hits = [];
    this.rows = [];
    this.shown = new Map();
    this.next = 0; // the first hit that no row holds yet
    this.height = 0;
    this.width = 0;
    this.current = 0;
    this.before = scrollY;
    this.more = null;
    this.total = 0;
    this.root.replaceChildren();
    this.root.style.height = "0px";
  }

  // The hits so far, and how to get more of them (null: these are all).
  set(hits, { total, more, searched }) {
    Object.assign(this, { hits, total, more, searched });
    if (this.width) this.extend();
    else this.relayout();
  }

  relayout() {
    const width = this.root.clientWidth;
    if (!width || (width === this.width && this.rows.length)) return;
    const anchor = this.rows.find((row) => row.top + this.root.offsetTop >= scrollY - 10);
    Object.assign(this, { width, rows: [], next: 0, height: 0 });
    this.shown.forEach((element) => element.remove());
    this.shown.clear();
    this.extend();
    const row = anchor && anchor.from > 0 && this.rows.find((r) => r.to > anchor.from);
    if (row) scrollTo(0, row.top + this.root.offsetTop - 70);
  }

  // Lay out what has come since.
  extend() {
    const gap = 6;
    const tall = this.width < 560 ? 118 : this.width < 1100 ? 168 : 196;
    if (this.rows.length && this.rows.at(-1).open) { // the last row was not full: begin it again
      const last = this.rows.pop();
      this.shown.get(last)?.remove();
      this.shown.delete(last);
      this.next = last.from;
      this.height = last.top;
    }
    while (this.next < this.hits.length) {
      const first = this.next;
      if (this.searched && first > 0 && !this.hits[first].match && this.hits[first - 1].match) {
        this.rows.push({ top: this.height, height: DIVIDE, from: first, to: first, divide: true });
        this.height += DIVIDE;
      }
      let shapes = 0;
      let to = first;
      const limit = (this.width - 0.5) / tall;
      while (to < this.hits.length && shapes + ((to - first) * gap) / tall < limit) {
        if (this.searched && to > first && this.hits[to].match !== this.hits[first].match) break;
        shapes += shape(this.hits[to++]);
      }
      const full = shapes + ((to - first - 1) * gap) / tall >= limit;
      const high = full ? (this.width - (to - first - 1) * gap) / shapes : tall;
      this.rows.push({ top: this.height, height: high + CAPTION + gap, high, from: first, to, open: !full && to === this.hits.length });
      this.height += high + CAPTION + gap;
      this.next = to;
    }
    this.root.style.height = `${Math.ceil(this.height)}px`;
    this.draw();
  }

  draw() {
    const top = scrollY - this.root.offsetTop - AHEAD;
    const bottom = scrollY - this.root.offsetTop + innerHeight + AHEAD;
    let from = 0;
    for (let step = this.rows.length; step > 0; ) { // the first row that reaches into view
      const half = step >> 1;
      const row = this.rows[from + half];
      if (row.top + row.height < top) { from += half + 1; step -= half + 1; } else step = half;
    }
    const wanted = new Set();
    for (let i = from; i < this.rows.length && this.rows[i].top < bottom; i++) wanted.add(this.rows[i]);
    const focused = document.activeElement?.closest?.("#grid .cell");
    for (const [row, element] of this.shown) {
      if (!wanted.has(row) && !element.contains(focused)) { element.remove(); this.shown.delete(row); }
    }
    for (const row of wanted) {
      if (this.shown.has(row)) continue;
      const element = row.divide ? divide() : this.row(row);
      element.style.top = `${row.top}px`;
      element.style.height = `${row.height}px`;
      this.shown.set(row, element);
      const after = [...this.shown].filter(([r]) => r.top > row.top).sort((a, b) => a[0].top - b[0].top)[0];
      this.root.insertBefore(element, after ? after[1] : null);
    }
    this.load();
    if (this.more && this.height - (scrollY - this.root.offsetTop) < innerHeight * 4) {
      const more = this.more;
      this.more = null;
      more();
    }
  }

  // Photographs are asked for at once, but not those that only fly past.
  load() {
    const fast = Math.abs(scrollY - this.before) > 2 * innerHeight;
    this.before = scrollY;
    clearTimeout(this.calm);
    if (fast) this.calm = setTimeout(() => this.load(), 100);
    else for (const img of this.root.querySelectorAll("img[data-src]")) {
      img.src = img.dataset.src;
      delete img.dataset.src;
    }
  }

  // Ask again for the photographs that did not arrive.
  retry() {
    for (const img of this.root.querySelectorAll(".gone img")) {
      img.closest(".cell").classList.remove("gone");
      img.src = img.getAttribute("src");
    }
  }

  row(row) {
    const element = make("div", "cells");
    element.setAttribute("role", "presentation");
    for (let at = row.from; at < row.to; at++) element.append(this.cell(at, row.high));
    return element;
  }

  cell(at, high) {
    const hit = this.hits[at];
    const cell = make("div", hit.match ? "cell" : "cell below");
    cell.setAttribute("role", "listitem");
    cell.setAttribute("aria-setsize", this.total || this.hits.length);
    cell.setAttribute("aria-posinset", at + 1);
    cell.dataset.at = at;
    cell.style.width = `${shape(hit) * high}px`;
    const link = make("a");
    link.href = this.href(hit);
    link.tabIndex = at === this.current ? 0 : -1;
    const told = hit.score === null ? "" : `, score ${hit.score.toFixed(2)}${hit.match ? "" : ", below the line"}`;
    link.setAttribute("aria-label", hit.name + told);
    link.title = hit.path;
    const picture = make("img");
    picture.alt = "";
    picture.loading = "lazy";
    picture.decoding = "async";
    picture.style.height = `${high}px`;
    picture.onerror = () => cell.classList.add("gone");
    picture.dataset.src = thumbnail(String(hit.id));
    const caption = make("div", "caption");
    if (hit.score !== null) caption.append(make("span", "score", hit.score.toFixed(2)));
    caption.append(make("span", "name", hit.name));
    link.append(picture, caption);
    cell.append(link);
    if (this.searched) {
      const plus = make("button", "plus", "+");
      plus.type = "button";
      plus.tabIndex = -1;
      plus.title = "Search with this one too";
      plus.setAttribute("aria-label", `Search with ${hit.name} too`);
      cell.append(plus);
    }
    return cell;
  }

  click(event) {
    const cell = event.target.closest(".cell");
    if (!cell || event.metaKey || event.ctrlKey || event.shiftKey || event.button) return;
    event.preventDefault();
    const at = Number(cell.dataset.at);
    if (event.target.closest(".plus")) this.add(this.hits[at]);
    else this.open(this.hits[at], at);
  }

  key(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key];
    const line = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if ((step === undefined && line === undefined) || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    let at = this.current + (step || 0);
    if (line) {
      const rows = this.rows.filter((row) => !row.divide);
      const here = rows.findIndex((row) => row.to > this.current);
      const target = rows[here + line];
      if (!target) return;
      const share = (this.current - rows[here].from + 0.5) / (rows[here].to - rows[here].from);
      at = target.from + Math.floor(share * (target.to - target.from));
    }
    this.focus(Math.max(0, Math.min(this.hits.length - 1, at)));
  }

  focus(at) {
    const row = this.rows.find((r) => r.to > at);
    if (!row) return;
    this.root.querySelector('a[tabindex="0"]')?.setAttribute("tabindex", "-1");
    this.current = at;
    const top = row.top + this.root.offsetTop;
    if (top - 70 < scrollY) scrollTo(0, top - 70);
    else if (top + row.height > scrollY + innerHeight) scrollTo(0, top + row.height - innerHeight + 8);
    this.draw();
    const link = this.root.querySelector(`.cell[data-at="${at}"] > a`);
    link?.setAttribute("tabindex", "0");
    link?.focus({ preventScroll: true });
  }
}

// Width over height, kept within what still looks like a picture in a row; unknown ones count as 4:3.
const shape = (hit) => (hit.width && hit.height ? Math.min(3.2, Math.max(0.45, hit.width / hit.height)) : 4 / 3);

export function make(tag, name = "", text = "") {
  const element = document.createElement(tag);
  if (name) element.className = name;
  if (text) element.textContent = text;
  return element;
}

function divide() {
  const element = make("div", "divide");
  element.setAttribute("role", "presentation");
  element.append(make("span", "", "Matches end here; below, pictures are as alike as any two of this collection"));
  return element;
}
