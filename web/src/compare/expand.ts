// From the columns of an answer to its names.
import type { Compared, Comparison, ComparisonAnswer } from '../lib/api';

/** The index of an element by its place in row-major order. */
function unravel(at: number, shape: number[]): number[] {
  const out = new Array<number>(shape.length);
  for (let d = shape.length - 1; d >= 0; d--) {
    out[d] = at % shape[d];
    at = Math.floor(at / shape[d]);
  }
  return out;
}

/** The names of an answer, one by one. */
export function expand(answer: ComparisonAnswer): Comparison {
  const c = answer.items;
  const items = c.names.map((fqn, i): Compared => {
    const { renamed, where, nans = 0, nonfinite = 0 } = c.more[i] ?? {};
    const a = c.forms[c.a[i]];
    const x: Compared = { fqn, ...c.results[c.result[i]], a, b: c.forms[c.b[i]], renamed, where };
    if (c.differing[i] < 0 || !a?.shape) return x;
    x.values = {
      elements: a.shape.reduce((n, s) => n * s, 1),
      differing: c.differing[i],
      nans,
      max_abs: c.max_abs[i],
      max_rel: c.max_rel[i],
      rel_l2: c.rel_l2[i],
      cosine: c.cosine[i],
      nonfinite,
      first: c.first[i] < 0 ? undefined : { index: unravel(c.first[i], a.shape), a: c.first_a[i], b: c.first_b[i] },
    };
    return x;
  });
  return { ...answer, items };
}
