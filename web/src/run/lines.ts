// The lines of a run: which checkpoint goes on from which one, as lanes beside the table.
import type { RunCheckpoint } from '../lib/api';
import { readable } from './log';

/** A line in the cell of a row: from one lane to another, between percentages of the height. */
export interface Stroke {
  from: number;
  to: number;
  y1: number;
  y2: number;
  left: boolean;
}

export interface Row {
  /** The lane of the checkpoint; -1: it is not complete, and has no place in the history. */
  lane: number;
  strokes: Stroke[];
  /** The strokes between this row and the next one. */
  below: Stroke[];
}

export interface Lines {
  rows: Row[];
  lanes: number;
}

/** Checkpoints of one line that was left, by their rows: the oldest first. */
interface Branch {
  rows: number[];
  /** The row from which it goes off; -1: unknown. */
  parent: number;
  lane: number;
}

/** Draws the lines of checkpoints, the newest first. undefined: the run has only one line. */
export function draw(checkpoints: RunCheckpoint[]): Lines | undefined {
  if (!checkpoints.some((c) => c.left)) return undefined;
  const rows = checkpoints.map((): Row => ({ lane: -1, strokes: [], below: [] }));
  const current = checkpoints.flatMap((c, i) => (readable(c) && !c.left ? [i] : []));
  for (const i of current) rows[i].lane = 0;

  const found = branches(checkpoints);
  const lanes = settle(found);
  for (const b of found) for (const i of b.rows) rows[i].lane = b.lane;

  for (let k = 1; k < current.length; k++) join(rows, current[k - 1], current[k], false);
  for (const b of found) {
    for (let k = 1; k < b.rows.length; k++) join(rows, b.rows[k], b.rows[k - 1], true);
    if (b.parent >= 0) join(rows, b.rows[0], b.parent, true);
  }
  return { rows, lanes };
}

/** The lines that were left. A checkpoint goes on from its parent, or begins a line beside it. */
function branches(checkpoints: RunCheckpoint[]): Branch[] {
  const byId = new Map<string, number>();
  checkpoints.forEach((c, i) => readable(c) && byId.set(c.save_id || c.name, i));
  const out: Branch[] = [];
  for (let i = checkpoints.length - 1; i >= 0; i--) {
    const c = checkpoints[i];
    if (!c.left || !readable(c)) continue;
    const known = c.parent ? (byId.get(c.parent) ?? -1) : -1;
    const parent = known > i ? known : -1; // an older one
    const before = parent < 0 ? undefined : out.find((b) => b.rows.at(-1) === parent);
    if (before) before.rows.push(i);
    else out.push({ rows: [i], parent, lane: 0 });
  }
  return out;
}

/** Gives each branch the first lane that is free beside its rows, and returns the number of lanes. */
function settle(all: Branch[]): number {
  const used: Branch[][] = [[]];
  const span = (b: Branch) => [b.rows.at(-1)!, Math.max(b.parent, b.rows[0])];
  for (const b of all) {
    const [top, bottom] = span(b);
    let lane = 1;
    while (used[lane]?.some((o) => top < span(o)[1] && span(o)[0] < bottom)) lane++;
    (used[lane] ??= []).push(b);
    b.lane = lane;
  }
  return used.length;
}

/** Draws the line from a checkpoint down to its parent. */
function join(rows: Row[], child: number, parent: number, left: boolean) {
  const lane = rows[child].lane;
  const down = (y1: number, y2: number, to = lane): Stroke => ({ from: lane, to, y1, y2, left });
  rows[child].strokes.push(down(50, 100));
  for (let i = child + 1; i < parent; i++) rows[i].strokes.push(down(0, 100));
  for (let i = child; i < parent; i++) rows[i].below.push(down(0, 100));
  rows[parent].strokes.push(down(0, 50, rows[parent].lane));
}
