// The ranks of a save in the order and range that a chart shows.
import type { RankTimeline, Timeline } from '../lib/api';

/** Ranks and seconds that are shown: [from, to). Ranks are places in the order. */
export interface Window {
  ranks: [number, number];
  time: [number, number];
}

export type Order = 'rank' | 'busy';

/** The ranks, by their number or the busiest first. */
export function ordered(t: Timeline, by: Order): RankTimeline[] {
  return by === 'busy' ? t.ranks.toSorted((a, b) => b.busy_seconds - a.busy_seconds || a.rank - b.rank) : t.ranks;
}

/** Everything. A save with phases of no duration gets a second. */
export function whole(t: Timeline): Window {
  return { ranks: [0, Math.max(1, t.ranks.length)], time: [0, t.seconds > 0 ? t.seconds : 1] };
}

/** Ranks that share a line of the chart, if there are more ranks than lines: the busiest one stands for them. */
export interface Band {
  lo: number;
  hi: number;
  busiest: RankTimeline;
  slow: boolean;
}

/** The lines of a chart that is at most lines pixels high. */
export function bands(ranks: RankTimeline[], [lo, hi]: [number, number], lines: number): Band[] {
  const n = Math.min(hi - lo, Math.max(1, Math.floor(lines)));
  const out: Band[] = [];
  for (let i = 0; i < n; i++) {
    const from = lo + Math.floor((i * (hi - lo)) / n);
    const to = lo + Math.floor(((i + 1) * (hi - lo)) / n);
    let busiest = ranks[from];
    let slow = false;
    for (let k = from; k < to; k++) {
      if (ranks[k].busy_seconds > busiest.busy_seconds) busiest = ranks[k];
      slow ||= ranks[k].slow;
    }
    out.push({ lo: from, hi: to, busiest, slow });
  }
  return out;
}

/** A range of the given size around a point, which stays where it is, within [min, max]. whole numbers if integer is set. */
export function zoom([lo, hi]: [number, number], factor: number, at: number, [min, max]: [number, number], least: number, integer: boolean): [number, number] {
  const size = Math.min(max - min, Math.max(least, integer ? Math.round((hi - lo) * factor) : (hi - lo) * factor));
  const share = hi > lo ? (at - lo) / (hi - lo) : 0.5;
  const from = integer ? Math.round(at - share * size) : at - share * size;
  return shift([from, from + size], 0, [min, max]);
}

/** The range, moved by some amount within [min, max]. */
export function shift([lo, hi]: [number, number], by: number, [min, max]: [number, number]): [number, number] {
  const size = hi - lo;
  const from = Math.max(min, Math.min(max - size, lo + by));
  return [from, from + size];
}

/** "10:50" as a range within [min, max], or undefined. */
export function range(text: string | undefined, [min, max]: [number, number], least: number): [number, number] | undefined {
  const m = /^([\d.]+):([\d.]+)$/.exec(text ?? '');
  if (!m) return undefined;
  const [lo, hi] = [Math.max(min, Number(m[1])), Math.min(max, Number(m[2]))];
  return hi - lo >= least ? [lo, hi] : undefined;
}

/** Round numbers between lo and hi, about n of them. */
export function ticks(lo: number, hi: number, n: number): number[] {
  const raw = (hi - lo) / Math.max(1, n);
  if (!(raw > 0)) return [lo];
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((k) => k * power).find((s) => s >= raw)!;
  const out = [];
  for (let k = Math.ceil(lo / step - 1e-9); k * step <= hi + step * 1e-9; k++) out.push(k * step);
  return out;
}

/** The seconds and bytes that a rank spent in a phase; undefined if it has no such phase. */
export function spent(r: RankTimeline, phase: string): { seconds: number; bytes: number } | undefined {
  let out: { seconds: number; bytes: number } | undefined;
  for (const p of r.phases) {
    if (p.name !== phase) continue;
    out ??= { seconds: 0, bytes: 0 };
    out.seconds += p.end_seconds - p.start_seconds;
    out.bytes += p.bytes;
  }
  return out;
}
