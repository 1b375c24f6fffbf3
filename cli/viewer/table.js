// The largest and the oldest of what lives at the moment shown, and what has grown until the end.
import { human, moment, count, hex, escaped } from "./format.js";

const ROWS = 60;

/** The `n` first by an order, without sorting all of them. */
export function first(all, n, before) {
  if (all.length <= 4 * n) return [...all].sort(before).slice(0, n);
  let best = [];
  for (const x of all) {
    best.push(x);
    if (best.length >= 4 * n) best = best.sort(before).slice(0, n);
  }
  return best.sort(before).slice(0, n);
}

export class Tables {
  constructor(box, view) {
    this.box = box;
    this.view = view;
  }

  draw() {
    const { view } = this, { store, meta } = view, alive = view.alive();
    const largest = first(alive, ROWS, (a, b) => store.bytes[b] - store.bytes[a] || a - b);
    const parts = [];
    if (meta.leaks) parts.push(this.leaks());
    parts.push(`<h2>The largest of ${count(alive.length)} allocations that live ${this.when()}</h2>`, this.rows(largest));
    if (meta.kind !== "snapshot") {
      const oldest = first(alive, ROWS, (a, b) => store.from[a] - store.from[b] || store.bytes[b] - store.bytes[a]);
      parts.push("<h2>The oldest</h2>", this.rows(oldest));
    }
    this.box.innerHTML = parts.join("");
  }

  when() {
    return this.view.meta.kind === "snapshot" ? "now" : `at ${moment(this.view.cursor)}`;
  }

  rows(lives) {
    const { view } = this, { store } = view;
    const row = (i) => `<tr><td class="n">${human(store.bytes[i])}</td><td class="n">${moment(view.cursor - store.from[i])}</td>` +
      `<td>${hex(store.address[i])}</td><td>${escaped(view.label("tag", i))}</td><td>${escaped(view.label("stream", i))}</td>` +
      `<td>${escaped(view.label("arena", i))}</td><td class="wide">${escaped(view.where(i))}</td></tr>`;
    const head = "<tr><th class=n>bytes</th><th class=n>age</th><th>address</th><th>tag</th><th>stream</th><th>arena</th><th>from</th></tr>";
    return `<table>${head}${lives.map(row).join("")}</table>`;
  }

  /** Groups by what they hold at the end, those that grew at every look first. */
  leaks() {
    const { view } = this, by = view.hasStacks ? "stack" : view.by === "none" ? "tag" : view.by;
    const all = [...view.meta.leaks[by]].sort((a, b) => Number(b.grows) - Number(a.grows) || b.bytes[3] - a.bytes[3]);
    const row = (l) => `<tr><td class="wide">${escaped(l.label)}</td>${l.bytes.map((b) => `<td class="n">${human(b)}</td>`).join("")}` +
      `<td class="n">${count(l.allocations)}</td><td class="n">${moment(l.oldest)}</td><td>${l.grows ? "grows" : ""}</td></tr>`;
    const head = `<tr><th>${by}</th><th class=n>at ¼</th><th class=n>at ½</th><th class=n>at ¾</th><th class=n>at the end</th>` +
      "<th class=n>allocations</th><th class=n>the oldest from</th><th></th></tr>";
    const none = all.length === 0 ? "<p>Nothing is live at the end.</p>" : "";
    return `<h2>Live at the end, by ${by}: what grows comes first</h2>${none}<table id="leaks">${all.length ? head : ""}` +
      `${all.slice(0, 30).map(row).join("")}</table>`;
  }
}
