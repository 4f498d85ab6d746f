import type { Chunk } from '../lib/api';

/** Chunks of a tensor as boxes in a plane: rows and columns are two of its dimensions. */
export interface Boxes {
  /** The dimensions of rows and columns; -1 if the tensor has no such dimension. */
  dims: [number, number];
  /** The sizes of these dimensions, at least 1. */
  size: [number, number];
  /** Dimensions that are cut but not shown: boxes may lie over each other. */
  hidden: number[];
  /** Dimensions that are not cut and not shown. */
  whole: number[];
  /** Of chunk i: rows y[i] to y[i]+h[i], columns x[i] to x[i]+w[i]. */
  x: Float64Array;
  y: Float64Array;
  w: Float64Array;
  h: Float64Array;
}

/** How many pieces each dimension is cut into. */
function pieces(shape: number[], chunks: Chunk[]): number[] {
  return shape.map((_, d) => new Set(chunks.map((c) => c.offsets?.[d] ?? 0)).size);
}

/** Chooses the two dimensions with the most pieces; among equals the last ones. */
function choose(shape: number[], cut: number[]): [number, number] {
  if (shape.length === 0) return [-1, -1];
  if (shape.length === 1) return [-1, 0];
  const byPieces = shape.map((_, d) => d).sort((a, b) => cut[b] - cut[a] || b - a);
  return [Math.min(byPieces[0], byPieces[1]), Math.max(byPieces[0], byPieces[1])];
}

/** Projects chunks onto the two dimensions that are cut most. */
export function project(shape: number[], chunks: Chunk[]): Boxes {
  const cut = pieces(shape, chunks);
  const dims = choose(shape, cut);
  const [r, c] = dims;
  const rest = shape.map((_, d) => d).filter((d) => d !== r && d !== c);
  const n = chunks.length;
  const b: Boxes = {
    dims,
    size: [r < 0 ? 1 : Math.max(1, shape[r]), c < 0 ? 1 : Math.max(1, shape[c])],
    hidden: rest.filter((d) => cut[d] > 1),
    whole: rest.filter((d) => cut[d] <= 1),
    x: new Float64Array(n),
    y: new Float64Array(n),
    w: new Float64Array(n).fill(1),
    h: new Float64Array(n).fill(1),
  };
  chunks.forEach((k, i) => {
    if (r >= 0) {
      b.y[i] = k.offsets?.[r] ?? 0;
      b.h[i] = k.sizes?.[r] ?? shape[r];
    }
    if (c >= 0) {
      b.x[i] = k.offsets?.[c] ?? 0;
      b.w[i] = k.sizes?.[c] ?? shape[c];
    }
  });
  return b;
}

/** The chunks with the point in their box, in order. */
export function at(b: Boxes, x: number, y: number): number[] {
  const found: number[] = [];
  for (let i = 0; i < b.x.length; i++) {
    if (x >= b.x[i] && x < b.x[i] + b.w[i] && y >= b.y[i] && y < b.y[i] + b.h[i]) found.push(i);
  }
  return found;
}

/** The nearest box in a direction from box i, or i. */
export function beside(b: Boxes, i: number, dx: number, dy: number): number {
  const cx = (k: number) => b.x[k] + b.w[k] / 2;
  const cy = (k: number) => b.y[k] + b.h[k] / 2;
  let best = i;
  let least = Infinity;
  for (let k = 0; k < b.x.length; k++) {
    const ahead = (cx(k) - cx(i)) * dx + (cy(k) - cy(i)) * dy;
    if (ahead <= 0) continue;
    const aside = Math.abs(cx(k) - cx(i)) * Math.abs(dy) + Math.abs(cy(k) - cy(i)) * Math.abs(dx);
    // A box straight ahead is nearer than any box aside.
    const straight = dx !== 0 ? b.y[k] < b.y[i] + b.h[i] && b.y[i] < b.y[k] + b.h[k] : b.x[k] < b.x[i] + b.w[i] && b.x[i] < b.x[k] + b.w[k];
    const far = ahead + aside + (straight ? 0 : 1e15);
    if (far < least) {
      least = far;
      best = k;
    }
  }
  return best;
}

/** The places at which a dimension is cut, with its end, in order. */
export function edges(offsets: Float64Array, end: number): number[] {
  return [...new Set([0, ...offsets, end])].sort((a, b) => a - b);
}

/** The box of a chunk as a Python index: [0:512, :]. */
export function range(k: Chunk, shape: number[] | undefined): string {
  if (!k.offsets || !k.sizes) return '';
  return `[${k.offsets.map((o, d) => (shape && o === 0 && k.sizes![d] === shape[d] ? ':' : `${o}:${o + k.sizes![d]}`)).join(', ')}]`;
}
