// Following the index: how many pictures, a sync going on, files that failed, whether the server answers at all.

import { ask } from "./api.js";
import { make } from "./grid.js";

const $ = (id) => document.getElementById(id);
const EVERY = 2500; // milliseconds

export class Follow {
  constructor({ changed, lost, back }) {
    Object.assign(this, { changed, lost, back, generation: null, down: false });
    $("failed").onclick = () => this.failures();
    $("failures").querySelector("button").onclick = () => $("failures").close();
    document.addEventListener("visibilitychange", () => !document.hidden && this.look());
    addEventListener("online", () => this.look());
    this.look();
  }

  async look() {
    clearTimeout(this.timer);
    if (document.hidden) return;
    try {
      this.show(await ask("status"));
      if (this.down) this.back();
      this.down = false;
    } catch (error) {
      if (!this.down) this.lost(error);
      this.down = true;
    }
    this.timer = setTimeout(() => this.look(), EVERY);
  }

  show(status) {
    const { sync, growing, pictures, failed } = status;
    const bar = $("progress");
    bar.hidden = !growing;
    bar.classList.toggle("unsure", !sync?.total);
    bar.style.width = sync?.total ? `${(100 * sync.done) / sync.total}%` : "";
    const left = sync?.left ? `, ${duration(sync.left)} left` : "";
    const going = sync?.total ? ` · ${sync.doing} ${sync.done.toLocaleString()} of ${sync.total.toLocaleString()}${left}` : growing ? " · growing" : "";
    const text = `${pictures.toLocaleString()} pictures${going}`;
    if ($("status").textContent !== text) $("status").textContent = text;
    $("failed").hidden = !failed;
    $("failed").textContent = `${failed.toLocaleString()} failed`;
    if (this.generation !== null && status.generation !== this.generation) this.changed();
    this.generation = status.generation;
  }

  async failures() {
    const list = $("failures").querySelector("dl");
    const told = await ask("failures", { k: 500 }).catch((error) => ({ failures: [{ path: "", reason: error.message }], total: 1 }));
    list.replaceChildren(...told.failures.flatMap(({ path, reason }) => [make("dt", "", path), make("dd", "", reason)]));
    if (told.total > told.failures.length) list.append(make("dt", "", `and ${(told.total - told.failures.length).toLocaleString()} more`));
    $("failures").showModal();
  }
}

const duration = (seconds) => (seconds < 90 ? `${Math.round(seconds)} s` : seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`);
