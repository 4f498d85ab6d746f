// Statistics of layers over the steps of a run.
import { num, type Num, type Steps } from '../lib/api';
import { clean, count } from '../lib/format';

export type Measure = 'l2' | 'mean' | 'abs_max' | 'nan_share';

export const measures: Record<Measure, string> = {
  l2: 'norm (L2)',
  mean: 'mean',
  abs_max: 'largest |x|',
  nan_share: 'share of NaN',
};

/** The steps that have statistics, and where they are on the axis. */
export interface Points {
  /** Indexes into Steps.steps. */
  at: number[];
  x: number[];
  /** Whether x are steps. Otherwise they count the checkpoints. */
  steps: boolean;
  /** The labels of the axis: the step, or the name of the checkpoint. */
  labels: string[];
}

export function points(s: Pick<Steps, 'steps'>): Points {
  const at = s.steps.map((_, i) => i).filter((i) => !s.steps[i].error);
  const steps = at.every((i) => s.steps[i].step !== null) && new Set(at.map((i) => s.steps[i].step)).size === at.length;
  if (steps) at.sort((a, b) => s.steps[a].step! - s.steps[b].step!);
  return {
    at,
    x: at.map((i, k) => (steps ? s.steps[i].step! : k + 1)),
    steps,
    labels: at.map((i) => (steps ? count(s.steps[i].step!) : clean(s.steps[i].id))),
  };
}

/** The values of a measure by layer and point. relative divides by the first value of the layer. */
export function series(s: Steps, p: Points, m: Measure, relative: boolean): Float64Array[] {
  return s.layers.map((_, layer) => {
    const v = Float64Array.from(p.at, (i) => num((s[m][i] as Num[] | null)?.[layer]));
    if (!relative) return v;
    const first = v.find((x) => Number.isFinite(x) && x !== 0);
    return v.map((x) => (first === undefined ? NaN : x / first));
  });
}

/** Layers with a NaN: the points from the first to the last one, whether it stays, and the largest share. */
export function nans(s: Steps, p: Points): { layer: number; since: number; until: number; stays: boolean; share: number }[] {
  const out = [];
  for (let layer = 0; layer < s.layers.length; layer++) {
    let [since, until, share] = [-1, -1, 0];
    let stays = true; // from the first NaN on, no point is without
    p.at.forEach((i, k) => {
      const x = num(s.nan_share[i]?.[layer]);
      if (x > 0) {
        if (since < 0) since = k;
        until = k;
        share = Math.max(share, x);
      } else if (x === 0 && since >= 0) stays = false;
    });
    if (since >= 0) out.push({ layer, since, until, stays, share });
  }
  return out;
}

/** "0.0081%" of a share of 8.1e-5. */
export function share(x: number): string {
  if (Number.isNaN(x)) return '';
  return x === 0 ? '0' : `${Number((100 * x).toPrecision(3))}%`;
}
