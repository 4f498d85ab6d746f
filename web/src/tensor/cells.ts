// The cells of a heat map that the server sent: which elements they have, their values and colours.
import { num, type Heat } from '../lib/api';
import { count, number } from '../lib/format';
import { black, nanColor, type Scale } from './scale';

/** The number of its elements that a cell shows. */
export type Measure = 'mean' | 'min' | 'max' | 'abs';

export const measures: Record<Measure, string> = {
  mean: 'mean',
  min: 'least',
  max: 'largest',
  abs: 'largest magnitude',
};

/** The state of a cell. A cell with a NaN is a NaN, whatever else it has. */
export const enum Flag {
  number,
  nan,
  posInf,
  negInf,
  bothInf,
  nothing,
}

/** The first row (or column) of cell k, as the server divides lo…hi into n cells. */
export function edge([lo, hi]: [number, number], n: number, k: number): number {
  return lo + Math.floor((k * (hi - lo)) / n);
}

/** The cell that has row (or column) i, or -1. */
export function cellOf(range: [number, number], n: number, i: number): number {
  if (i < range[0] || i >= range[1]) return -1;
  let k = Math.min(n - 1, Math.floor(((i - range[0]) * n) / (range[1] - range[0])));
  while (k < n - 1 && edge(range, n, k + 1) <= i) k++;
  while (k > 0 && edge(range, n, k) > i) k--;
  return k;
}

/** The number that each cell shows; NaN if it has no finite element. */
export function values(h: Heat, m: Measure): Float64Array {
  const n = h.height * h.width;
  const out = new Float64Array(n);
  for (let i = 0; i < n; i++) {
    out[i] = m === 'abs' ? Math.max(Math.abs(num(h.min[i])), Math.abs(num(h.max[i]))) : num(h[m][i]);
  }
  return out;
}

export function flags(h: Heat, v: Float64Array): Uint8Array {
  const out = new Uint8Array(v.length);
  for (let i = 0; i < out.length; i++) {
    const plus = (h.pos_inf?.[i] ?? 0) > 0;
    const minus = (h.neg_inf?.[i] ?? 0) > 0;
    if ((h.nan?.[i] ?? 0) > 0) out[i] = Flag.nan;
    else if (plus && minus) out[i] = Flag.bothInf;
    else if (plus) out[i] = Flag.posInf;
    else if (minus) out[i] = Flag.negInf;
    else if (Number.isNaN(v[i])) out[i] = Flag.nothing;
  }
  return out;
}

/** A heat map that is ready to be drawn. */
export interface Layer {
  heat: Heat;
  values: Float64Array;
  flags: Uint8Array;
  colors: Uint32Array;
  /** Whether there are cells with infinities, which are hatched. */
  hatched: boolean;
}

export function layer(h: Heat, v: Float64Array, scale: Scale | undefined): Layer {
  const f = flags(h, v);
  const colors = new Uint32Array(v.length);
  let hatched = false;
  for (let i = 0; i < v.length; i++) {
    if (f[i] === Flag.nan) colors[i] = nanColor;
    else if (f[i] === Flag.number && scale) colors[i] = scale.color(v[i]);
    else if (f[i] !== Flag.nothing) {
      colors[i] = black;
      hatched = true;
    }
  }
  return { heat: h, values: v, flags: f, colors, hatched };
}

/** The least and the largest of numbers, without the outermost share of them at both ends. */
export function extent(v: Float64Array, without = 0): [number, number] | undefined {
  const finite = v.filter((x) => !Number.isNaN(x));
  if (finite.length === 0) return undefined;
  if (without > 0) {
    finite.sort();
    const k = Math.floor(finite.length * without);
    return [finite[k], finite[finite.length - 1 - k]];
  }
  let [lo, hi] = [Infinity, -Infinity];
  for (const x of finite) {
    if (x < lo) lo = x;
    if (x > hi) hi = x;
  }
  return [lo, hi];
}

export interface Count {
  nan: number;
  posInf: number;
  negInf: number;
}

/** The cells of a heat map that have elements of these rows and columns: their places in its lists. */
export function cellsIn(h: Heat, rows: [number, number], cols: [number, number]): Int32Array {
  const within = (of: [number, number], n: number, [lo, hi]: [number, number]) =>
    lo >= of[1] || hi <= of[0] ? [0, 0] : [cellOf(of, n, Math.max(of[0], lo)), cellOf(of, n, Math.min(of[1], hi) - 1) + 1];
  const [r0, r1] = within(h.rows, h.height, rows);
  const [c0, c1] = within(h.cols, h.width, cols);
  const out = new Int32Array((r1 - r0) * (c1 - c0));
  let n = 0;
  for (let r = r0; r < r1; r++) for (let c = c0; c < c1; c++) out[n++] = r * h.width + c;
  return out;
}

/** NaNs and infinities among the elements of some cells that were read. */
export function unusual(h: Heat, cells: Int32Array): Count {
  const sum = (a?: number[]) => (a ? cells.reduce((s, i) => s + a[i], 0) : 0);
  return { nan: sum(h.nan), posInf: sum(h.pos_inf), negInf: sum(h.neg_inf) };
}

/** A cell of a layer. */
export interface At {
  layer: Layer;
  row: number;
  col: number;
}

/** Whether each cell of a heat map is one element. */
export function single(h: Heat): boolean {
  return h.height === h.rows[1] - h.rows[0] && h.width === h.cols[1] - h.cols[0];
}

/** Describes a cell: its elements and their values. */
export function describe({ layer: { heat: h }, row, col }: At): string {
  const i = row * h.width + col;
  const odd = [`${h.nan?.[i] ?? 0} NaN`, `${h.pos_inf?.[i] ?? 0} inf`, `${h.neg_inf?.[i] ?? 0} -inf`].filter((t) => !t.startsWith('0 '));
  const where = [h.dims[0] >= 0 ? span('row', h.rows, h.height, row) : '', span(h.dims[0] >= 0 ? 'column' : 'element', h.cols, h.width, col)];
  let what: string[];
  if (single(h)) {
    what = [h.text?.[i] ?? odd[0]?.slice(2) ?? number(h.mean[i], 7)];
  } else {
    what = h.mean[i] === null ? [] : [`mean ${number(h.mean[i])}`, `least ${number(h.min[i])}`, `largest ${number(h.max[i])}`];
    what.push(...odd);
  }
  return `${where.filter(Boolean).join(', ')}: ${what.join(', ') || 'nothing was read'}`;
}

function span(what: string, range: [number, number], n: number, k: number): string {
  const [lo, hi] = [edge(range, n, k), edge(range, n, k + 1) - 1];
  return lo >= hi ? `${what} ${count(lo)}` : `${what}s ${count(lo)}–${count(hi)}`;
}

/** Says how much of the elements a heat map shows. */
export function precision(h: Heat): string {
  if (!h.exact) return `each cell shows a sample: ${count(h.read)} of ${count(h.elements)} elements were read`;
  if (single(h)) return 'exact: each cell is one element';
  return `exact: all ${count(h.elements)} elements in ${count(h.height * h.width)} cells`;
}
