import { children, single, type Tree } from './tree';

/** Height of the line with a group's name. */
export const headHeight = 17;

/** Children with a smaller area, in square pixels, are drawn together. */
const leastArea = 9;

/** Rectangles of nodes in CSS pixels. Those of children come after those of their parents. */
export interface Cells {
  length: number;
  node: Int32Array;
  x: Float32Array;
  y: Float32Array;
  w: Float32Array;
  h: Float32Array;
  /** The kind of each rectangle. */
  kind: Uint8Array;
}

/** A group with its name above and children inside. */
export const head = 1;
/** A group without room for a name: children fill it. */
export const bare = 2;
/** A leaf, or a group that is too small for its children. */
export const block = 3;
/** Children of a group that are too small to be drawn one by one, together. */
export const rest = 4;
/** A group in an icicle: its children stand beside it. */
export const group = 5;

/** Collects cells. */
export class Builder {
  length = 0;
  node = new Int32Array(4096);
  kind = new Uint8Array(4096);
  box = new Float32Array(4 * 4096);

  add(node: number, kind: number, x: number, y: number, w: number, h: number) {
    if (this.length === this.node.length) {
      const grown = <A extends Int32Array | Uint8Array | Float32Array>(a: A): A => {
        const b = new (a.constructor as new (n: number) => A)(a.length * 2);
        b.set(a);
        return b;
      };
      this.node = grown(this.node);
      this.kind = grown(this.kind);
      this.box = grown(this.box);
    }
    const i = this.length++;
    this.node[i] = node;
    this.kind[i] = kind;
    this.box[4 * i] = x;
    this.box[4 * i + 1] = y;
    this.box[4 * i + 2] = w;
    this.box[4 * i + 3] = h;
  }

  cells(): Cells {
    const n = this.length;
    const column = (k: number) => new Float32Array(n).map((_, i) => this.box[4 * i + k]);
    return { length: n, node: this.node, kind: this.kind, x: column(0), y: column(1), w: column(2), h: column(3) };
  }
}

/** Lays out a node in a rectangle: squarified, areas by bytes, the largest child first. */
export function layout(t: Tree, root: number, width: number, height: number): Cells {
  const b = new Builder();
  // Rectangles that are still to be divided, as node, x, y, w, h.
  const todo: number[][] = [[root, 0, 0, width, height]];
  while (todo.length > 0) {
    const [top, x, y, w, h] = todo.pop()!;
    const n = top === root ? root : descend(t, top);
    if (t.row[n] >= 0 || w < 3 || h < 3) {
      b.add(n, block, x, y, w, h);
    } else if (n === root) {
      divide(t, n, x, y, w, h, b, todo);
    } else if (t.parent[top] === root ? w >= 26 && h >= 36 : w >= 44 && h >= 52) {
      b.add(n, head, x, y, w, h);
      divide(t, n, x + 2, y + headHeight, w - 4, h - headHeight - 2, b, todo);
    } else {
      b.add(n, bare, x, y, w, h);
      const gap = w >= 8 && h >= 8 ? 1 : 0;
      divide(t, n, x + gap, y + gap, w - 2 * gap, h - 2 * gap, b, todo);
    }
  }
  return b.cells();
}

/** The children of a node that have bytes, the largest first; equal ones in natural order. */
export function bySize(t: Tree, n: number): number[] {
  const nodes = children(t, n).filter((k) => t.bytes[k] > 0);
  return nodes.sort((a, b) => t.bytes[b] - t.bytes[a]);
}

/** Divides a rectangle among the children of a node. */
function divide(t: Tree, n: number, x: number, y: number, w: number, h: number, b: Builder, todo: number[][]) {
  if (w <= 0 || h <= 0) return;
  const nodes = bySize(t, n);
  const scale = (w * h) / t.bytes[n];
  let at = 0;
  while (at < nodes.length) {
    const short = Math.min(w, h);
    if (t.bytes[nodes[at]] * scale < leastArea || short < 1) {
      if (w >= 1 || h >= 1) b.add(n, rest, x, y, Math.max(w, 1), Math.max(h, 1));
      return;
    }
    // Take children into a row along the short side as long as they become more square.
    let sum = 0;
    let end = at;
    let worst = Infinity;
    for (; end < nodes.length; end++) {
      const area = t.bytes[nodes[end]] * scale;
      const s = sum + area;
      const thick = s / short;
      const most = (t.bytes[nodes[at]] * scale) / thick;
      const ratio = Math.max(most / thick, thick / (area / thick));
      if (ratio > worst) break;
      worst = ratio;
      sum = s;
    }
    const thick = sum / short;
    let along = 0;
    for (; at < end; at++) {
      const long = (t.bytes[nodes[at]] * scale) / thick;
      if (w >= h) todo.push([nodes[at], x, y + along, thick, long]);
      else todo.push([nodes[at], x + along, y, long, thick]);
      along += long;
    }
    if (w >= h) {
      x += thick;
      w -= thick;
    } else {
      y += thick;
      h -= thick;
    }
  }
}

/** The last cell at a point, or -1. */
export function cellAt(c: Cells, x: number, y: number): number {
  for (let i = c.length - 1; i >= 0; i--) {
    if (x >= c.x[i] && x < c.x[i] + c.w[i] && y >= c.y[i] && y < c.y[i] + c.h[i]) return i;
  }
  return -1;
}

/** Goes down while a node has one child only: such nodes are drawn as one. */
export function descend(t: Tree, n: number): number {
  while (single(t, n)) n++;
  return n;
}

/** The opposite of descend: the highest of the nodes, below root, that are drawn as one. */
export function ascend(t: Tree, n: number, root: number): number {
  while (n !== root && t.parent[n] !== root && single(t, t.parent[n])) n = t.parent[n];
  return n;
}
