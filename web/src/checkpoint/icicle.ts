import { children, single, type Tree } from './tree';
import { block, Builder, descend, group, rest, type Cells } from './treemap';

/** Room for the numbers of the axis. */
export const axisWidth = 58;

/** Levels that are drawn at most: as 'cairn plot' does, and as many as there is room for. */
const mostLevels = 8;
const leastWidth = 84;
/** Neighbours that are lower are drawn together. */
const leastHeight = 2;

/** Lays out a node as columns, a level in each: heights are bytes, in the order of names. */
export function icicle(t: Tree, root: number, width: number, height: number): Cells {
  const b = new Builder();
  const room = Math.max(2, Math.floor((width - axisWidth) / leastWidth));
  const levels = Math.max(1, Math.min(mostLevels, room, depths(t)[root]));
  const column = (width - axisWidth) / levels;
  const scale = height / Math.max(1, t.bytes[root]);
  // Nodes with children to be drawn, as node, level, y.
  const todo: number[][] = [[root, 0, 0]];
  while (todo.length > 0) {
    const [n, level, top] = todo.pop()!;
    const x = axisWidth + level * column;
    let y = top;
    let small = 0; // height of the neighbours that are too low
    const flush = () => {
      if (small >= 0.25) b.add(n, rest, x, y - small, width - x, small);
      small = 0;
    };
    for (const child of children(t, n)) {
      const k = descend(t, child);
      const h = t.bytes[k] * scale;
      if (h >= leastHeight) {
        flush();
        const leaf = t.row[k] >= 0;
        b.add(k, leaf ? block : group, x, y, leaf ? width - x : column, h);
        if (!leaf && level + 1 < levels) todo.push([k, level + 1, y]);
      } else {
        small += h;
      }
      y += h;
    }
    flush();
  }
  return b.cells();
}

/** The number of levels below each node; a node with one child is drawn with it. */
function depths(t: Tree): Int32Array {
  const d = new Int32Array(t.parent.length);
  for (let n = d.length - 1; n > 0; n--) {
    const own = single(t, n) ? d[n] - 1 : d[n];
    const p = t.parent[n];
    if (own + 1 > d[p]) d[p] = own + 1;
  }
  return d;
}

/** Round numbers of bytes from 0 to most, about six of them. */
export function ticks(most: number): number[] {
  let unit = 1;
  while (unit * 1024 <= most) unit *= 1024;
  let step = unit / 1024;
  for (const m of [2, 5, 10, 20, 50, 100, 200, 500, 1024, 2048, 5120, 10240, 20480, 51200, 102400, 204800]) {
    if (most / step <= 6) break;
    step = Math.max(1, (unit / 1024) * m);
  }
  return Array.from({ length: Math.floor(most / step) + 1 }, (_, i) => i * step);
}
