// The page: what the address says is shown, and whatever one does goes into the address.

import { ask, image, isUpload, thumbnail, upload } from "./api.js";
import { BoxEditor } from "./box.js";
import { Detail } from "./detail.js";
import { Grid, make } from "./grid.js";
import { fresh, go, read, wish, write } from "./place.js";
import { Follow } from "./status.js";

const $ = (id) => document.getElementById(id);
const PAGE = 200; // hits asked for at a time
const known = new Map(); // id -> what is known of a picture or an upload

let place = read();
let asked = ""; // the wish that the grid shows
let coming = null; // aborts the search under way

const grid = new Grid($("grid"), {
  href: (hit) => write(place.q.length ? { ...place, view: String(hit.id) } : fresh({ q: [String(hit.id)] })),
  open: (hit) => (place.q.length ? move({ view: String(hit.id) }) : search([String(hit.id)])),
  add: (hit) => too(hit),
});
const box = new BoxEditor($("stage"), $("box"), (value) => move({ box: value && value.map(Math.round) }, Boolean(place.box && value)));
const detail = new Detail({
  closed: () => move({ view: "" }),
  step: (by) => step(by),
  search: (hit) => search([String(hit.id)]),
  too: (hit) => too(hit),
});
const follow = new Follow({
  changed: () => (scrollY < 200 && !place.view && !place.q.length ? load(true) : ($("fresh").hidden = false)),
  lost: (error) => notice(error.message),
  back: () => { notice(""); grid.retry(); if (!asked) render(); },
});

function move(changes, replace = false) {
  place = { ...place, ...changes };
  go(place, replace);
  render();
}

// A new search keeps the filters; box and view belong to the old one.
function search(q) {
  move({ q, box: null, view: "" });
  scrollTo(0, 0);
}

function too(hit) {
  const q = String(hit.id);
  move({ q: place.q.includes(q) ? place.q : [...place.q, q].slice(-20), view: "" });
  scrollTo(0, 0);
}

function step(by) {
  const at = grid.hits.findIndex((hit) => String(hit.id) === place.view);
  const hit = grid.hits[at + by];
  if (at >= 0 && hit) move({ view: String(hit.id) }, true);
}

function render() {
  controls();
  aside();
  const text = JSON.stringify(wish(place));
  if (text !== asked) load();
  view();
}

function controls() {
  $("expand").checked = place.expand > 0;
  for (const name of ["after", "before"]) if ($(name).value !== place[name]) $(name).value = place[name];
  if (place.under && ![...$("under").options].some((o) => o.value === place.under)) $("under").add(new Option(place.under, place.under));
  $("under").value = place.under;
  $("filtered").hidden = !(place.under || place.after || place.before);
  $("unfilter").disabled = $("filtered").hidden;
}

// The picture that is searched with, and the others beside it.
async function aside() {
  const [first, ...others] = place.q;
  $("query").hidden = !first;
  $("others").hidden = !others.length;
  $("others").replaceChildren(...others.map(other));
  $("whole").hidden = !place.box;
  $("draw").hidden = Boolean(place.box);
  if (!first) return;
  if ($("picture").dataset.q !== first) {
    $("picture").dataset.q = first;
    $("picture").src = image(first);
    $("stage").classList.add("waiting");
  }
  try {
    const facts = await learn(first);
    if (place.q[0] === first && !box.grip) box.set(facts, place.box);
  } catch (error) {
    if (place.q[0] === first) notice(error.message);
  }
}

function other(q) {
  const [item, img, remove] = [make("li"), make("img"), make("button", "", "×")];
  img.src = thumbnail(q);
  img.alt = known.get(q)?.name || "";
  remove.type = "button";
  remove.setAttribute("aria-label", "Search without this one");
  remove.onclick = () => move({ q: place.q.filter((x) => x !== q) });
  item.append(img, remove);
  return item;
}

async function learn(q) {
  if (!known.has(q)) known.set(q, await ask(isUpload(q) ? `uploads/${q}` : `pictures/${q}`));
  return known.get(q);
}

async function load(quiet = false) {
  const want = wish(place);
  asked = JSON.stringify(want);
  coming?.abort();
  const abort = (coming = new AbortController());
  const path = place.q.length ? "search" : "pictures";
  const get = (offset, k = PAGE) => ask(path, { ...want, offset, k }, { signal: abort.signal });
  if (!quiet) $("end").textContent = place.q.length ? "Searching…" : "";
  $("fresh").hidden = true;
  try {
    const answer = await get(0, place.q.length ? 60 : PAGE); // a first screen at once
    notice("");
    grid.clear();
    take(answer, [], get);
    headline(answer);
    view();
  } catch (error) {
    if (error.name === "AbortError") return;
    if (!quiet) asked = "";
    if (!error.status) follow.down = true; // it tells when the server is back
    $("end").textContent = "";
    if (error.status && !quiet) grid.clear();
    notice(error.message);
  }
}

function take(answer, before, get) {
  const hits = [...before, ...answer.hits];
  for (const hit of answer.hits) known.set(String(hit.id), hit);
  const more = answer.more && (async () => {
    try {
      take(await get(hits.length), hits, get);
    } catch (error) {
      if (error.name !== "AbortError") notice(error.message);
    }
  });
  grid.set(hits, { total: answer.total, more, searched: place.q.length > 0 });
  if (place.q.length && answer.matches !== null) headline(answer);
  $("end").textContent = more ? "" : hits.length ? (hits.length > 20 ? "That is all." : "") : empty();
}

const empty = () => ($("filtered").hidden ? "No pictures yet: crow index FOLDER INDEX puts some in." : "No picture passes the filter.");

function headline({ total, matches }) {
  const some = (n) => `${n.toLocaleString()} ${n === 1 ? "picture" : "pictures"}`;
  $("heading").textContent = !place.q.length ? some(total)
    : matches === null ? `${some(total)}, the most alike first`
    : matches ? `${matches.toLocaleString()} ${matches === 1 ? "match" : "matches"}` : "No match; the most alike pictures";
}

async function view() {
  if (!place.view) {
    const at = grid.hits.findIndex((hit) => hit === detail.hit);
    detail.close();
    if (at >= 0) grid.focus(at);
    return;
  }
  try {
    const at = grid.hits.findIndex((hit) => String(hit.id) === place.view);
    const hit = grid.hits[at] || (await learn(place.view));
    const q = place.q[0];
    const query = q ? { q, box: place.box, more: place.q.length > 1 || place.expand > 0, ...(await learn(q)) } : null;
    if (place.view !== String(hit.id)) return;
    await detail.show(query, hit, { first: at <= 0, last: at < 0 || at === grid.hits.length - 1 });
  } catch (error) {
    notice(error.message);
    move({ view: "" }, true);
  }
}

function notice(text) {
  $("notice").textContent = text;
  $("notice").hidden = !text;
}

// Dropped, pasted or picked files.
async function bring(files) {
  const pictures = [...files].slice(0, 20);
  if (!pictures.length) return;
  notice("");
  $("end").textContent = "Looking at the picture…";
  $("query").hidden = false;
  $("stage").classList.add("waiting");
  try {
    const sent = [];
    for (const file of pictures) {
      const facts = await upload(file);
      known.set(facts.id, { ...facts, name: file.name || "pasted picture" });
      sent.push(facts.id);
    }
    search(sent);
  } catch (error) {
    $("stage").classList.remove("waiting");
    $("query").hidden = !place.q.length;
    $("end").textContent = "";
    if (!error.status) follow.down = true;
    notice(`${pictures.length > 1 ? "One of the pictures" : pictures[0].name || "The picture"} cannot be searched with. ${error.message}`);
  }
}

async function folders() {
  const { folders } = await ask("folders").catch(() => ({ folders: [] }));
  const common = shared(folders.map((folder) => folder.path));
  for (const { path, pictures } of folders) {
    $("under").add(new Option(`${path.slice(common.length) || path} (${pictures.toLocaleString()})`, path));
  }
  controls();
}

// What all paths begin with, up to a slash.
function shared(paths) {
  let start = paths[0] || "";
  for (const path of paths) while (!path.startsWith(start)) start = start.slice(0, -1);
  return start.slice(0, start.lastIndexOf("/") + 1);
}

$("pick").onclick = () => $("file").click();
$("file").onchange = async () => { await bring($("file").files); $("file").value = ""; };
$("picture").onload = $("picture").onerror = (event) => {
  $("stage").classList.remove("waiting");
  $("stage").classList.toggle("empty", event.type === "error");
  if (event.type === "error") delete $("picture").dataset.q; // asked for again with the next search
};
$("draw").onclick = () => box.middle();
$("whole").onclick = () => move({ box: null });
$("again").onclick = () => { move(fresh({})); scrollTo(0, 0); };
$("fresh").onclick = () => { load(); scrollTo(0, 0); };
$("expand").onchange = () => move({ expand: $("expand").checked ? 10 : 0 });
$("unfilter").onclick = () => move({ under: "", after: "", before: "" });
for (const name of ["under", "after", "before"]) $(name).onchange = () => move({ [name]: $(name).value });
document.querySelector(".brand").onclick = (event) => {
  if (event.metaKey || event.ctrlKey) return;
  event.preventDefault();
  $("again").click();
};

addEventListener("popstate", () => { place = read(); render(); });
addEventListener("paste", (event) => {
  const files = [...(event.clipboardData?.files || [])];
  if (files.length) { event.preventDefault(); bring(files); }
});
const brings = (event) => event.dataTransfer?.types.includes("Files");
addEventListener("dragover", (event) => { if (brings(event)) { event.preventDefault(); $("drop").hidden = false; } });
addEventListener("dragleave", (event) => { if (!event.relatedTarget) $("drop").hidden = true; });
addEventListener("drop", (event) => {
  if (!brings(event)) return;
  event.preventDefault();
  $("drop").hidden = true;
  bring(event.dataTransfer.files);
});
addEventListener("click", (event) => { if (!event.target.closest("#filters")) $("filters").open = false; });
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && $("filters").open) $("filters").open = false;
  if (event.target.closest("input, select, dialog, [role=application]") || event.metaKey || event.ctrlKey || event.altKey) return;
  if (event.key === "/" || event.key === "o") { event.preventDefault(); $("pick").click(); }
});

void follow;
render();
folders();
