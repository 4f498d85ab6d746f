import { objects } from './colors';
import type { Tree } from './tree';

/** The values of the filters above the table. An empty one matches everything. */
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

/** The names in lower case, by row. */
export function lowered(t: Tree): string[] {
  const parts = t.labels.map((text) => text.toLowerCase());
  const above: string[] = [''];
  const names: string[] = [];
  for (let n = 1; n < t.parent.length; n++) {
    const text = above[t.parent[n]] + parts[t.label[n - 1]];
    if (t.row[n] >= 0) names.push(text);
    else above[n] = text + '.';
  }
  return names;
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
export function search(t: Tree, lower: () => string[], node: number, query: Query, all: Int32Array): Found {
  const want = matcher(query.q);
  const avoid = matcher(query.not);
  const min = query.min.trim() === '' ? NaN : size(query.min);
  const max = query.max.trim() === '' ? NaN : size(query.max);
  const types = query.dtype === '' ? null : new Set(query.dtype.split(','));
  // A comparison with NaN is false.
  const keeps = Uint8Array.from(t.forms, (f) => Number((!types || types.has(f.dtype ?? objects)) && !(f.bytes < min || f.bytes > max)));
  const tied = Object.keys(t.tied).length > 0;

  const low = want || avoid ? lower() : [];
  const flags = new Uint8Array(t.form.length);
  let n = 0;
  let bytes = 0;
  for (let i = t.low[node]; i < t.high[node]; i++) {
    const f = t.form[i];
    if (keeps[f] === 0) continue;
    if (want && !want(low[i])) continue;
    if (avoid && avoid(low[i])) continue;
    flags[i] = 1;
    n++;
    if (!tied || t.tied[i] === undefined) bytes += t.forms[f].bytes;
  }
  const rows = new Int32Array(n);
  let at = 0;
  for (let k = 0; at < n; k++) if (flags[all[k]] === 1) rows[at++] = all[k];
  return { rows, bytes, flags, filtered: n < t.high[node] - t.low[node] };
}

/** All rows in the order of a column; "-" in front turns the order around. */
export function sortedBy(t: Tree, sort: string): Int32Array {
  const key = sortKey(t, sort.replace('-', ''));
  const order = new Int32Array(t.form.length);
  for (let i = 0; i < order.length; i++) order[i] = i;
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
function sortKey(t: Tree, id: string): ArrayLike<number> | null {
  const ofForms = (key: number[]) => t.form.map((f) => key[f]);
  if (id === 'bytes') return ofForms(t.forms.map((f) => f.bytes));
  if (id === 'chunks') return ofForms(t.forms.map((f) => f.chunks));
  if (id === 'dtype') return ofForms(places(t.forms.map((f) => f.dtype), -1));
  if (id === 'shape') return ofForms(t.forms.map((f) => f.shape?.reduce((a, b) => a * b, 1) ?? -1));
  if (id === 'value') return places(t.form.map((_, i) => t.values[i]), Infinity);
  return null;
}

/** The places of texts in their order; none is the place of a missing text. */
function places(texts: (string | undefined)[], none: number): number[] {
  const sorted = [...new Set(texts.filter((s) => s !== undefined))].sort();
  const place = new Map(sorted.map((s, i) => [s, i]));
  return texts.map((s) => (s === undefined ? none : place.get(s)!));
}
