import { num, type ComparisonAnswer, type Tensors } from '../lib/api';
import { number } from '../lib/format';
import { share } from '../run/measures';
import { Scale } from '../tensor/scale';
import { formOf, nameOf, type Tree } from './tree';

/** The measures that the colours of a map can show, besides the dtype. */
export type By = 'norm' | 'change' | 'nan';

/** A number of each row, and the colours for them. */
export interface Shade {
  /** The parameters of a picture with these colours. */
  plot: { color: By; against?: string };
  title: string;
  /** NaN: there is no value. */
  value: Float64Array;
  /** 1: there are infinities, 2: there are NaN. */
  mark: Uint8Array;
  /** Of level(value). */
  scale: Scale;
  level: (x: number) => number;
  /** Of a value of the scale. */
  text: (level: number) => string;
}

function shade(plot: Shade['plot'], title: string, value: Float64Array, mark: Uint8Array, shares: boolean): Shade {
  const log = !shares && value.some((x) => x > 0 && x < Infinity);
  let [low, high] = log ? [Infinity, -Infinity] : [0, 0];
  for (const x of value) {
    if (!Number.isFinite(x) || (log && x === 0)) continue;
    const y = log ? Math.log10(x) : x;
    [low, high] = [Math.min(low, y), Math.max(high, y)];
  }
  return {
    plot,
    title,
    value,
    mark,
    scale: new Scale(low, high, true),
    level: (x) => (log && x > 0 ? Math.log10(x) : log && x === 0 ? low : x), // zero has the lowest colour
    text: shares ? share : (y) => number(log ? 10 ** y : y, 3),
  };
}

/** The norm of each tensor, by element so that large tensors do not win, or its share of NaN and infinities. */
export function ofTensors(tree: Tree, t: Tensors, by: By): Shade {
  const elements = tree.form.map((_, row) => formOf(tree, row).shape?.reduce((a, b) => a * b, 1) ?? 0);
  const mark = Uint8Array.from(t.nan, (_, i) => (t.nan[i] > 0 ? 2 : t.inf[i] > 0 ? 1 : 0));
  if (by === 'norm') return shade({ color: by }, 'root mean square of the elements, logarithmic', Float64Array.from(t.l2, (x, i) => num(x) / Math.sqrt(elements[i])), mark, false);
  const odd = (i: number) => (t.l2[i] === null && mark[i] === 0 ? NaN : (t.nan[i] + t.inf[i]) / elements[i]);
  return shade({ color: by }, 'of the elements are NaN or infinite', Float64Array.from(t.nan, (_, i) => odd(i)), mark, true);
}

/** The relative change of each tensor. */
export function ofChanges(tree: Tree, a: ComparisonAnswer, against: string): Shade {
  const names = tree.form.map((_, row) => nameOf(tree, row));
  const places = new Map(a.items.names.map((name, i) => [name, i]));
  const value = Float64Array.from(names, (name: string) => {
    const i = places.get(name) ?? -1;
    return i < 0 || a.items.differing[i] < 0 ? (a.items.results[a.items.result[i]]?.status === 'identical' ? 0 : NaN) : num(a.items.rel_l2[i]);
  });
  const mark = Uint8Array.from(names, (name, row) => ((a.items.more[places.get(name) ?? -1]?.nans ?? 0) > 0 ? 2 : value[row] === Infinity ? 1 : 0));
  return shade({ color: 'change', against }, 'relative change ‖B−A‖ / ‖A‖, logarithmic', value, mark, false);
}

/** Of each node the largest value and mark of the rows below it. */
export function below(t: Tree, s: Shade): { value: Float64Array; mark: Uint8Array } {
  const value = new Float64Array(t.parent.length).fill(NaN);
  const mark = new Uint8Array(t.parent.length);
  for (let n = t.parent.length - 1; n >= 0; n--) {
    if (t.row[n] >= 0) [value[n], mark[n]] = [s.value[t.row[n]], s.mark[t.row[n]]];
    const p = t.parent[n];
    if (p < 0) continue;
    if (!(value[n] <= value[p]) && !Number.isNaN(value[n])) value[p] = value[n];
    mark[p] = Math.max(mark[p], mark[n]);
  }
  return { value, mark };
}
