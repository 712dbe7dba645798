// The search as the address bar holds it: what one sees can be shared, and the back button works.

const EMPTY = { q: [], box: null, expand: 0, under: "", after: "", before: "", view: "" };

export function read() {
  const params = new URLSearchParams(location.search);
  const box = (params.get("box") || "").split(",").map(Number);
  return {
    q: params.getAll("q").filter((q) => /^(u[0-9a-f]{32}|[1-9]\d*)$/.test(q)).slice(0, 20),
    box: box.length === 4 && box.every(Number.isFinite) ? box : null,
    expand: Number(params.get("expand")) || 0,
    under: params.get("under") || "",
    after: params.get("after") || "",
    before: params.get("before") || "",
    view: params.get("view") || "",
  };
}

export function write(place) {
  const params = new URLSearchParams();
  for (const q of place.q) params.append("q", q);
  if (place.box) params.set("box", place.box.join(","));
  for (const name of ["expand", "under", "after", "before", "view"]) if (place[name]) params.set(name, place[name]);
  const text = params.toString().replaceAll("%2C", ",").replaceAll("%2F", "/");
  return text ? `./?${text}` : "./";
}

export function go(place, replace = false) {
  if (replace) history.replaceState(null, "", write(place));
  else if (write(place) !== write(read())) history.pushState(null, "", write(place));
}

export const fresh = (changes) => ({ ...EMPTY, ...changes });

// What the server is asked with: everything but what is being looked at.
export function wish(place) {
  const { q, box, expand, under, after, before } = place;
  return q.length
    ? { q, box: box && box.join(","), expand, under, after, before }
    : { under, after, before };
}
