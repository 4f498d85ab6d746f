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

/**
 * Returns a function that shortens a text to a width: with "…" at its end, or at its start if
 * tail is set. It returns "" if not even three characters fit.
 */
export function shortener(g: CanvasRenderingContext2D): (text: string, width: number, tail?: boolean) => string {
  const wide = g.measureText('model.layers.0123456789').width / 23;
  return (text, width, tail = false) => {
    let n = Math.floor((width / wide) * 1.2);
    if (text.length <= n && g.measureText(text).width <= width) return text;
    for (n = Math.min(n, text.length); n >= 4; n--) {
      const cut = tail ? '…' + text.slice(text.length - n + 1) : text.slice(0, n - 1) + '…';
      if (g.measureText(cut).width <= width) return cut;
    }
    return '';
  };
}

/** The variables of the theme for categories, in order. */
export const categories = ['c0', 'c1', 'c2', 'c3', 'c4', 'c5', 'c6', 'c7'];
