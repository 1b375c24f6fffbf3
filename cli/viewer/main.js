// The page: reads the data, holds what is chosen, and has every pane draw it.
import { inflate, Store } from "./decode.js";
import { human, moment, count, hex, escaped, short, ink, PALETTE, OTHER } from "./format.js";
import { Timeline } from "./timeline.js";
import { AddressMap } from "./map.js";
import { Flame } from "./flame.js";
import { Tables } from "./table.js";
import { Slow } from "./slow.js";

const TABS = [["map", "Map"], ["flame", "Flame graph"], ["table", "Largest, oldest, leaks"], ["slow", "Slow path"], ["report", "Report"]];
const BY = ["none", "stream", "tag", "arena", "stack", "thread"];
const $ = (id) => document.getElementById(id);

class View {
  constructor(meta) {
    this.meta = meta;
    this.end = meta.end || 1;
    // The end is where a leak is seen; where nothing is left there, the peak says more.
    this.cursor = meta.totals && meta.totals.live_bytes === 0 ? meta.totals.peak_at_ns : this.end;
    this.by = "none";
    this.tab = meta.kind === "snapshot" ? "report" : "map";
    this.frames = meta.frames || [];
    this.store = meta.kind === "snapshot" ? this.snapshot() : new Store(meta.changes, meta.lives);
    this.hasStacks = this.frames.some((f) => f.length > 0);
    if (meta.kind !== "snapshot") this.timeline = new Timeline($("timeline"), this);
    this.panes = {
      map: new AddressMap($("map"), this),
      flame: new Flame($("flame"), this),
      table: new Tables($("table"), this),
      slow: new Slow($("slow"), this),
      report: { draw: () => this.report() },
    };
  }

  /** The allocations of a snapshot, as ones that have always been there. */
  snapshot() {
    const rows = this.meta.devices.flatMap((d) => d.allocations.map((a) => [d.device, ...a]));
    const store = new Store(0, rows.length), known = {};
    this.meta.labels = {};
    const label = (by, value, text) => {
      known[by] ||= new Map();
      this.meta.labels[by] ||= [];
      if (!known[by].has(value)) {
        known[by].set(value, this.meta.labels[by].length);
        this.meta.labels[by].push(text);
      }
      return known[by].get(value);
    };
    rows.forEach(([device, address, bytes, , , stream, tag, arena], i) => {
      store.address[i] = address;
      store.bytes[i] = bytes;
      store.device[i] = device;
      store.stream[i] = label("stream", stream, stream === "0x0" ? "legacy stream" : stream === "0x2" ? "per-thread stream" : `stream ${stream}`);
      store.tag[i] = label("tag", tag, tag === 0 ? "no tag" : `tag ${tag}`);
      store.arena[i] = label("arena", arena, arena === 0 ? "no arena" : `arena ${arena} ${this.meta.arenas[arena] || ""}`);
      store.stack[i] = label("stack", 0, "no stack");
      store.thread[i] = label("thread", 0, "any thread");
      store.lives = i + 1;
    });
    return store;
  }

  /** The largest groups of the chosen kind: their labels, and for each value the number of its group. */
  groups() {
    const by = this.by === "none" ? "tag" : this.by;
    if (this.grouped && this.grouped.by === by && this.grouped.lives === this.store.lives) return this.grouped;
    const labels = this.meta.labels[by] || [], sums = new Float64Array(labels.length), column = this.store[by];
    // By bytes times time: what holds much for long.
    for (let i = 0; i < this.store.lives; i++) {
      sums[column[i]] += this.store.bytes[i] * (Math.min(this.store.to[i], this.end) - this.store.from[i] + 1);
    }
    const order = [...sums.keys()].sort((a, b) => sums[b] - sums[a]);
    const number = new Array(Math.max(1, labels.length)).fill(PALETTE.length);
    order.slice(0, PALETTE.length).forEach((value, n) => (number[value] = n));
    const others = order.length > PALETTE.length;
    this.grouped = { by, lives: this.store.lives, others, groups: order.slice(0, PALETTE.length).map((v) => labels[v]), number };
    return this.grouped;
  }

  colour(life) {
    const { by, number } = this.groups();
    const n = number[this.store[by][life]];
    return n < PALETTE.length ? PALETTE[n] : OTHER;
  }

  label(by, life) {
    return (this.meta.labels[by] || [])[this.store[by][life]] || "";
  }

  /** The frames of an allocation's stack, outermost first; without stacks what else it is of. */
  path(life) {
    const frames = this.frames[this.store.stack[life]];
    if (this.hasStacks) return frames && frames.length ? [...frames].reverse() : ["no stack"];
    return [`device ${this.store.device[life]}`, this.label("arena", life), this.label("tag", life), this.label("stream", life)];
  }

  where(life) {
    const frames = this.frames[this.store.stack[life]] || [];
    return frames.slice(0, 4).map(short).join(" ← ");
  }

  describe(life) {
    const s = this.store, frames = this.frames[s.stack[life]] || [];
    const age = this.meta.kind === "snapshot" ? "" : `, from ${moment(s.from[life])} to ${Number.isFinite(s.to[life]) ? moment(s.to[life]) : "the end"}`;
    return [`${hex(s.address[life])}, ${human(s.bytes[life])} (${count(s.bytes[life])} bytes)${age}`,
      `${this.label("tag", life)}, ${this.label("stream", life)}, ${this.label("arena", life)}`, ...frames.slice(0, 8)].join("\n");
  }

  /** What lives at the moment shown. */
  alive() {
    const key = `${this.cursor} ${this.store.lives}`;
    if (this.aliveKey !== key) {
      this.aliveKey = key;
      this.aliveNow = this.store.aliveAt(this.cursor);
    }
    return this.aliveNow;
  }

  /** Ranges of addresses that are mapped at the moment shown, as far as the page knows every step. */
  mappedAt() {
    const { rows, all } = this.meta.slow;
    if (all > rows.length) return [];
    const mapped = new Map();
    for (const [t, kind, , bytes, , address] of rows) {
      if (t > this.cursor) break;
      const a = Number(address);
      if (kind === "map") mapped.set(a, bytes);
      else if (kind === "unmap") for (const [b, n] of mapped) if (b < a + bytes && b + n > a) mapped.delete(b);
    }
    return mapped;
  }

  /** Shows a moment; with `come`, in the timeline too. */
  look(time, come = false) {
    this.cursor = Math.min(Math.max(time, 0), this.end);
    if (come && this.timeline && (this.cursor < this.timeline.from || this.cursor > this.timeline.to)) {
      const width = this.timeline.to - this.timeline.from;
      this.timeline.show(this.cursor - width / 2, this.cursor + width / 2);
    }
    this.redraw();
  }

  /** To the change before or after the moment shown. */
  step(forward) {
    const s = this.store, n = s.upTo(this.cursor);
    if (forward && n < s.changes) this.look(s.at[n], true);
    if (!forward && n > 1) {
      // All changes of one moment are one step.
      let i = n - 1;
      while (i > 0 && s.at[i - 1] === s.at[n - 1]) i--;
      if (i > 0) this.look(s.at[i - 1], true);
    }
  }

  nextSlow() {
    const rows = (this.meta.slow || { rows: [] }).rows;
    const next = rows.find((r) => r[0] > this.cursor && (r[1] === "out of memory" || r[1] === "growth" || r[1] === "stitch" || r[1] === "trim"));
    if (next) this.look(next[0], true);
  }

  open(tab) {
    this.tab = tab;
    for (const [id] of TABS) {
      $(`pane-${id}`).hidden = id !== tab;
      $(`tab-${id}`).setAttribute("aria-selected", String(id === tab));
    }
    this.redraw();
  }

  choose(by) {
    this.by = by;
    $("by").value = by;
    this.redraw();
  }

  /** Draws in the next frame, once. */
  redraw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.draw();
    });
  }

  draw() {
    if (this.timeline) this.timeline.draw();
    else this.legend(null);
    // A pane below is dear with many allocations, so it is drawn when what it shows has changed.
    const key = [this.tab, this.cursor, this.by, this.store.lives, window.innerWidth, document.documentElement.dataset.theme].join(" ");
    if (key !== this.paneKey) {
      this.paneKey = key;
      this.panes[this.tab].draw();
    }
  }

  /** What the colours mean. */
  legend(stacked) {
    const parts = [];
    const add = (colour, text, style = "") => {
      const span = document.createElement("span"), i = document.createElement("i");
      i.style.cssText = `background:${colour};${style}`;
      span.append(i, text);
      span.title = text;
      parts.push(span);
    };
    if (this.by !== "none" && (stacked || !this.timeline)) {
      const { groups, others } = this.groups();
      groups.forEach((label, n) => add(PALETTE[n], label));
      if (others) add(OTHER, "all others");
    } else if (this.timeline) add(ink("accent"), "live bytes");
    if ((this.meta.mapped || []).length > 0) add("transparent", "mapped", `border-top:2px dashed ${ink("text")};height:0;width:22px;border-radius:0;vertical-align:middle`);
    $("legend").replaceChildren(...parts);
  }

  report() {
    const said = this.meta.report || [];
    $("report").innerHTML = said.map((s) => `<p>${escaped(s)}</p>`).join("") + this.settings();
  }

  settings() {
    const all = this.meta.settings || (this.meta.info || {}).settings || {};
    const row = ([name, value]) => `<tr><td>${escaped(name)}</td><td>${escaped(value) || "none"}</td></tr>`;
    return `<h2>Settings</h2><table>${Object.entries(all).map(row).join("")}</table>`;
  }

  figures() {
    const t = this.meta.totals, figures = [];
    const add = (id, name, value, text) => figures.push(`<div><dt>${name}</dt><dd id="${escaped(id)}" data-value="${escaped(value)}">${escaped(text)}</dd></div>`);
    if (t) {
      add("peak", "peak live", t.peak_live_bytes, human(t.peak_live_bytes));
      add("mapped", "peak mapped", t.peak_mapped_bytes, human(t.peak_mapped_bytes));
      add("live", "live at the end", t.live_bytes, `${human(t.live_bytes)} in ${count(t.live_allocations)}`);
      add("operations", "allocations, frees and resizes", t.operations, count(t.operations));
      add("failures", "failures", t.failures, count(t.failures));
      add("growths", "growths", t.growths, count(t.growths));
      add("stitches", "stitches", t.stitches, count(t.stitches));
      add("driver", "driver calls", t.driver_calls, `${count(t.driver_calls)} in ${moment(t.driver_nanoseconds)}`);
      add("lost", "events lost", t.lost ?? "", t.lost === null ? "not known" : count(t.lost));
    } else {
      for (const d of this.meta.devices) {
        const s = d.stats, of = this.meta.devices.length > 1 ? ` of device ${d.device}` : "";
        add(`live${d.device}`, `live${of}`, s.live, `${human(s.live)} in ${count(s.allocations)}`);
        add(`mapped${d.device}`, `mapped${of}`, s.mapped, human(s.mapped));
        add(`free${d.device}`, `free${of}`, s.free + s.waiting, human(s.free + s.waiting));
        add(`largest${d.device}`, `largest free block${of}`, s.largest_free, human(s.largest_free));
        add(`stranded${d.device}`, `stranded${of}`, d.stranded_bytes, human(d.stranded_bytes));
      }
    }
    $("figures").innerHTML = figures.join("");
  }
}

function keys(view) {
  const help = $("keys");
  $("help").onclick = () => help.showModal();
  $("theme").onclick = () => theme(view);
  document.addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey || e.target.tagName === "SELECT" || help.open) return;
    const time = view.timeline;
    const does = {
      ArrowLeft: () => time?.pan(e.shiftKey ? -1 : -0.1),
      ArrowRight: () => time?.pan(e.shiftKey ? 1 : 0.1),
      "+": () => time?.zoom(0.7), "=": () => time?.zoom(0.7), "-": () => time?.zoom(1 / 0.7),
      Home: () => time?.show(0, view.end),
      "[": () => view.step(false), "]": () => view.step(true),
      p: () => view.meta.totals && view.look(view.meta.totals.peak_at_ns, true),
      e: () => view.look(view.end, true),
      n: () => view.nextSlow(),
      g: () => view.choose(BY[(BY.indexOf(view.by) + 1) % BY.length]),
      t: () => theme(view),
      "?": () => help.showModal(),
      Escape: () => view.tab === "flame" && view.panes.flame.out(),
    };
    TABS.forEach(([id], i) => (does[String(i + 1)] = () => view.open(id)));
    const act = does[e.key] || does[e.key.toLowerCase()];
    if (act) {
      e.preventDefault();
      act();
    }
  });
}

function theme(view, chosen) {
  const root = document.documentElement;
  root.dataset.theme = chosen || (root.dataset.theme === "dark" ? "light" : "dark");
  view.redraw();
}

/** What the address says after #: tab, by, t (nanoseconds, or peak), theme, from, to. */
function asked(view) {
  const wanted = new URLSearchParams(location.hash.slice(1));
  if (wanted.get("theme")) theme(view, wanted.get("theme"));
  if (BY.includes(wanted.get("by"))) view.choose(wanted.get("by"));
  if (wanted.has("from") && view.timeline) view.timeline.show(Number(wanted.get("from")), Number(wanted.get("to")));
  const t = wanted.get("t");
  if (t) view.look(t === "peak" ? (view.meta.totals?.peak_at_ns ?? view.end) : Number(t));
  if (TABS.some(([id]) => id === wanted.get("tab"))) view.open(wanted.get("tab"));
}

async function start() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  const meta = JSON.parse(new TextDecoder().decode(await inflate($("meta").textContent)));
  const view = new View(meta);
  // For tests, and to look further in the console.
  window.viewer = view;
  const command = (meta.command || (meta.info || {}).command || []).join(" ");
  const pid = meta.pid || (meta.info || {}).pid;
  $("about").textContent = [meta.kind, pid ? `process ${pid}` : "", command].filter(Boolean).join(" · ");
  if (meta.faults) {
    $("faults").hidden = false;
    $("faults").textContent = meta.faults;
  }
  $("by").innerHTML = BY.map((b) => `<option value="${b}">${b === "none" ? "nothing" : b}</option>`).join("");
  $("by").onchange = (e) => view.choose(e.target.value);
  $("tabs").innerHTML = TABS.map(([id, name], i) => `<button role="tab" id="tab-${id}" title="${i + 1}">${name}</button>`).join("");
  TABS.forEach(([id]) => ($(`tab-${id}`).onclick = () => view.open(id)));
  $("time").hidden = meta.kind === "snapshot";
  view.figures();
  keys(view);
  view.open(view.tab);
  asked(view);
  new ResizeObserver(() => view.redraw()).observe(document.body);
  document.body.dataset.ready = "first";
  document.body.dataset.firstMs = String(Math.round(performance.now()));
  for (let i = 0; i < (meta.chunks || 0); i++) {
    view.store.add(await inflate($(`chunk${i}`).textContent));
    $(`chunk${i}`).remove();
    $("progress").textContent = i + 1 < meta.chunks ? `reading: ${Math.round((100 * (i + 1)) / meta.chunks)} %` : "";
    // The page answers meanwhile.
    if (i % 4 === 3) await new Promise((go) => setTimeout(go));
  }
  asked(view);
  // When the mark is there, everything is drawn.
  view.draw();
  document.body.dataset.ready = "all";
  document.body.dataset.allMs = String(Math.round(performance.now()));
}

start();
