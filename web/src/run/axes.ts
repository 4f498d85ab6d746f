// Axes that the charts of a run share.
import type uPlot from 'uplot';
import { bytes, number } from '../lib/format';

/** The horizontal axis: steps, or times. */
export function across(by: 'step' | 'time'): { scale: uPlot.Scale; axis: uPlot.Axis } {
  if (by === 'time') return { scale: { time: true, range: times }, axis: { label: 'time of the save', size: 46, labelSize: 18 } };
  return {
    scale: { time: false, range: (_, lo, hi) => widen(lo, hi) },
    axis: { label: 'step', labelSize: 18, size: 34, incrs: whole, values: (_, ticks) => ticks.map((t) => (Number.isInteger(t) ? t.toLocaleString('en-US') : '')) },
  };
}

// Ticks of an axis that counts.
const whole = Array.from({ length: 16 }, (_, i) => [1, 2, 5].map((k) => k * 10 ** i)).flat();

/** Some room on both sides, also if there is one value only. */
export function widen(lo: number, hi: number): [number, number] {
  const room = hi > lo ? (hi - lo) * 0.04 : Math.max(1, Math.abs(lo) * 0.1);
  return [lo - room, hi + room];
}

// uPlot widens the range of equal times to years.
function times(u: uPlot, lo: number, hi: number): [number, number] {
  const x = u.data[0];
  const same = x.length > 0 && x[0] === x[x.length - 1] && lo === x[0];
  if (same) hi = lo;
  return hi > lo ? widen(lo, hi) : [lo - 30, hi + 30];
}

/** An axis of bytes with ticks at round numbers of KiB, MiB, … */
export function bytesAxis(label: string): uPlot.Axis {
  return {
    label,
    labelSize: 20,
    size: 70,
    incrs: Array.from({ length: 50 }, (_, i) => 2 ** i),
    values: (_, ticks) => ticks.map((t) => bytes(t)),
  };
}

export function numberAxis(label: string): uPlot.Axis {
  return { label, labelSize: 20, size: 66, values: (_, ticks) => ticks.map((t) => (t === null ? '' : number(t, 4))) };
}

/** Dots of checkpoints on lines that the run has left. */
export function muted(color: string, text: (v: number) => string): uPlot.Series {
  return {
    label: 'on lines that were left',
    paths: () => null,
    stroke: color,
    points: { show: true, size: 6, stroke: color },
    value: (_, v) => (v === null || v === undefined ? '' : text(v)),
  };
}
