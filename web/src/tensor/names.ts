import type { Columns } from '../lib/api';
import { naturalKey } from '../lib/format';

/** The names before and after a name, in natural order. */
export function neighbours(names: string[], name: string): { before?: string; after?: string } {
  const keyOf = (n: string) => `${naturalKey(n)}\0${n}`; // distinct for a.1 and a.01
  const here = keyOf(name);
  let before: { key: string; name: string } | undefined;
  let after: { key: string; name: string } | undefined;
  for (const n of names) {
    const key = keyOf(n);
    if (key < here && (!before || key > before.key)) before = { key, name: n };
    if (key > here && (!after || key < after.key)) after = { key, name: n };
  }
  return { before: before?.name, after: after?.name };
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

/** The layer of a name, as the server forms it: up to the first number, or without the last component. */
export function layer(name: string): string {
  return /^(?:[^]*?\.)??\d+(?=\.|$)/.exec(name)?.[0] ?? (parent(name) || name);
}

/** A pattern of the server for the names of a layer: a prefix, unless it has characters of patterns. */
export function ofLayer(layer: string): string {
  const escaped = layer.replace(/[*?[\\]/g, '\\$&');
  return escaped === layer ? layer : `${escaped}*`;
}
