import type { Columns } from '../lib/api';

/** Names are split at this many dots at most, so that a hostile name makes no deep tree. */
const deepest = 48;

/**
 * The tree of dotted names, in arrays: node 0 is the root, and parents come before children.
 * Rows are indexes of Columns.
 */
export interface Tree {
  names: string[];
  /** The parent of each node; -1 for the root. */
  parent: Int32Array;
  /** The row of a leaf; -1 for other nodes. */
  row: Int32Array;
  /** The name of node n is names[of[n]].slice(0, end[n]), its last part starts at start[n]. */
  of: Int32Array;
  start: Int32Array;
  end: Int32Array;
  /** Bytes of the leaves at and below a node. A tied name has none: its first name has them. */
  bytes: Float64Array;
  /** The row of the largest leaf at or below a node. */
  largest: Int32Array;
  /** Children of n, in natural order: children[first[n]] to children[first[n+1]-1]. */
  first: Int32Array;
  children: Int32Array;
  /** All rows in natural order; the leaves below n are order[low[n]] to order[high[n]-1]. */
  order: Int32Array;
  low: Int32Array;
  high: Int32Array;
}

/** Builds the tree of the names of some rows, or of all. */
export function build(columns: Columns, rows?: Int32Array<ArrayBuffer>): Tree {
  return grow(columns, rows) ?? grow(columns, inOrder(columns.names, rows))!;
}

/** Builds the tree of rows whose names are in order; null if they are not. */
function grow(columns: Columns, rows?: Int32Array<ArrayBuffer>): Tree | null {
  const names = columns.names;
  const count = rows?.length ?? names.length;
  let size = count * 2 + 64;
  let parent = new Int32Array(size);
  let row = new Int32Array(size);
  let of = new Int32Array(size);
  let start = new Int32Array(size);
  let end = new Int32Array(size);
  let n = 1;
  parent[0] = -1;
  row[0] = -1;

  const add = (p: number, r: number, leaf: boolean, from: number, to: number): number => {
    if (n === size) {
      size *= 2;
      const larger = (a: Int32Array<ArrayBuffer>) => {
        const b = new Int32Array(size);
        b.set(a);
        return b;
      };
      [parent, row, of, start, end] = [larger(parent), larger(row), larger(of), larger(start), larger(end)];
    }
    parent[n] = p;
    row[n] = leaf ? r : -1;
    of[n] = r;
    start[n] = from;
    end[n] = to;
    return n++;
  };

  // The nodes above the name before: all names of a prefix follow each other.
  const path = new Int32Array(deepest + 2);
  let depth = 0;
  let before = '';
  for (let k = 0; k < count; k++) {
    const r = rows ? rows[k] : k;
    const name = names[r];
    let same = 0; // characters that both names share
    const most = Math.min(name.length, before.length);
    while (same < most && name.charCodeAt(same) === before.charCodeAt(same)) same++;
    if (same < before.length && (same === name.length || name.charCodeAt(same) < before.charCodeAt(same))) return null;
    // A node is shared if the name goes on with a dot after it.
    while (depth > 0 && (end[path[depth]] > same || name.charCodeAt(end[path[depth]]) !== 46)) depth--;
    let from = depth === 0 ? 0 : end[path[depth]] + 1;
    while (depth < deepest) {
      const dot = name.indexOf('.', from);
      if (dot < 0) break;
      path[depth + 1] = add(path[depth], r, false, from, dot);
      depth++;
      from = dot + 1;
    }
    add(path[depth], r, true, from, name.length);
    before = name;
  }

  const t: Tree = {
    names,
    parent: parent.slice(0, n),
    row: row.slice(0, n),
    of: of.slice(0, n),
    start: start.slice(0, n),
    end: end.slice(0, n),
    bytes: new Float64Array(n),
    largest: new Int32Array(n).fill(-1),
    first: new Int32Array(n + 1),
    children: new Int32Array(n - 1),
    order: new Int32Array(count),
    low: new Int32Array(n),
    high: new Int32Array(n),
  };
  sums(t, columns);
  link(t);
  number(t);
  return t;
}

/** The rows in the order of names, for a server that does not send them in order. */
function inOrder(names: string[], rows = Int32Array.from(names, (_, i) => i)): Int32Array<ArrayBuffer> {
  // UTF-16 units decide, as in grow.
  return new Int32Array(rows).sort((a, b) => (names[a] < names[b] ? -1 : names[a] > names[b] ? 1 : 0));
}

function sums(t: Tree, c: Columns) {
  const most = new Float64Array(t.parent.length).fill(-1);
  const tied = Object.keys(c.tied ?? {}).length > 0;
  for (let n = t.parent.length - 1; n >= 0; n--) {
    const r = t.row[n];
    if (r >= 0) {
      t.bytes[n] = tied && c.tied[r] !== undefined ? 0 : c.bytes[r];
      t.largest[n] = r;
      most[n] = t.bytes[n];
    }
    const p = t.parent[n];
    if (p < 0) continue;
    t.bytes[p] += t.bytes[n];
    if (most[n] > most[p]) {
      most[p] = most[n];
      t.largest[p] = t.largest[n];
    }
  }
}

/** Lists the children of each node, in natural order. */
function link(t: Tree) {
  const n = t.parent.length;
  for (let k = 1; k < n; k++) t.first[t.parent[k] + 1]++;
  for (let k = 0; k < n; k++) t.first[k + 1] += t.first[k];
  const next = t.first.slice();
  for (let k = 1; k < n; k++) t.children[next[t.parent[k]]++] = k;
  for (let k = 0; k < n; k++) {
    if (!inNaturalOrder(t, k)) sortNaturally(t, t.children.subarray(t.first[k], t.first[k + 1]));
  }
}

/** Whether the children of a node are in order: most are. */
function inNaturalOrder(t: Tree, n: number): boolean {
  for (let i = t.first[n] + 1; i < t.first[n + 1]; i++) {
    if (compareParts(t, t.children[i - 1], t.children[i]) > 0) return false;
  }
  return true;
}

/** Sorts siblings so that 2 comes before 10. */
function sortNaturally(t: Tree, nodes: Int32Array) {
  // The text before the first number and the number decide, then the order that they have.
  const heads: string[] = [];
  const numbers = new Float64Array(nodes.length).fill(-1);
  nodes.forEach((k, i) => {
    const name = t.names[t.of[k]];
    const end = t.end[k];
    let at = t.start[k];
    while (at < end && !isDigit(name.charCodeAt(at))) at++;
    heads.push(name.slice(t.start[k], at));
    if (at < end) numbers[i] = digits(name, at, end);
  });
  const places = Int32Array.from(nodes, (_, i) => i);
  places.sort((a, b) => (heads[a] === heads[b] ? numbers[a] - numbers[b] : heads[a] < heads[b] ? -1 : 1));
  nodes.set(places.map((i) => nodes[i]));
}

/** Compares the first numbers in the last parts of two nodes, if the text before them is equal. */
function compareParts(t: Tree, a: number, b: number): number {
  const x = t.names[t.of[a]];
  const y = t.names[t.of[b]];
  const xe = t.end[a];
  const ye = t.end[b];
  let i = t.start[a];
  let k = t.start[b];
  for (; i < xe && k < ye; i++, k++) {
    const c = x.charCodeAt(i);
    const d = y.charCodeAt(k);
    if (isDigit(c) && isDigit(d)) return digits(x, i, xe) - digits(y, k, ye);
    if (c !== d) return 0;
  }
  return 0;
}

/** The number that starts at a place of a text. */
function digits(s: string, at: number, end: number): number {
  let v = 0;
  for (; at < end && isDigit(s.charCodeAt(at)); at++) v = v * 10 + s.charCodeAt(at) - 48;
  return v;
}

function isDigit(c: number): boolean {
  return c >= 48 && c <= 57;
}

/** Sets order, low and high. */
function number(t: Tree) {
  const leaves = new Int32Array(t.parent.length);
  for (let n = t.parent.length - 1; n >= 0; n--) {
    if (t.row[n] >= 0) leaves[n] = 1;
    if (n > 0) leaves[t.parent[n]] += leaves[n];
  }
  for (let n = 0; n < t.parent.length; n++) {
    let at = t.low[n];
    t.high[n] = at + leaves[n];
    if (t.row[n] >= 0) t.order[at] = t.row[n];
    for (let i = t.first[n]; i < t.first[n + 1]; i++) {
      t.low[t.children[i]] = at;
      at += leaves[t.children[i]];
    }
  }
}

/** The whole name of a node, "" for the root. */
export function pathOf(t: Tree, n: number): string {
  return n === 0 ? '' : t.names[t.of[n]].slice(0, t.end[n]);
}

/** The last part of a node's name. */
export function label(t: Tree, n: number): string {
  return n === 0 ? '' : t.names[t.of[n]].slice(t.start[n], t.end[n]);
}

export function childCount(t: Tree, n: number): number {
  return t.first[n + 1] - t.first[n];
}

/** The node with a name, or the nearest one above it. A group is preferred to a leaf. */
export function find(t: Tree, path: string): number {
  let at = 0;
  for (;;) {
    let next = -1;
    for (let i = t.first[at]; i < t.first[at + 1]; i++) {
      const k = t.children[i];
      const e = t.end[k];
      if ((path.length === e || path[e] === '.') && path.startsWith(pathOf(t, k))) {
        if (next < 0 || t.row[next] >= 0) next = k;
      }
    }
    if (next < 0 || (t.row[next] >= 0 && path.length !== t.end[next])) return at;
    at = next;
    if (path.length === t.end[at]) return at;
  }
}

/** The nodes from the root to n, both included. */
export function lineage(t: Tree, n: number): number[] {
  const line: number[] = [];
  for (let k = n; k >= 0; k = t.parent[k]) line.unshift(k);
  return line;
}
