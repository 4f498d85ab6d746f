// Histograms for uPlot: of one tensor, or of two over each other.
import uPlot from 'uplot';
import { num, type Histogram } from '../lib/api';
import { count, number } from '../lib/format';

const digits = '⁰¹²³⁴⁵⁶⁷⁸⁹';

/** -10 → "2⁻¹⁰". */
export function power(n: number): string {
  const text = String(Math.round(n * 100) / 100);
  if (!/^-?\d+$/.test(text)) return `2^${text}`;
  return `2${text.replace('-', '⁻').replace(/\d/g, (d) => digits[Number(d)])}`;
}

/** Places on the axis: the edges themselves, or their exponents. */
export function places(h: Pick<Histogram, 'scale' | 'edges'>): number[] {
  const e = h.edges.map(num);
  return h.scale === 'log2' ? e.map(Math.log2) : e;
}

/** Columns for uPlot: the lower edges and the counts. A count of zero has no bar. */
export function columns(hs: Histogram[]): uPlot.AlignedData {
  const x = places(hs[0]);
  return [x, ...hs.map((h) => [...h.counts.map((n) => (n === 0 ? null : n)), null])] as uPlot.AlignedData;
}

export interface Drawn {
  label: string;
  /** The variable of the theme. */
  color: string;
}

/** Options of a chart of histograms with the same edges. */
export function chart(
  hs: Histogram[],
  series: Drawn[],
  logCounts: boolean,
  color: (name: string) => string,
): Omit<uPlot.Options, 'width' | 'height'> {
  const x = places(hs[0]);
  const log2 = hs[0].scale === 'log2';
  const edges = hs[0].edges;
  const most = Math.max(1, ...hs.flatMap((h) => h.counts));
  const tick = (v: number | null) => (v === null ? '' : log2 ? power(v) : number(v, 4));
  return {
    scales: {
      x: { time: false, range: [x[0], x[x.length - 1]] },
      y: logCounts ? { distr: 3, range: [0.5, most * 1.3] } : { range: [0, most * 1.05] },
    },
    axes: [
      {
        label: log2 ? 'magnitude of the elements, |x|' : 'value of the elements',
        values: (_, splits) => splits.map(tick),
        space: log2 ? 46 : 60,
        size: 30,
        labelSize: 20,
        labelGap: 0,
        ...(log2 ? { incrs: [1, 2, 4, 8, 16, 32, 64, 128, 256, 512] } : {}),
      },
      {
        label: logCounts ? 'elements per bucket (logarithmic)' : 'elements per bucket',
        size: 76,
        labelSize: 20,
        labelGap: 0,
        values: (_, splits) => splits.map((v) => (v === null || !Number.isInteger(v) ? '' : count(v))),
      },
    ],
    series: [
      {
        label: log2 ? 'magnitude' : 'value',
        value: (_u: uPlot, _v: number, _s: number, i: number | null) =>
          i === null || i >= edges.length - 1 ? '--' : `${number(edges[i])} to ${number(edges[i + 1])}`,
      },
      ...series.map((s) => ({
        label: s.label,
        stroke: color(s.color),
        fill: translucent(color(s.color), series.length > 1 ? 0.35 : 0.55),
        width: 1,
        paths: uPlot.paths.bars!({ size: [1, Infinity, 1], align: 1, gap: 0 }),
        points: { show: false },
        value: (_u: uPlot, v: number | null, _s: number, i: number | null) =>
          i === null || i >= edges.length - 1 ? '--' : count(v ?? 0),
      })),
    ],
    cursor: { y: false, points: { show: false }, drag: { x: false, y: false } },
    legend: { live: true },
  };
}

/** The colour "rgb(…)" with an opacity. */
export function translucent(rgb: string, alpha: number): string {
  return rgb.replace(/^rgb\((.*)\)$/, `rgba($1, ${alpha})`);
}
