// Who holds what is live at the moment shown: an icicle of call stacks, the outermost frame on top; without stacks, of device,
// arena, tag and stream.
import { human, moment, ink, onto, short, sharp, tip, PALETTE } from "./format.js";

const ROW = 19;

/** A tree of sums from paths. */
export function tree(entries) {
  const root = { name: "everything", bytes: 0, count: 0, children: new Map() };
  for (const [path, bytes] of entries) {
    let node = root;
    node.bytes += bytes;
    node.count++;
    for (const name of path) {
      let child = node.children.get(name);
      if (!child) node.children.set(name, (child = { name, bytes: 0, count: 0, children: new Map(), parent: node }));
      child.bytes += bytes;
      child.count++;
      node = child;
    }
  }
  return root;
}

function hash(text) {
  let h = 0;
  for (let i = 0; i < text.length; i++) h = (h * 31 + text.charCodeAt(i)) | 0;
  return Math.abs(h);
}

export class Flame {
  constructor(canvas, view) {
    this.canvas = canvas;
    this.view = view;
    this.path = [];
    const found = (e) => {
      const box = canvas.getBoundingClientRect();
      return this.at(e.clientX - box.left, e.clientY - box.top);
    };
    canvas.addEventListener("pointermove", (e) => {
      const node = found(e);
      const share = node ? ((100 * node.bytes) / Math.max(1, this.whole)).toFixed(1) : 0;
      tip(e, node ? `${node.name}\n${human(node.bytes)} in ${node.count} allocations, ${share} %` : "");
    });
    canvas.addEventListener("pointerleave", (e) => tip(e, ""));
    canvas.addEventListener("click", (e) => {
      const node = found(e);
      if (!node) return;
      this.path = [];
      for (let n = node; n && n.parent; n = n.parent) this.path.unshift(n.name);
      this.draw();
    });
  }

  out() {
    this.path.pop();
    this.draw();
  }

  draw() {
    const [g, width, height] = sharp(this.canvas);
    const { view } = this;
    const root = tree(view.alive().map((i) => [view.path(i), view.store.bytes[i]]));
    this.whole = root.bytes;
    let top = root;
    const known = [];
    for (const name of this.path) {
      const child = top.children.get(name);
      if (!child) break;
      known.push(name);
      top = child;
    }
    this.path = known;
    this.drawn = [];
    const put = (node, x, w, depth) => {
      if (w < 0.7 || (depth + 1) * ROW > height) return;
      const colour = PALETTE[hash(node.name) % PALETTE.length];
      g.fillStyle = depth === 0 ? ink("free") : colour;
      g.fillRect(x, depth * ROW, Math.max(0.7, w - 0.7), ROW - 1);
      if (w > 30) {
        g.save();
        g.beginPath();
        g.rect(x, depth * ROW, w - 4, ROW);
        g.clip();
        g.fillStyle = depth === 0 ? ink("text") : onto(colour);
        g.textAlign = "left";
        g.fillText(`${short(node.name)}  ${human(node.bytes)}`, x + 5, depth * ROW + 13);
        g.restore();
      }
      this.drawn.push({ node, x, w, y: depth * ROW });
      let at = x;
      for (const child of [...node.children.values()].sort((a, b) => b.bytes - a.bytes)) {
        const part = (w * child.bytes) / Math.max(1, node.bytes);
        put(child, at, part, depth + 1);
        at += part;
      }
    };
    put(top, 0, width, 0);
    const what = view.hasStacks ? "by call stack" : "by device, arena, tag and stream; GPUMEM_RECORD_STACKS=16 records call stacks";
    const at = view.meta.kind === "snapshot" ? "" : `at ${moment(view.cursor)}: `;
    document.getElementById("flame-hint").textContent = `${at}${human(root.bytes)} live, ${what}. A click goes in, Esc comes out.`;
  }

  at(x, y) {
    const hit = (this.drawn || []).find((d) => x >= d.x && x < d.x + d.w && y >= d.y && y < d.y + ROW);
    return hit ? hit.node : null;
  }
}
