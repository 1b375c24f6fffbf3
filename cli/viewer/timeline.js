// Memory over time: live bytes as a band from the least to the most of each pixel, or stacked by group; mapped bytes as a line; slow
// steps and failures as marks above.
import { human, moment, ink, sharp, tip, PALETTE, OTHER } from "./format.js";

const LEFT = 78, TOP = 16, BOTTOM = 22;
/** More changes than this in the window are not walked through for the stacked picture; the one of the whole is shown. */
const WALK = 600000;
/** Columns of the stacked picture of a part, and of the whole, which serves for large parts too. */
const COLUMNS = 900, WHOLE = 6000;

export class Timeline {
  constructor(canvas, view) {
    this.canvas = canvas;
    this.view = view;
    this.from = 0;
    this.to = view.end;
    this.stacks = new Map();
    this.listen();
  }

  /** Shows a part, not less than a few nanoseconds and not more than all. */
  show(from, to) {
    const all = this.view.end, width = Math.min(Math.max(to - from, 20), all);
    this.from = Math.min(Math.max(from, 0), all - width);
    this.to = this.from + width;
    this.view.redraw();
  }

  zoom(factor, at = (this.from + this.to) / 2) {
    this.show(at - (at - this.from) * factor, at + (this.to - at) * factor);
  }

  pan(part) {
    const d = (this.to - this.from) * part;
    this.show(this.from + d, this.to + d);
  }

  x(time) {
    return LEFT + ((time - this.from) / (this.to - this.from)) * (this.width - LEFT);
  }

  time(x) {
    return this.from + ((x - LEFT) / (this.width - LEFT)) * (this.to - this.from);
  }

  listen() {
    const c = this.canvas;
    let held = null;
    const x = (e) => e.clientX - c.getBoundingClientRect().left;
    c.addEventListener("wheel", (e) => {
      e.preventDefault();
      this.zoom(Math.exp(e.deltaY * 0.0015), this.time(x(e)));
    }, { passive: false });
    c.addEventListener("pointerdown", (e) => {
      c.setPointerCapture(e.pointerId);
      held = { x: x(e), from: this.from, to: this.to, moved: false, select: e.shiftKey };
    });
    c.addEventListener("pointermove", (e) => {
      if (!held) {
        const t = this.time(x(e));
        tip(e, t < 0 || t > this.view.end ? "" : `${moment(t)}\n${human(this.view.store.liveAt(t))} live`);
        return;
      }
      const d = x(e) - held.x;
      held.moved ||= Math.abs(d) > 3;
      if (held.select) {
        this.marked = [this.time(held.x), this.time(x(e))].sort((a, b) => a - b);
        this.view.redraw();
      } else if (held.moved) {
        const t = (d / (this.width - LEFT)) * (held.to - held.from);
        this.show(held.from - t, held.to - t);
      }
    });
    c.addEventListener("pointerup", (e) => {
      if (held && held.select && this.marked) this.show(...this.marked);
      else if (held && !held.moved) this.view.look(this.time(x(e)));
      this.marked = null;
      held = null;
    });
    c.addEventListener("pointerleave", (e) => tip(e, ""));
    c.addEventListener("dblclick", () => this.show(0, this.view.end));
  }

  draw() {
    const [g, width, height] = sharp(this.canvas);
    this.width = width;
    const { store, meta } = this.view;
    const mapped = meta.mapped || [];
    const bands = this.bands(width);
    const most = Math.max(1, ...bands.map((b) => b[1]), ...this.mappedIn(mapped));
    const y = (bytes) => height - BOTTOM - (bytes / (most * 1.05)) * (height - BOTTOM - TOP);
    this.grid(g, width, height, most, y);
    g.save();
    g.beginPath();
    g.rect(LEFT, 0, width - LEFT, height - BOTTOM);
    g.clip();
    const stacked = this.view.by !== "none" && store.whole && store.lives > 0 ? this.stacked() : null;
    if (stacked) this.drawStacked(g, stacked, y);
    else {
      g.fillStyle = ink("accent");
      g.globalAlpha = 0.35;
      g.beginPath();
      bands.forEach(([least], i) => g.lineTo(LEFT + i, y(least)));
      g.lineTo(LEFT + bands.length, y(0));
      g.lineTo(LEFT, y(0));
      g.fill();
      g.globalAlpha = 1;
      bands.forEach(([least, most], i) => g.fillRect(LEFT + i, y(most) - 0.5, 1, Math.max(1.5, y(least) - y(most))));
    }
    this.line(g, mapped, y);
    this.marks(g, height, y);
    g.restore();
    this.view.legend(stacked);
  }

  /** The least and the most live bytes of each pixel. */
  bands(width) {
    const { store, meta } = this.view, bands = [];
    const columns = Math.max(1, Math.floor(width - LEFT));
    if (!store.whole && meta.first) {
      const { buckets, least, most } = meta.first, end = this.view.end;
      for (let i = 0; i < columns; i++) {
        const t = this.from + ((i + 0.5) / columns) * (this.to - this.from);
        const b = Math.min(buckets - 1, Math.floor((t / end) * buckets));
        bands.push([least[b], most[b]]);
      }
      return bands;
    }
    let from = store.upTo(this.from);
    for (let i = 0; i < columns; i++) {
      const to = store.upTo(this.from + ((i + 1) / columns) * (this.to - this.from));
      bands.push(store.extremes(from, to));
      from = to;
    }
    return bands;
  }

  mappedIn(mapped) {
    let most = 0;
    for (let i = 0; i < mapped.length; i++) {
      const until = i + 1 < mapped.length ? mapped[i + 1][0] : Infinity;
      if (until >= this.from && mapped[i][0] <= this.to) most = Math.max(most, mapped[i][1]);
    }
    return [most];
  }

  grid(g, width, height, most, y) {
    g.strokeStyle = ink("grid");
    g.fillStyle = ink("soft");
    g.lineWidth = 1;
    let step = 2 ** Math.floor(Math.log2(most / 4));
    if (most / step > 6) step *= 2;
    g.textAlign = "right";
    for (let v = 0; v <= most * 1.05; v += step) {
      g.beginPath();
      g.moveTo(LEFT, y(v) + 0.5);
      g.lineTo(width, y(v) + 0.5);
      g.stroke();
      g.fillText(human(v), LEFT - 6, y(v) + 4);
    }
    g.textAlign = "center";
    const span = this.to - this.from, raw = span / 8, power = 10 ** Math.floor(Math.log10(raw));
    const tick = [1, 2, 5, 10].map((m) => m * power).find((t) => t >= raw);
    for (let t = Math.ceil(this.from / tick) * tick; t <= this.to; t += tick) {
      g.fillText(moment(t), Math.min(Math.max(this.x(t), LEFT + 24), width - 30), height - 7);
    }
  }

  line(g, mapped, y) {
    if (mapped.length === 0) return;
    g.strokeStyle = ink("text");
    g.lineWidth = 1.2;
    g.setLineDash([5, 3]);
    g.beginPath();
    let last = 0, lastX = -1;
    g.moveTo(this.x(0), y(0));
    for (const [t, bytes] of mapped) {
      if (t > this.to) break;
      const x = this.x(t);
      // Several in a pixel: the last of them is enough.
      if (x - lastX >= 0.5 || bytes > last) {
        g.lineTo(x, y(last));
        g.lineTo(x, y(bytes));
        lastX = x;
      }
      last = bytes;
    }
    g.lineTo(this.x(this.view.end), y(last));
    g.stroke();
    g.setLineDash([]);
  }

  marks(g, height, y) {
    const { meta, cursor } = this.view;
    for (const [t, kind, , bytes] of (meta.slow || { rows: [] }).rows) {
      if (t < this.from || t > this.to) continue;
      const failed = kind === "out of memory";
      if (!failed && (kind === "map" || kind === "unmap" || kind === "create" || kind === "release" || kind === "set access")) continue;
      g.fillStyle = failed ? ink("bad") : ink("soft");
      const x = this.x(t);
      if (failed) {
        g.beginPath();
        g.moveTo(x, TOP - 2);
        g.lineTo(x - 6, 1);
        g.lineTo(x + 6, 1);
        g.fill();
        g.fillRect(x - 0.5, TOP - 2, 1, height);
      } else g.fillRect(x - 0.5, 3, 1, bytes > 0 ? 9 : 5);
    }
    const totals = meta.totals;
    if (totals && totals.peak_at_ns >= this.from && totals.peak_at_ns <= this.to) {
      const x = this.x(totals.peak_at_ns), top = y(totals.peak_live_bytes);
      g.fillStyle = ink("text");
      g.beginPath();
      g.arc(x, top, 3.5, 0, 7);
      g.fill();
      g.textAlign = x > this.width - 130 ? "right" : "left";
      const said = `peak ${human(totals.peak_live_bytes)}`, right = g.textAlign === "right", wide = g.measureText(said).width;
      const at = x + (right ? -7 : 7), line = Math.max(TOP + 8, top - 4);
      // The line of mapped bytes may cross it.
      g.fillStyle = ink("ground");
      g.fillRect(right ? at - wide - 2 : at - 2, line - 11, wide + 4, 14);
      g.fillStyle = ink("text");
      g.fillText(said, at, line);
    }
    const x = this.x(cursor);
    g.fillStyle = ink("text");
    g.fillRect(x - 0.5, 0, 1, height);
    if (this.marked) {
      g.globalAlpha = 0.2;
      g.fillRect(this.x(this.marked[0]), 0, this.x(this.marked[1]) - this.x(this.marked[0]), height);
      g.globalAlpha = 1;
    }
  }

  /** Live bytes by group in columns of the window: the groups, and for each a value per column. */
  stacked() {
    const { store, by } = this.view;
    const inside = store.upTo(this.to) - store.upTo(this.from);
    const part = inside <= WALK ? [this.from, this.to] : [0, this.view.end];
    const key = `${by} ${part[0]} ${part[1]}`;
    if (!this.stacks.has(key)) {
      if (this.stacks.size > 8) this.stacks.clear();
      const columns = part[0] === 0 && part[1] === this.view.end ? WHOLE : COLUMNS;
      this.stacks.set(key, stack(store, store[by], this.view.groups(), part[0], part[1], columns));
    }
    return { ...this.stacks.get(key), from: part[0], to: part[1] };
  }

  drawStacked(g, { columns, from, to }, y) {
    const n = columns[0].length, below = new Float64Array(n), step = (to - from) / n;
    const first = Math.max(0, Math.floor((this.from - from) / step)), last = Math.min(n, Math.ceil((this.to - from) / step));
    columns.forEach((values, group) => {
      g.fillStyle = group < PALETTE.length ? PALETTE[group] : OTHER;
      g.beginPath();
      const x = (i) => this.x(from + i * step);
      for (let i = first; i < last; i++) {
        g.lineTo(x(i), y(below[i] + values[i]));
        g.lineTo(x(i + 1), y(below[i] + values[i]));
      }
      for (let i = last - 1; i >= first; i--) {
        g.lineTo(x(i + 1), y(below[i]));
        g.lineTo(x(i), y(below[i]));
        below[i] += values[i];
      }
      g.fill();
    });
  }
}

/** For each of equal parts of the time, live bytes by group at the moment of the part at which most is live. */
export function stack(store, column, { number }, from, to, parts) {
  const size = number.reduce((most, n) => Math.max(most, n), 0) + 1;
  const columns = Array.from({ length: size }, () => new Float64Array(parts));
  const live = new Float64Array(size);
  let i = store.upTo(from);
  for (let l = 0; l < store.lives && store.from[l] <= from; l++) {
    if (from < store.to[l]) live[number[column[l]]] += store.bytes[l];
  }
  const until = store.upTo(to);
  for (let c = 0; c < parts; c++) {
    const end = from + ((c + 1) / parts) * (to - from);
    // The moment at which most was live stands for the part.
    let sum = 0, most = -1;
    for (let n = 0; n < size; n++) sum += live[n];
    const keep = () => {
      most = sum;
      for (let n = 0; n < size; n++) columns[n][c] = live[n];
    };
    keep();
    while (i < until && store.at[i] <= end) {
      const w = store.what[i], l = w >= 0 ? w : ~w, bytes = w >= 0 ? store.bytes[l] : -store.bytes[l];
      live[number[column[l]]] += bytes;
      sum += bytes;
      if (sum > most) keep();
      i++;
    }
  }
  return { columns };
}
