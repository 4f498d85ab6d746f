// The view and its parameters are the fragment of the address: #/tensor?c=step-100&name=w.
// So each view has an address, and "back" works.

export type View = 'run' | 'checkpoint' | 'tensor' | 'compare' | 'timeline';

export type RouteParams = Record<string, string | number | boolean | undefined>;

function parse(): { view: View | ''; params: Record<string, string> } {
  const [view, query] = location.hash.replace(/^#\/?/, '').split('?', 2);
  return { view: view as View | '', params: Object.fromEntries(new URLSearchParams(query ?? '')) };
}

/** The current view. Read-only outside of this file. */
export const route = $state(parse());

window.addEventListener('hashchange', () => Object.assign(route, parse()));

/** Returns the address of a view, for links. Empty parameters are left out. */
export function href(view: View, params: RouteParams = {}): string {
  const q = new URLSearchParams();
  for (const [k, v] of Object.entries(params)) {
    if (v !== undefined && v !== '' && v !== false) q.set(k, v === true ? '1' : String(v));
  }
  const text = q.toString();
  return `#/${view}${text ? '?' + text : ''}`;
}

/** Goes to a view. */
export function go(view: View, params: RouteParams = {}): void {
  location.hash = href(view, params);
}

/** Changes some parameters of the current view, without a new step in the history. */
export function set(params: RouteParams): void {
  history.replaceState(null, '', href(route.view as View, { ...route.params, ...params }));
  Object.assign(route, parse());
}
