/** Returns a function that turns a colour variable of the theme into a colour for a canvas. */
export function palette(host: HTMLElement): (name: string) => string {
  // light-dark() in a variable is resolved only in a property of an element.
  const known = new Map<string, string>();
  return (name) => {
    let c = known.get(name);
    if (c === undefined) {
      const probe = document.createElement('span');
      host.append(probe);
      probe.style.color = `var(--${name})`;
      c = getComputedStyle(probe).color;
      probe.remove();
      known.set(name, c);
    }
    return c;
  };
}

/** Gives a canvas one dot for each dot of the screen, and returns a context in CSS pixels. */
export function context(canvas: HTMLCanvasElement, width: number, height: number, ratio: number): CanvasRenderingContext2D {
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  const g = canvas.getContext('2d')!;
  g.setTransform(canvas.width / Math.max(1, width), 0, 0, canvas.height / Math.max(1, height), 0, 0);
  return g;
}

/** The text, or its beginning with "…", so that it fits; "" if not even three characters fit. */
export function fit(text: string, width: number, charWidth: number): string {
  const n = Math.floor(width / charWidth);
  if (text.length <= n) return text;
  return n < 4 ? '' : text.slice(0, n - 1) + '…';
}

/** The variables of the theme for categories, in order. */
export const categories = ['c0', 'c1', 'c2', 'c3', 'c4', 'c5', 'c6', 'c7'];
