import type { Columns } from '../lib/api';
import type { Tree } from './tree';

/** What the filters above the table ask for. Empty means everything. */
export interface Query {
  q: string;
  not: string;
  /** dtypes with commas between them; "objects" is one, too. */
  dtype: string;
  min: string;
  max: string;
}

/** The names that a query matches. */
export interface Found {
  /** The rows, in the order of the sort. */
  rows: Int32Array;
  bytes: number;
  /** Of each row: 1 if it matches. */
  flags: Uint8Array;
  /** Whether the query leaves anything out, the node aside. */
  filtered: boolean;
}

/** Prepares the names for search, once. */
export function lowered(c: Columns): string[] {
  return c.names.map((n) => n.toLowerCase());
}

/**
 * Returns a function that tells whether a lower-case name matches a pattern: a part of the
 * name, or the whole name if the pattern has * or ?. Null if the pattern is empty.
 */
export function matcher(pattern: string): ((name: string) => boolean) | null {
  const p = pattern.trim().toLowerCase();
  if (p === '') return null;
  if (!/[*?]/.test(p)) return (name) => name.includes(p);
  // Each part between two stars takes the first place that fits, so that time is linear.
  const parts = p.split('*');
  const head = parts[0];
  if (parts.length === 1) return (name) => name.length === head.length && fits(name, 0, head);
  const tail = parts[parts.length - 1];
  const middle = parts.slice(1, -1).filter((s) => s !== '');
  return (name) => {
    if (name.length < head.length + tail.length) return false;
    const end = name.length - tail.length;
    if (!fits(name, 0, head) || !fits(name, end, tail)) return false;
    let at = head.length;
    for (const part of middle) {
      at = indexOf(name, part, at, end);
      if (at < 0) return false;
      at += part.length;
    }
    return true;
  };
}

/** Whether a part, in which ? is any character, is at a place of a name. */
function fits(name: string, at: number, part: string): boolean {
  if (!part.includes('?')) return name.startsWith(part, at);
  for (let i = 0; i < part.length; i++) {
    if (part[i] !== '?' && part[i] !== name[at + i]) return false;
  }
  return true;
}

function indexOf(name: string, part: string, from: number, end: number): number {
  if (!part.includes('?')) {
    const i = name.indexOf(part, from);
    return i >= 0 && i + part.length <= end ? i : -1;
  }
  for (let i = from; i + part.length <= end; i++) if (fits(name, i, part)) return i;
  return -1;
}

const units: Record<string, number> = {
  '': 1, k: 1e3, m: 1e6, g: 1e9, t: 1e12, p: 1e15,
  ki: 2 ** 10, mi: 2 ** 20, gi: 2 ** 30, ti: 2 ** 40, pi: 2 ** 50,
}; // prettier-ignore

/** Parses a number of bytes as the command line does: 64MiB, 5GB, 1.5g, 4096. NaN if it is none. */
export function size(text: string): number {
  const m = /^\s*(\d+\.?\d*|\.\d+)\s*([kmgtp]?i?)b?\s*$/i.exec(text);
  return m ? Number(m[1]) * (units[m[2].toLowerCase()] ?? NaN) : NaN;
}

/** Finds the rows at and below a node that match, in the order of all. lower returns the names for a search. */
export function search(c: Columns, lower: () => string[], t: Tree, node: number, query: Query, all: Int32Array): Found {
  const want = matcher(query.q);
  const avoid = matcher(query.not);
  const min = query.min.trim() === '' ? NaN : size(query.min);
  const max = query.max.trim() === '' ? NaN : size(query.max);
  const types = query.dtype === '' ? null : new Set(query.dtype.split(','));
  const keeps = Uint8Array.from(c.dtypes, (d) => Number(!types || types.has(d)));
  const keepsObjects = !types || types.has('objects');

  const tied = Object.keys(c.tied ?? {}).length > 0;

  const low = want || avoid ? lower() : [];
  const flags = new Uint8Array(c.names.length);
  let n = 0;
  let bytes = 0;
  for (let k = t.low[node]; k < t.high[node]; k++) {
    const i = t.order[k];
    const d = c.dtype[i];
    if (d < 0 ? !keepsObjects : keeps[d] === 0) continue;
    const b = c.bytes[i];
    if (b < min || b > max) continue; // a comparison with NaN is false
    if (want && !want(low[i])) continue;
    if (avoid && avoid(low[i])) continue;
    flags[i] = 1;
    n++;
    if (!tied || c.tied[i] === undefined) bytes += b;
  }
  const rows = new Int32Array(n);
  let at = 0;
  for (let k = 0; at < n; k++) if (flags[all[k]] === 1) rows[at++] = all[k];
  return { rows, bytes, flags, filtered: n < t.high[node] - t.low[node] };
}

/** All rows in the order of a column; "-" in front turns the order around. */
export function sortedBy(c: Columns, t: Tree, sort: string): Int32Array {
  const id = sort.replace('-', '');
  const key = sortKey(c, id);
  const order = t.order.slice();
  // The sort is stable: equal rows keep the natural order of names.
  if (key) {
    const sign = sort.startsWith('-') ? -1 : 1;
    order.sort((a, b) => sign * (key[a] - key[b]));
  } else if (sort === '-name') {
    order.reverse();
  }
  return order;
}

/** A number for each row that has the order of a column; null if the column is the name. */
function sortKey(c: Columns, id: string): ArrayLike<number> | null {
  const ranked = (texts: string[], index: ArrayLike<number>) => {
    const place = new Map([...new Set(texts)].sort().map((s, i) => [s, i]));
    return Float64Array.from(index, (d) => (d < 0 ? -1 : place.get(texts[d])!));
  };
  if (id === 'bytes') return c.bytes;
  if (id === 'chunks') return c.chunks;
  if (id === 'dtype') return ranked(c.dtypes, c.dtype);
  if (id === 'shape') {
    const elements = c.shapes.map((s) => s.reduce((a, b) => a * b, 1));
    return Float64Array.from(c.shape, (s) => (s < 0 ? -1 : elements[s]));
  }
  if (id === 'value') {
    const rows = Object.keys(c.values ?? {}).map(Number);
    const place = new Map([...new Set(rows.map((r) => c.values[r]))].sort().map((s, i) => [s, i]));
    return Float64Array.from(c.names, (_, i) => place.get(c.values?.[i]) ?? Infinity);
  }
  return null;
}
