// The part of a matrix that is in sight. Its edges are fractions of elements while somebody zooms.

export interface Window {
  r0: number;
  r1: number;
  c0: number;
  c1: number;
}

export type Size = [rows: number, cols: number];

export function whole(size: Size): Window {
  return { r0: 0, r1: size[0], c0: 0, c1: size[1] };
}

export function isWhole(w: Window, size: Size): boolean {
  return w.r0 <= 0 && w.c0 <= 0 && w.r1 >= size[0] && w.c1 >= size[1];
}

/** Moves a window into the matrix and gives it at least the least size. */
function clamp(w: Window, size: Size, least: Size): Window {
  const [r0, r1] = axis(w.r0, w.r1, size[0], least[0]);
  const [c0, c1] = axis(w.c0, w.c1, size[1], least[1]);
  return { r0, r1, c0, c1 };
}

function axis(lo: number, hi: number, size: number, least: number): [number, number] {
  const span = Math.min(size, Math.max(least, hi - lo));
  const middle = (lo + hi) / 2;
  const from = Math.max(0, Math.min(size - span, hi - lo < span ? middle - span / 2 : lo));
  return [from, from + span];
}

/** Zooms by a factor; the element (r, c) stays where it is. */
export function zoom(w: Window, factor: number, r: number, c: number, size: Size, least: Size): Window {
  // An axis that is as large as it may be does not move either.
  const span = (lo: number, hi: number, all: number, min: number) =>
    Math.min(all, Math.max(Math.min(all, min), (hi - lo) / factor)) / (hi - lo);
  const fr = span(w.r0, w.r1, size[0], least[0]);
  const fc = span(w.c0, w.c1, size[1], least[1]);
  const z = { r0: r - (r - w.r0) * fr, r1: r + (w.r1 - r) * fr, c0: c - (c - w.c0) * fc, c1: c + (w.c1 - c) * fc };
  return clamp(z, size, least);
}

export function pan(w: Window, rows: number, cols: number, size: Size): Window {
  return clamp({ r0: w.r0 + rows, r1: w.r1 + rows, c0: w.c0 + cols, c1: w.c1 + cols }, size, [0, 0]);
}

/**
 * The size of the picture of a matrix. Elements are squares, unless one side is more than three
 * times as long as the other: then the picture takes the room that there is. Few elements stay small.
 */
export function plotSize([rows, cols]: Size, room: number, most: number): { width: number; height: number } {
  const unit = Math.min(room / cols, most / rows, 96);
  if (rows <= 3 * cols && cols <= 3 * rows) return { width: cols * unit, height: rows * unit };
  return { width: Math.min(room, Math.max(60, cols * 96)), height: Math.min(most, Math.max(40, rows * 36)) };
}

/** The whole rows and columns that a window touches, as "LO:HI". */
export function bounds(w: Window): { rows: [number, number]; cols: [number, number] } {
  const out = (lo: number, hi: number): [number, number] => [Math.floor(lo + 1e-6), Math.ceil(hi - 1e-6)];
  return { rows: out(w.r0, w.r1), cols: out(w.c0, w.c1) };
}

/** Reads "LO:HI" of an address. Undefined if it is not a part of [0, size). */
export function parseRange(text: string | undefined, size: number): [number, number] | undefined {
  const m = /^(\d+):(\d+)$/.exec(text ?? '');
  if (!m) return undefined;
  const lo = Number(m[1]);
  const hi = Math.min(size, Number(m[2]));
  return lo < hi ? [lo, hi] : undefined;
}

/**
 * Reads the index of an address, such as "0, :, :": a number for each dimension that is fixed and
 * ":" for the shown ones. Otherwise the last two dimensions are shown, at the first index of the rest.
 */
export function parseIndex(text: string | undefined, shape: number[]): (number | ':')[] {
  const parts = (text ?? '').split(',').map((p) => p.trim());
  const shown = Math.min(2, shape.length);
  const good =
    parts.length === shape.length &&
    parts.filter((p) => p === ':').length === shown &&
    parts.every((p, d) => p === ':' || (/^\d+$/.test(p) && Number(p) < shape[d]));
  if (good) return parts.map((p) => (p === ':' ? ':' : Number(p)));
  return shape.map((_, d) => (d >= shape.length - shown ? ':' : 0));
}

/** Writes a range for an address; "" if it is all of [0, size). */
export function rangeText([lo, hi]: [number, number], size: number): string {
  return lo === 0 && hi === size ? '' : `${lo}:${hi}`;
}

const mostCells = 120_000; // which keeps answers small

/**
 * How many cells to ask for: at most one per pixel, about as many elements in each, and few enough
 * for a quick answer.
 */
export function cellsFor(b: { rows: [number, number]; cols: [number, number] }, width: number, height: number) {
  const rows = b.rows[1] - b.rows[0];
  const cols = b.cols[1] - b.cols[0];
  let perRow = Math.ceil(rows / Math.min(height, 1024)); // elements in a cell
  let perCol = Math.ceil(cols / Math.min(width, 1024));
  const size = () => ({ height: Math.ceil(rows / perRow), width: Math.ceil(cols / perCol) });
  while (size().height * size().width > mostCells) {
    // The axis with the smaller cells, in pixels, gets larger ones.
    const { height: h, width: w } = size();
    const grow = Math.min(1.5, 1.05 * Math.sqrt((h * w) / mostCells));
    if (height / h <= width / w) perRow = Math.ceil(perRow * grow);
    else perCol = Math.ceil(perCol * grow);
  }
  return size();
}
