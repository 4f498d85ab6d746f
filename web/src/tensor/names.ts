import { natural } from '../lib/format';

/** The names before and after a name, in natural order. */
export function neighbours(names: string[], name: string): { before?: string; after?: string } {
  let before: string | undefined;
  let after: string | undefined;
  const order = (a: string, b: string) => natural(a, b) || (a < b ? -1 : a > b ? 1 : 0);
  for (const n of names) {
    const o = order(n, name);
    if (o < 0 && (before === undefined || order(n, before) > 0)) before = n;
    if (o > 0 && (after === undefined || order(n, after) < 0)) after = n;
  }
  return { before, after };
}

/** The name without its last component; "" if it has one component only. */
export function parent(name: string): string {
  return name.includes('.') ? name.slice(0, name.lastIndexOf('.')) : '';
}
