// Where everything is: addresses from left to right and from top to bottom, runs of them apart; live memory in the colour of its
// group, free memory grey, so that what is stranded between live blocks is seen.
import { human, moment, hex, ink, sharp, tip, OTHER } from "./format.js";

/** Addresses further apart than this are another run. */
const APART = 64 * 2 ** 20;
const LINE = 13;
/** Between runs, pixels. */
const GAP = 10;

export class AddressMap {
  constructor(canvas, view) {
    this.canvas = canvas;
    this.view = view;
    canvas.addEventListener("pointermove", (e) => {
      const box = canvas.getBoundingClientRect();
      const piece = this.at(e.clientX - box.left, e.clientY - box.top);
      tip(e, piece ? piece.text() : "");
    });
    canvas.addEventListener("pointerleave", (e) => tip(e, ""));
    canvas.addEventListener("click", (e) => {
      const box = canvas.getBoundingClientRect();
      const piece = this.at(e.clientX - box.left, e.clientY - box.top);
      this.chosen = piece ? piece.address : null;
      if (piece && this.view.chosen) this.view.chosen(piece);
      this.draw();
    });
  }

  /** What there is at the moment shown, in the order of addresses. */
  pieces() {
    const { view } = this, { store, meta } = view, pieces = [];
    const live = (i) => ({
      address: store.address[i], bytes: store.bytes[i], life: i, colour: view.colour(i),
      text: () => view.describe(i),
    });
    if (meta.kind === "snapshot") {
      for (const d of meta.devices) {
        for (const h of d.heaps) {
          for (const [address, bytes, what, note] of h.pieces) {
            if (what === "hole" || what === "live" || what === "dedicated") continue;
            const about = note ? `${note[1]} of ${note[2]} objects of ${human(note[0])} in use` : what;
            const text = () => `${hex(address)}, ${human(bytes)}: ${about}${h.heap === null ? "" : `, heap ${h.heap}`}`;
            const colour = what === "old addresses" ? ink("hole") : ink("free");
            pieces.push({ address, bytes, colour, text, free: what.startsWith("free") || what === "waiting" });
          }
        }
      }
    } else {
      for (const [address, bytes] of view.mappedAt()) {
        pieces.push({ address, bytes, colour: ink("free"), text: () => `${hex(address)}, ${human(bytes)} mapped and free`, under: true });
      }
    }
    for (const i of view.alive()) pieces.push(live(i));
    return pieces.sort((a, b) => a.address - b.address || b.bytes - a.bytes);
  }

  draw() {
    const [g, width, height] = sharp(this.canvas);
    const pieces = this.pieces();
    const runs = [];
    let end = -Infinity;
    for (const p of pieces) {
      if (p.bytes === 0) continue;
      if (p.address > end + APART) runs.push({ from: p.address, to: p.address, pieces: [] });
      const run = runs[runs.length - 1];
      run.pieces.push(p);
      run.to = Math.max(run.to, p.address + p.bytes);
      end = run.to;
    }
    // One run behind the other along the lines, with as few bytes to a pixel as the height allows, in powers of two.
    const room = Math.max(1, Math.floor((height - 4) / LINE)) * width, gap = Math.min(GAP, room / (4 * runs.length + 1));
    const length = (run, scale) => Math.max(1, Math.ceil((run.to - run.from) / scale)) + gap;
    let scale = 1;
    while (runs.reduce((sum, run) => sum + length(run, scale), 0) > room && scale < 2 ** 50) scale *= 2;
    let start = 0;
    this.drawn = { runs, scale, width };
    for (const run of runs) {
      run.start = start;
      this.paint(g, run, { address: run.from, bytes: run.to - run.from, colour: ink("hole"), whole: true });
      // What is mapped lies under what lives there, which may span several such pieces.
      for (const under of [true, false]) {
        for (const p of run.pieces) if (Boolean(p.under) === under) this.paint(g, run, p);
      }
      start += length(run, scale);
    }
    const alive = pieces.filter((p) => p.life !== undefined);
    const sum = alive.reduce((s, p) => s + p.bytes, 0);
    const at = this.view.meta.kind === "snapshot" ? "" : `at ${moment(this.view.cursor)}: `;
    const where = `${runs.length} run${runs.length === 1 ? "" : "s"} of addresses, ${human(scale)} to a pixel; grey is mapped and not live: free, or the old addresses of memory that has moved`;
    document.getElementById("map-hint").textContent =
      runs.length === 0 ? `${at}nothing is live` : `${at}${human(sum)} in ${alive.length} allocations; ${where}`;
  }

  paint(g, run, p) {
    const { scale, width } = this.drawn;
    g.fillStyle = p.colour || OTHER;
    let from = run.start + (p.address - run.from) / scale;
    const to = from + p.bytes / scale, small = to - from < 1;
    while (from < to) {
      const line = Math.floor(from / width), x = from - line * width, y = 2 + line * LINE;
      const part = Math.min(to - from, width - x);
      g.fillRect(x, y, small ? 1 : Math.max(0.6, part - (part > 3 && !p.whole ? 0.7 : 0)), LINE - 3);
      if (p.address === this.chosen && !p.whole) {
        g.strokeStyle = ink("text");
        g.lineWidth = 2;
        g.strokeRect(x + 1, y + 1, Math.max(2, part - 2), LINE - 5);
      }
      from += Math.max(part, 1e-9);
      if (small) break;
    }
  }

  /** The uppermost piece at a place. */
  at(x, y) {
    const { runs, scale, width } = this.drawn || { runs: [] };
    const along = Math.floor((y - 2) / LINE) * width + x;
    const run = runs.findLast((r) => r.start <= along);
    if (!run) return null;
    const address = run.from + (along - run.start) * scale;
    let found = null;
    for (const p of run.pieces) {
      if (p.address > address + scale || address >= p.address + Math.max(p.bytes, scale)) continue;
      if (!p.under || !found || found.under) found = p;
    }
    return found;
  }
}
