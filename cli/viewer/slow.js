// What the slow path did and what it cost; of a snapshot, the last events.
import { human, moment, count, escaped, hex } from "./format.js";

const LISTED = 400;

export class Slow {
  constructor(box, view) {
    this.box = box;
    this.view = view;
    box.addEventListener("click", (e) => {
      const row = e.target.closest("tr[data-at]");
      if (row) view.look(Number(row.dataset.at), true);
    });
  }

  draw() {
    const { meta } = this.view;
    this.box.innerHTML = meta.kind === "snapshot" ? this.events() : this.steps();
  }

  steps() {
    const { meta } = this.view, { rows, all } = meta.slow;
    const kinds = new Map();
    for (const [, kind, ns, bytes] of rows) {
      const k = kinds.get(kind) || { n: 0, ns: 0, most: 0, bytes: 0 };
      kinds.set(kind, { n: k.n + 1, ns: k.ns + ns, most: Math.max(k.most, ns), bytes: k.bytes + bytes });
    }
    const sums = [...kinds].sort((a, b) => b[1].ns - a[1].ns).map(([kind, k]) =>
      `<tr><td>${kind}</td><td class="n">${count(k.n)}</td><td class="n">${moment(k.ns)}</td><td class="n">${moment(k.most)}</td>` +
      `<td class="n">${human(k.bytes)}</td></tr>`).join("");
    const longest = [...rows].sort((a, b) => (b[1] === "out of memory") - (a[1] === "out of memory") || b[2] - a[2]).slice(0, LISTED);
    const list = longest.map(([t, kind, ns, bytes, thread, address]) =>
      `<tr class="link" data-at="${t}"><td class="n">${moment(t)}</td><td>${kind}</td><td class="n">${moment(ns)}</td>` +
      `<td class="n">${human(bytes)}</td><td>${address}</td><td class="n">${thread}</td></tr>`).join("");
    const kept = all > rows.length ? ` of the ${count(rows.length)} longest of ${count(all)}` : "";
    return `<h2>Steps of the slow path${kept}</h2><table><tr><th>step</th><th class=n>how often</th><th class=n>time</th>` +
      `<th class=n>the longest</th><th class=n>bytes</th></tr>${sums}</table><h2>The longest</h2><table><tr><th class=n>at</th>` +
      `<th>step</th><th class=n>took</th><th class=n>bytes</th><th>address</th><th class=n>thread</th></tr>${list}</table>`;
  }

  events() {
    const list = [...this.view.meta.events].reverse().slice(0, LISTED).map((e) =>
      `<tr><td class="n">${moment(e.time_ns)}</td><td>${escaped(e.event)}</td><td class="n">${human(e.bytes)}</td>` +
      `<td>${hex(e.address)}</td><td class="n">${escaped(e.thread)}</td><td class="n">${escaped(e.tag || "")}</td></tr>`).join("");
    const none = list ? "" : "<p>No events were kept; GPUMEM_SNAPSHOT_ON=oom keeps the last ones.</p>";
    return `<h2>The last events, the latest first</h2>${none}<table><tr><th class=n>at</th><th>event</th><th class=n>bytes</th>` +
      `<th>address</th><th class=n>thread</th><th class=n>tag</th></tr>${list}</table>`;
  }
}
