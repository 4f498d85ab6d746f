// The chart of relative changes for uPlot: a dot for each tensor.
import type uPlot from 'uplot';
import { clean } from '../lib/format';
import { translucent } from '../tensor/histogram';
import type { Dots } from './changes';

const digits = '⁰¹²³⁴⁵⁶⁷⁸⁹';
const tenTo = (n: number) => `10${String(n).replace('-', '⁻').replace(/\d/g, (d) => digits[Number(d)])}`;

const many = 5000;

/** The exponents of the axis. Dots without a change are one step below, infinite ones one above. */
export function exponents(d: Dots): [number, number] {
  let [lo, hi] = [Infinity, -Infinity];
  for (const { change } of d.dots) {
    if (change > 0 && Number.isFinite(change)) {
      lo = Math.min(lo, Math.floor(Math.log10(change)));
      hi = Math.max(hi, Math.ceil(Math.log10(change)));
    }
  }
  if (lo > hi) return [-1, 0];
  return [lo, Math.max(hi, lo + 1)];
}

export function columns(d: Dots): uPlot.AlignedData {
  const [lo, hi] = exponents(d);
  const x = d.dots.map((_, i) => i);
  const y = d.kinds.map(() => new Array<number | null>(x.length).fill(null));
  d.dots.forEach(({ change, kind }, i) => {
    y[kind][i] = change === 0 ? lo - 1 : Number.isFinite(change) ? Math.log10(change) : hi + 1;
  });
  return [x, ...y] as uPlot.AlignedData;
}

/** The dot that is nearest to a place of the chart, in pixels; -1 if none is near. */
export function nearest(u: uPlot, left: number, top: number, n: number): number {
  const reach = 14;
  const from = Math.max(0, Math.floor(u.posToVal(left - reach, 'x')));
  const to = Math.min(n - 1, Math.ceil(u.posToVal(left + reach, 'x')));
  let [best, at] = [reach * reach, -1];
  for (let i = from; i <= to; i++) {
    const dx = u.valToPos(i, 'x') - left;
    for (let s = 1; s < u.data.length; s++) {
      const y = u.data[s][i];
      if (y === null || y === undefined || u.series[s].show === false) continue;
      const dy = u.valToPos(y, 'y') - top;
      if (dx * dx + dy * dy <= best) [best, at] = [dx * dx + dy * dy, i];
    }
  }
  return at;
}

/** The end of the name of a layer. */
function short(layer: string): string {
  const text = clean(layer);
  return text.length > 24 ? `…${text.slice(-23)}` : text;
}

export interface Hands {
  hover: (i: number) => void;
  open: (i: number) => void;
}

export function chart(d: Dots, hands: Hands, color: (name: string) => string): Omit<uPlot.Options, 'width' | 'height'> {
  const [lo, hi] = exponents(d);
  const zeros = d.dots.some((x) => x.change === 0);
  const infinite = d.dots.some((x) => x.change === Infinity);
  const n = d.dots.length;
  return {
    scales: {
      x: { time: false, range: (_, min, max) => (max - min < 1 ? [min - 1, max + 1] : [min - (max - min) * 0.01, max + (max - min) * 0.01]) },
      y: { range: [lo - (zeros ? 1.4 : 0.2), hi + (infinite ? 1.4 : 0.2)] },
    },
    axes: [
      {
        label: 'tensors by layer, in natural order of names',
        size: 34,
        labelSize: 20,
        labelGap: 0,
        splits: (u, _axis, min, max) => {
          let free = -Infinity;
          return d.layers
            .filter(({ at, name }) => {
              if (at < min || at > max) return false;
              const [x, half] = [u.valToPos(at, 'x'), 3.5 * short(name).length + 4];
              if (x - half < free) return false;
              free = x + half;
              return true;
            })
            .map(({ at }) => at);
        },
        values: (_, splits) => splits.map((at) => short(d.layers.find((l) => l.at === at)?.name ?? '')),
      },
      {
        label: 'relative change, ‖B−A‖ / ‖A‖',
        size: 60,
        labelSize: 20,
        labelGap: 0,
        incrs: [1, 2, 5, 10, 20, 50, 100],
        values: (_, splits) =>
          splits.map((v) => (v === lo - 1 ? (zeros ? '0' : '') : v === hi + 1 ? (infinite ? '∞' : '') : v > hi || v < lo ? '' : tenTo(v))),
      },
    ],
    series: [
      {},
      ...d.kinds.map((k, i) => ({
        label: clean(k),
        stroke: color(`c${i}`),
        fill: color(`c${i}`),
        paths: () => null,
        points: { show: true, size: n > many ? 4 : 6, fill: n > many ? translucent(color(`c${i}`), 0.4) : color(`c${i}`), width: 0 },
      })),
    ],
    cursor: { x: false, y: false, points: { show: false }, drag: { x: true, y: false } },
    legend: { live: false },
    hooks: {
      ready: [(u) => follow(u, n, hands)],
    },
  };
}

// Marks the dot that is nearest to the pointer; a click opens it.
function follow(u: uPlot, n: number, hands: Hands): void {
  const ring = document.createElement('div');
  ring.className = 'ring';
  ring.hidden = true;
  u.over.append(ring);
  let at = -1;
  const move = (e: PointerEvent) => {
    at = nearest(u, e.offsetX, e.offsetY, n);
    ring.hidden = at < 0;
    if (at >= 0) {
      const y = u.data.slice(1).find((s) => s[at] !== null)?.[at] as number;
      ring.style.left = `${u.valToPos(at, 'x')}px`;
      ring.style.top = `${u.valToPos(y, 'y')}px`;
    }
    u.over.style.cursor = at >= 0 ? 'pointer' : '';
    hands.hover(at);
  };
  let start = 0;
  u.over.addEventListener('pointermove', move);
  u.over.addEventListener('pointerdown', (e) => {
    start = e.clientX;
    move(e);
  });
  u.over.addEventListener('click', (e) => {
    if (at >= 0 && Math.abs(e.clientX - start) < 4) hands.open(at);
  });
  u.over.addEventListener('pointerleave', () => {
    ring.hidden = true;
    hands.hover(-1);
  });
}
