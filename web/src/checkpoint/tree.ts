import type { NameForm, NamesAnswer } from '../lib/api';

/**
 * The tree of dotted names, as the server has made it. Node 0 is the root, the others are in
 * depth-first order, siblings in natural order. A row is the place of a name among the leaves.
 */
export interface Tree extends NamesAnswer {
  /** The parent of each node; -1 for the root. */
  parent: Int32Array;
  /** The nodes below n are n+1 to end[n]-1. */
  end: Int32Array;
  /** The row of a leaf; -1 for other nodes. */
  row: Int32Array;
  /** The node of each row. */
  node: Int32Array;
  /** The rows below n are low[n] to high[n]-1. */
  low: Int32Array;
  high: Int32Array;
  /** Bytes of the leaves at and below a node. A tied name has none: its first name has them. */
  bytes: Float64Array;
  /** The row of the largest leaf at or below a node. */
  largest: Int32Array;
}

/** Adds up the tree that the server has sent. */
export function unpack(a: NamesAnswer): Tree {
  const n = a.label.length + 1;
  const t: Tree = {
    ...a,
    parent: new Int32Array(n).fill(-1),
    end: new Int32Array(n),
    row: new Int32Array(n).fill(-1),
    node: new Int32Array(a.form.length),
    low: new Int32Array(n),
    high: new Int32Array(n),
    bytes: new Float64Array(n),
    largest: new Int32Array(n).fill(-1),
  };
  t.end[0] = n;
  let rows = 0;
  let above = 0; // the group that a node is in
  for (let k = 1; k < n; k++) {
    while (t.end[above] <= k) above = t.parent[above];
    const below = a.below[k - 1];
    t.parent[k] = above;
    t.end[k] = k + 1 + below;
    t.low[k] = rows;
    if (below > 0) above = k;
    else {
      t.row[k] = rows;
      t.node[rows++] = k;
    }
  }
  for (let k = 0; k < n; k++) t.high[k] = t.end[k] === n ? rows : t.low[t.end[k]];
  sums(t);
  return t;
}

function sums(t: Tree) {
  const most = new Float64Array(t.parent.length).fill(-1);
  const sizes = Float64Array.from(t.forms, (f) => f.bytes);
  const tied = Object.keys(t.tied).length > 0;
  for (let n = t.parent.length - 1; n >= 0; n--) {
    const r = t.row[n];
    if (r >= 0) {
      most[n] = t.bytes[n] = tied && t.tied[r] !== undefined ? 0 : sizes[t.form[r]];
      t.largest[n] = r;
    }
    const p = t.parent[n];
    if (p < 0) continue;
    t.bytes[p] += t.bytes[n];
    if (most[n] >= most[p]) {
      most[p] = most[n]; // the first of the largest
      t.largest[p] = t.largest[n];
    }
  }
}

/** The last part of a node's name. */
export function label(t: Tree, n: number): string {
  return n === 0 ? '' : t.labels[t.label[n - 1]];
}

/** The parts of names from a node down to another one. */
export function span(t: Tree, top: number, n: number): string {
  let text = label(t, n);
  for (let k = n; k !== top && t.parent[k] > 0; ) {
    k = t.parent[k];
    text = `${label(t, k)}.${text}`;
  }
  return text;
}

/** The whole name of a node, "" for the root. */
export function pathOf(t: Tree, n: number): string {
  return span(t, 0, n);
}

/** The name of a row. */
export function nameOf(t: Tree, row: number): string {
  return pathOf(t, t.node[row]);
}

/** The dtype, the shape and the size of a row. */
export function formOf(t: Tree, row: number): NameForm {
  return t.forms[t.form[row]];
}

/** The children of a node, in natural order. */
export function children(t: Tree, n: number): number[] {
  const list: number[] = [];
  for (let k = n + 1; k < t.end[n]; k = t.end[k]) list.push(k);
  return list;
}

/** Whether a node has one child only. */
export function single(t: Tree, n: number): boolean {
  return n + 1 < t.end[n] && t.end[n + 1] === t.end[n];
}

/** The node with a name, or the nearest one above it. A group is preferred to a leaf. */
export function find(t: Tree, path: string): number {
  let at = 0;
  let rest = path;
  for (;;) {
    let next = -1;
    for (const k of children(t, at)) {
      const text = label(t, k);
      const fits = rest === text || (t.row[k] < 0 && rest.startsWith(`${text}.`));
      if (fits && (next < 0 || t.row[next] >= 0)) next = k;
    }
    if (next < 0) return at;
    at = next;
    const length = label(t, at).length;
    if (rest.length === length) return at;
    rest = rest.slice(length + 1);
  }
}

/** The nodes from the root to n, both included. */
export function lineage(t: Tree, n: number): number[] {
  const line: number[] = [];
  for (let k = n; k >= 0; k = t.parent[k]) line.unshift(k);
  return line;
}
