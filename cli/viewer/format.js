// Numbers and names as people read them, and colours that everybody can tell apart.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** Bytes with three digits or so. */
export function human(bytes) {
  let n = Number(bytes), unit = 0;
  while (Math.abs(n) >= 1024 && unit < UNITS.length - 1) {
    n /= 1024;
    unit++;
  }
  return unit === 0 ? `${n} B` : `${n.toFixed(2)} ${UNITS[unit]}`;
}

/** Nanoseconds. */
export function moment(ns) {
  if (!Number.isFinite(ns)) return "–";
  if (Math.abs(ns) >= 1e9) return `${(ns / 1e9).toFixed(3)} s`;
  if (Math.abs(ns) >= 1e6) return `${(ns / 1e6).toFixed(3)} ms`;
  if (Math.abs(ns) >= 1e3) return `${(ns / 1e3).toFixed(2)} µs`;
  return `${ns.toFixed(0)} ns`;
}

/** A count, in groups of three digits. */
export function count(n) {
  return String(Number(n)).replace(/\B(?=(\d{3})+$)/g, ",");
}

export function hex(address) {
  return `0x${BigInt(address).toString(16)}`;
}

export function escaped(text) {
  return String(text).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
}

/** A frame with the file's name only. */
export function short(frame) {
  return frame.replace(/\((?:[^()]*\/)?([^()/]+)\)$/, "($1)");
}

// Okabe and Ito's, which people of every colour vision tell apart; without their black and yellow, which one ground swallows each.
export const PALETTE = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8b8000", "#7f5f9e"];
export const OTHER = "#8a929c";

/** Black or white, whichever is read better on a colour. */
export function onto(colour) {
  const part = (i) => parseInt(colour.slice(i, i + 2), 16);
  return part(1) * 0.299 + part(3) * 0.587 + part(5) * 0.114 > 130 ? "#111111" : "#ffffff";
}

/** A colour of the style sheet. */
export function ink(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** A canvas as sharp as the screen; its context and its size in CSS pixels. */
export function sharp(canvas) {
  const scale = window.devicePixelRatio || 1, box = canvas.getBoundingClientRect();
  const width = Math.max(1, Math.round(box.width)), height = Math.max(1, Math.round(box.height));
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  const g = canvas.getContext("2d");
  g.setTransform(scale, 0, 0, scale, 0, 0);
  g.clearRect(0, 0, width, height);
  g.font = "11px system-ui, sans-serif";
  return [g, width, height];
}

/** Shows a text beside the pointer; without one, nothing. */
export function tip(event, text) {
  const box = document.getElementById("tip");
  box.hidden = !text;
  if (!text) return;
  box.textContent = text;
  const x = Math.min(event.clientX + 14, window.innerWidth - box.offsetWidth - 6);
  const y = Math.min(event.clientY + 14, window.innerHeight - box.offsetHeight - 6);
  box.style.left = `${Math.max(0, x)}px`;
  box.style.top = `${Math.max(0, y)}px`;
}
