import { categories } from './paint';

// Usual dtypes have the same colour in each checkpoint.
const usual: Record<string, number> = {
  bfloat16: 0, float32: 1, float16: 2, int64: 3, float8_e4m3fn: 4, float64: 5, uint8: 6,
}; // prettier-ignore

/** What the filter and the address call what is not a tensor. */
export const objects = 'objects';

/** Chooses a colour of the theme for each dtype, and for objects. */
export function dtypeColors(dtypes: string[]): Map<string, string> {
  const colors = new Map<string, string>([[objects, 'c7']]);
  for (const d of dtypes) if (d in usual) colors.set(d, categories[usual[d]]);
  const taken = new Set(colors.values());
  const free = categories.filter((c) => !taken.has(c));
  let repeat = 0;
  for (const d of dtypes) {
    if (!colors.has(d)) colors.set(d, free.shift() ?? categories[repeat++ % 7]);
  }
  return colors;
}
