import { categories } from './paint';

/** The word for objects in the filter and in the address. */
export const objects = 'objects';

/** Names and bytes of a dtype, or of the objects. */
export interface Share {
  dtype: string;
  names: number;
  bytes: number;
}

/**
 * Chooses a colour of the theme for each dtype, as 'cairn plot' does: the largest ones have a
 * colour of their own, the others and objects are grey.
 */
export function dtypeColors(shares: Share[]): Map<string, string> {
  const colors = new Map<string, string>();
  let next = 0;
  for (const { dtype } of shares) {
    colors.set(dtype, dtype === objects || next === categories.length - 1 ? 'faint' : categories[next++]);
  }
  return colors;
}
