// The results of a comparison for each name, ready for the chart and the table.
import { num, type Compared, type Comparison } from '../lib/api';
import { count, naturalKey } from '../lib/format';

export type Status = Compared['status'];

/** The results for a name, in the order of the buttons, with their meanings. */
export const statuses: Record<Status, string> = {
  missing: 'only in A',
  extra: 'only in B',
  different: 'different',
  close: 'close',
  matching: 'matching, values not compared',
  identical: 'identical',
};

/**
 * The relative change of a name: ‖B−A‖ / ‖A‖. It is undefined if no elements were compared: for
 * objects, for names that one side lacks, and if shapes differ.
 */
export function change(x: Compared): number {
  if (x.values) return num(x.values.rel_l2);
  return NaN;
}

/** 1 − cosine, at least 0. */
export function turn(x: Compared): number {
  return x.values ? Math.max(0, 1 - num(x.values.cosine)) : NaN;
}

export function largest(x: Compared): number {
  if (!x.values) return NaN;
  return x.values.differing === 0 ? 0 : num(x.values.max_abs);
}

export function share(x: Compared): number {
  if (!x.values) return NaN;
  return x.values.elements === 0 ? 0 : x.values.differing / x.values.elements;
}

/** The filter of names with elements that are NaN or infinite. */
export const odd = { id: 'odd', title: 'with NaN or ∞' };
export const isOdd = (x: Compared) => (x.values?.nonfinite ?? 0) > 0;

/** Says how many elements are NaN or infinite; "" if none are. */
export function nans(x: Compared): string {
  if (!x.values || !isOdd(x)) return '';
  const { nans, nonfinite } = x.values;
  return nans === nonfinite ? `${count(nans)} NaN on one side` : `${count(nonfinite)} NaN or ∞${nans > 0 ? `, ${count(nans)} NaN on one side` : ''}`;
}

/** The values of an object in both, if they are known and differ. */
export function objects(x: Compared): string {
  if (x.a?.kind !== 'object' || x.b?.kind !== 'object' || x.status === 'identical') return '';
  return x.a.repr && x.b.repr ? `${x.a.repr} → ${x.b.repr}` : '';
}

/**
 * For sorting: names that could not be compared by their elements and differ are beyond all
 * numbers, and names with NaN or infinities are beyond these.
 */
export function rank(x: Compared, value: number): number {
  if (isOdd(x)) return Infinity;
  if (!Number.isNaN(value)) return Math.min(value, Number.MAX_VALUE);
  return x.status === 'identical' || x.status === 'close' || x.status === 'matching' ? -1 : Number.MAX_VALUE;
}

/** Compares numbers of which both may be infinite. */
export const compareNumbers = (a: number, b: number) => (a < b ? -1 : a > b ? 1 : 0);

/** Dtypes and shapes, if they differ. */
export function forms(x: Compared): string {
  if (!x.a || !x.b) return '';
  const parts: string[] = [];
  if (x.a.kind !== x.b.kind) parts.push(`${x.a.kind} → ${x.b.kind}`);
  else if (x.a.dtype !== x.b.dtype) parts.push(`${x.a.dtype} → ${x.b.dtype}`);
  const [sa, sb] = [`[${x.a.shape ?? ''}]`, `[${x.b.shape ?? ''}]`];
  if (x.a.shape && x.b.shape && sa !== sb) parts.push(`${sa} → ${sb}`);
  return parts.join(', ');
}

/** The layer of a name: up to and with its first number; without a number, all but the last component. */
export function layerOf(name: string): string {
  const parts = name.split('.');
  const n = parts.findIndex((p) => /^\d+$/.test(p));
  if (n >= 0) return parts.slice(0, n + 1).join('.');
  return parts.length > 1 ? parts.slice(0, -1).join('.') : name;
}

/** The kind of a parameter: the last two components of its name, without its layer if that has a number. */
export function kindOf(name: string): string {
  const layer = layerOf(name);
  const rest = /(^|\.)\d+$/.test(layer) ? name.slice(layer.length + 1) : name;
  return (rest || name).replace(/(^|\.)\d+(?=\.|$)/g, '$1*').split('.').slice(-2).join('.');
}

/** A dot of the chart. */
export interface Dot {
  item: Compared;
  change: number;
  kind: number;
}

export interface Dots {
  dots: Dot[];
  /** The kinds with the most dots; the last one stands for all others if there are more. */
  kinds: string[];
  /** The first dot of each layer. */
  layers: { at: number; name: string }[];
}

const most = 7;

/** The tensors of a comparison with compared elements, in natural order. */
export function dots(r: Comparison): Dots {
  const items = r.items
    .filter((x) => !Number.isNaN(change(x)))
    .map((x) => ({ x, key: naturalKey(x.fqn) }))
    .sort((a, b) => (a.key < b.key ? -1 : a.key > b.key ? 1 : 0))
    .map(({ x }) => x);
  const number = new Map<string, number>();
  const kinds = items.map((x) => kindOf(x.fqn));
  for (const k of kinds) number.set(k, (number.get(k) ?? 0) + 1);
  const top = [...number].sort((a, b) => b[1] - a[1]).map(([k]) => k);
  const shown = top.length > most + 1 ? [...top.slice(0, most), `${top.length - most} other kinds`] : top;
  const index = new Map(top.map((k, i) => [k, Math.min(i, shown.length - 1)]));
  const layers: Dots['layers'] = [];
  items.forEach((x, at) => {
    const name = layerOf(x.fqn);
    if (layers.at(-1)?.name !== name) layers.push({ at, name });
  });
  return { dots: items.map((item, i) => ({ item, change: change(item), kind: index.get(kinds[i])! })), kinds: shown, layers };
}
