// Talking to the server: JSON in, JSON out, and one kind of error with words for people.

export class Trouble extends Error {
  constructor(message, status = 0, retry = 0) {
    super(message);
    this.status = status; // 0: nobody answered
    this.retry = retry;
  }
}

export function address(path, params = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== null && one !== undefined && one !== "" && one !== 0) query.append(name, one);
    }
  }
  const text = query.toString();
  return `api/v1/${path}${text ? `?${text}` : ""}`;
}

export async function ask(path, params, options) {
  let answer;
  try {
    answer = await fetch(address(path, params), options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Trouble("The server does not answer. Is it still running?");
  }
  if (answer.ok) return answer.json();
  let detail = answer.statusText;
  try {
    detail = (await answer.json()).detail;
  } catch { /* not ours: a proxy in between */ }
  throw new Trouble(sentence(detail), answer.status, Number(answer.headers.get("Retry-After")));
}

export async function upload(file) {
  const form = new FormData();
  form.append("picture", file);
  for (let attempt = 0; ; attempt++) {
    try {
      return await ask("uploads", {}, { method: "POST", body: form });
    } catch (error) {
      if (error.status !== 503 || attempt === 4) throw error;
      await new Promise((done) => setTimeout(done, 1000 * Math.min(error.retry || 1, 10)));
    }
  }
}

export const isUpload = (q) => q.startsWith("u");
export const image = (q) => (isUpload(q) ? `api/v1/uploads/${q}/image` : `api/v1/pictures/${q}/image`);
export const thumbnail = (q) => (isUpload(q) ? image(q) : `api/v1/pictures/${q}/thumbnail`);

const sentence = (text) => {
  const line = String(text || "Something went wrong");
  return line[0].toUpperCase() + line.slice(1) + (/[.!?]$/.test(line) ? "" : ".");
};
