// The data behind the page: columns of numbers, seven bits a byte, deflated. data.rs writes them.

/** Bytes of a block of the page. */
export async function inflate(base64) {
  const packed = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Every change and every allocation, in arrays that are filled block by block. */
export class Store {
  constructor(changes, lives) {
    this.at = new Float64Array(changes);
    // The allocation that begins, or the complement of the one that ends.
    this.what = new Int32Array(changes);
    this.live = new Float64Array(changes);
    this.changes = 0;
    this.bytes = new Float64Array(lives);
    this.address = new Float64Array(lives);
    this.from = new Float64Array(lives);
    this.to = new Float64Array(lives).fill(Infinity);
    this.stream = new Uint32Array(lives);
    this.tag = new Uint32Array(lives);
    this.arena = new Uint32Array(lives);
    this.stack = new Uint32Array(lives);
    this.thread = new Uint32Array(lives);
    this.device = new Uint8Array(lives);
    this.lives = 0;
    // The least and the most live bytes of each run of RUN changes.
    this.least = new Float64Array(Math.ceil(changes / RUN));
    this.most = new Float64Array(Math.ceil(changes / RUN));
    this.whole = changes === 0;
    this.lastTime = 0;
    this.lastAddress = 0;
    this.lastLive = 0;
  }

  /** Adds a block. */
  add(bytes) {
    let p = 0;
    const next = () => {
      let b = bytes[p++];
      if (b < 128) return b;
      let n = b & 127, scale = 128;
      do {
        b = bytes[p++];
        n += (b & 127) * scale;
        scale *= 128;
      } while (b >= 128);
      return n;
    };
    const changes = next(), lives = next(), first = this.changes, born = this.lives;
    const { at, what, live } = this;
    let begun = born;
    for (let i = first; i < first + changes; i++) {
      const code = next();
      what[i] = code === 0 ? begun++ : ~(begun - code);
    }
    for (let i = first; i < first + changes; i++) at[i] = this.lastTime += next();
    for (let i = born; i < born + lives; i++) this.bytes[i] = next();
    for (let i = born; i < born + lives; i++) {
      const n = next();
      this.lastAddress += n % 2 === 0 ? n / 2 : -(n + 1) / 2;
      this.address[i] = this.lastAddress;
    }
    for (const column of [this.stream, this.tag, this.arena, this.stack, this.thread, this.device]) {
      for (let i = born; i < born + lives; i++) column[i] = next();
    }
    for (let i = first; i < first + changes; i++) {
      const w = what[i];
      if (w >= 0) {
        this.from[w] = at[i];
        this.lastLive += this.bytes[w];
      } else {
        this.to[~w] = at[i];
        this.lastLive -= this.bytes[~w];
      }
      live[i] = this.lastLive;
    }
    this.changes += changes;
    this.lives += lives;
    for (let run = Math.floor(first / RUN); run * RUN < this.changes; run++) {
      let least = Infinity, most = 0;
      for (let i = run * RUN; i < Math.min((run + 1) * RUN, this.changes); i++) {
        if (live[i] < least) least = live[i];
        if (live[i] > most) most = live[i];
      }
      this.least[run] = least;
      this.most[run] = most;
    }
    this.whole = this.changes === this.at.length;
  }

  /** How many changes are not after a moment. */
  upTo(time) {
    let low = 0, high = this.changes;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.at[middle] <= time) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** Live bytes at a moment. */
  liveAt(time) {
    const n = this.upTo(time);
    return n === 0 ? 0 : this.live[n - 1];
  }

  /** The least and the most live bytes in changes i to j, and before them. */
  extremes(i, j) {
    let least = i === 0 ? 0 : this.live[i - 1], most = least;
    while (i < j) {
      if (i % RUN === 0 && i + RUN <= j) {
        const run = i / RUN;
        if (this.least[run] < least) least = this.least[run];
        if (this.most[run] > most) most = this.most[run];
        i += RUN;
      } else {
        const v = this.live[i++];
        if (v < least) least = v;
        if (v > most) most = v;
      }
    }
    return [least, most];
  }

  /** The allocations that live at a moment. */
  aliveAt(time) {
    const alive = [];
    for (let i = 0; i < this.lives && this.from[i] <= time; i++) if (time < this.to[i]) alive.push(i);
    return alive;
  }
}

export const RUN = 256;
