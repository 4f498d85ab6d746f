// Which two checkpoints are compared, and how.
import type { Place } from '../lib/api';

type List = Place['checkpoints'];

/**
 * The checkpoints A and B, of which the address may name one, both or none. B alone is compared
 * with the one before it. The first one is A, and not B: it is compared with the others.
 */
export function pairOf(list: List, a: string | undefined, b: string | undefined): [a: string, b: string] {
  const last = list.at(-1)?.id ?? '.';
  if (a !== undefined) return [a, b ?? last];
  const at = b === undefined ? list.length - 1 : list.findIndex((p) => p.id === b);
  if (at === 0) return [list[0].id, list[1]?.id ?? list[0].id];
  return [list[at - 1]?.id ?? list[0]?.id ?? '.', b ?? last];
}

/**
 * Whether A is seen through the recipe. Without a word of the address it is if B is an OTHER of
 * the command line and A is not: a recipe is given for that.
 */
export function throughRecipe(place: Pick<Place, 'recipe' | 'checkpoints'>, a: string, b: string, said: string | undefined): boolean {
  if (said === '1' || said === '0' || place.recipe === '') return said === '1';
  const other = (id: string) => place.checkpoints.find((p) => p.id === id)?.other ?? false;
  return other(b) && !other(a);
}
