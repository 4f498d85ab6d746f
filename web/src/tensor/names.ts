import type { Columns } from '../lib/api';
import { natural } from '../lib/format';

const order = (a: string, b: string) => natural(a, b) || (a < b ? -1 : a > b ? 1 : 0);

/** The names before and after a name, in natural order. */
export function neighbours(names: string[], name: string): { before?: string; after?: string } {
  let before: string | undefined;
  let after: string | undefined;
  for (const n of names) {
    const o = order(n, name);
    if (o < 0 && (before === undefined || order(n, before) > 0)) before = n;
    if (o > 0 && (after === undefined || order(n, after) < 0)) after = n;
  }
  return { before, after };
}

/** The other names of the tensor that a name stands for. */
export function ties(c: Columns, name: string): string[] {
  const tied = Object.entries(c.tied).map(([i, first]) => [c.names[Number(i)], first]);
  const first = tied.find(([n]) => n === name)?.[1] ?? name;
  const group = tied.filter(([, f]) => f === first).map(([n]) => n);
  return [...new Set([first, ...group])].filter((n) => n !== name && (n !== first || group.length > 0));
}

/** The name without its last component; "" if it has one component only. */
export function parent(name: string): string {
  return name.includes('.') ? name.slice(0, name.lastIndexOf('.')) : '';
}
