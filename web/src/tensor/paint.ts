// Draws a heat map with its axes on a canvas.
import { count, number } from '../lib/format';
import { cellOf, edge, Flag, type Layer } from './cells';
import { black, textOn, white } from './scale';
import type { Window } from './window';

/** The place of the cells on the canvas, in pixels of CSS. */
export interface Plot {
  left: number;
  top: number;
  width: number;
  height: number;
}

export interface Frame {
  plot: Plot;
  window: Window;
  /** The lower layers are seen where the upper ones have no cells. Last is top. */
  layers: Layer[];
  /** Whether rows are elements of a dimension. */
  hasRows: boolean;
  rowTitle: string;
  colTitle: string;
  /** Colours of the theme. */
  faint: string;
  line: string;
  /** Pixels of the canvas per pixel of CSS. */
  ratio: number;
}

export function paint(canvas: HTMLCanvasElement, f: Frame): void {
  const ctx = canvas.getContext('2d')!;
  ctx.setTransform(1, 0, 0, 1, 0, 0);
  ctx.clearRect(0, 0, canvas.width, canvas.height);
  cells(ctx, f);
  ctx.setTransform(f.ratio, 0, 0, f.ratio, 0, 0);
  const top = f.layers.at(-1);
  if (top) {
    numbers(ctx, f, top);
    rings(ctx, f, top);
  }
  axes(ctx, f);
}

/** The cell of each pixel along one axis; -1 where the layer has no cells. */
function along(pixels: number, lo: number, hi: number, range: [number, number], n: number): Int32Array {
  const out = new Int32Array(pixels);
  for (let x = 0; x < pixels; x++) {
    out[x] = cellOf(range, n, Math.floor(lo + ((x + 0.5) * (hi - lo)) / pixels));
  }
  return out;
}

// Each pixel gets the colour of its cell, so that the edges of cells are where their elements are.
function cells(ctx: CanvasRenderingContext2D, f: Frame): void {
  const w = Math.round(f.plot.width * f.ratio);
  const h = Math.round(f.plot.height * f.ratio);
  if (w < 1 || h < 1) return;
  const image = ctx.createImageData(w, h);
  const out = new Uint32Array(image.data.buffer);
  const stripe = Math.max(2, Math.round(3 * f.ratio));
  for (const l of f.layers) {
    const cols = along(w, f.window.c0, f.window.c1, l.heat.cols, l.heat.width);
    const rows = along(h, f.window.r0, f.window.r1, l.heat.rows, l.heat.height);
    for (let y = 0; y < h; y++) {
      if (rows[y] < 0) continue;
      const first = rows[y] * l.heat.width;
      for (let x = 0, at = y * w; x < w; x++, at++) {
        if (cols[x] < 0) continue;
        const i = first + cols[x];
        out[at] = l.hatched && l.flags[i] >= Flag.posInf ? hatch(l.flags[i], x, y, stripe) : l.colors[i];
      }
    }
  }
  ctx.putImageData(image, Math.round(f.plot.left * f.ratio), Math.round(f.plot.top * f.ratio));
}

/** Stripes: "/" for inf, "\" for -inf, both for both. */
function hatch(flag: Flag, x: number, y: number, stripe: number): number {
  if (flag === Flag.nothing) return 0;
  const rising = (x + y) % (2 * stripe) < stripe;
  const falling = (x - y + 65536 * stripe) % (2 * stripe) < stripe;
  const on = flag === Flag.posInf ? rising : flag === Flag.negInf ? falling : rising !== falling;
  return on ? black : white;
}

/** The box of a cell on the canvas. */
export function cellBox(f: Pick<Frame, 'plot' | 'window'>, l: Layer, row: number, col: number): DOMRect {
  const { plot, window: w } = f;
  const x = (c: number) => plot.left + ((c - w.c0) / (w.c1 - w.c0)) * plot.width;
  const y = (r: number) => plot.top + ((r - w.r0) / (w.r1 - w.r0)) * plot.height;
  const [x0, x1] = [x(edge(l.heat.cols, l.heat.width, col)), x(edge(l.heat.cols, l.heat.width, col + 1))];
  const [y0, y1] = [y(edge(l.heat.rows, l.heat.height, row)), y(edge(l.heat.rows, l.heat.height, row + 1))];
  return new DOMRect(x0, y0, x1 - x0, y1 - y0);
}

function inPlot(ctx: CanvasRenderingContext2D, p: Plot, draw: () => void): void {
  ctx.save();
  ctx.beginPath();
  ctx.rect(p.left, p.top, p.width, p.height);
  ctx.clip();
  draw();
  ctx.restore();
}

const charWidth = 6.7;

// Writes the elements into their cells if there is room: as the server prints them, or with
// three digits. Then the cells have lines between them.
function numbers(ctx: CanvasRenderingContext2D, f: Frame, l: Layer): void {
  const text = l.heat.text;
  if (!text) return;
  const one = cellBox(f, l, 0, 0);
  if (one.height < 14 || one.width < 4 * charWidth) return;
  const room = Math.floor((one.width - 6) / charWidth);
  inPlot(ctx, f.plot, () => {
    ctx.font = '11px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace';
    ctx.textAlign = 'center';
    ctx.textBaseline = 'middle';
    for (let i = 0; i < text.length; i++) {
      const b = cellBox(f, l, Math.floor(i / l.heat.width), i % l.heat.width);
      if (b.right < f.plot.left || b.bottom < f.plot.top) continue;
      ctx.strokeStyle = 'rgba(128, 128, 128, 0.35)';
      ctx.lineWidth = 1;
      ctx.strokeRect(b.x, b.y, b.width, b.height);
      let t = text[i];
      if (t.length > room) t = number(l.values[i], 3);
      if (t.length > room) t = number(l.values[i], 1);
      if (t.length > room || l.flags[i] === Flag.nothing) continue;
      const [x, y] = [b.x + b.width / 2, b.y + b.height / 2];
      if (l.flags[i] >= Flag.posInf) {
        ctx.fillStyle = '#fff';
        ctx.fillRect(x - (t.length * charWidth) / 2 - 2, y - 7, t.length * charWidth + 4, 14);
        ctx.fillStyle = '#000';
      } else {
        ctx.fillStyle = textOn(l.colors[i]);
      }
      ctx.fillText(t, x, y);
    }
  });
}

// A NaN or an infinity in a cell of two pixels is easy to miss: a few of each kind get rings.
function rings(ctx: CanvasRenderingContext2D, f: Frame, l: Layer): void {
  const one = cellBox(f, l, 0, 0);
  if (Math.min(one.width, one.height) >= 10) return;
  const { nan, pos_inf, neg_inf } = l.heat;
  for (const [has, color, r] of [
    [(i: number) => (nan?.[i] ?? 0) > 0, '#f0f', 8],
    [(i: number) => (pos_inf?.[i] ?? 0) + (neg_inf?.[i] ?? 0) > 0, '#000', 12], // around the ring of a NaN in the same cell
  ] as const) {
    const at: number[] = [];
    for (let i = 0; i < l.flags.length && at.length <= 60; i++) if (has(i)) at.push(i);
    if (at.length > 60) continue;
    const drawn: { x: number; y: number }[] = []; // neighbours share a ring
    inPlot(ctx, f.plot, () => {
      for (const i of at) {
        const b = cellBox(f, l, Math.floor(i / l.heat.width), i % l.heat.width);
        const [x, y] = [b.x + b.width / 2, b.y + b.height / 2];
        if (drawn.some((d) => Math.hypot(d.x - x, d.y - y) < r)) continue;
        drawn.push({ x, y });
        for (const [width, stroke] of [[4, '#fff'], [2, color]] as const) {
          ctx.lineWidth = width;
          ctx.strokeStyle = stroke;
          ctx.beginPath();
          ctx.arc(x, y, Math.max(r, one.width, one.height), 0, 2 * Math.PI);
          ctx.stroke();
        }
      }
    });
  }
}

/** Round numbers of elements between ticks, at least so many pixels apart. */
function step(span: number, pixels: number, least: number): number {
  const raw = Math.max(1, (span * least) / pixels);
  const power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].map((k) => k * power).find((s) => s >= raw && Number.isInteger(s)) ?? Math.ceil(raw);
}

function axes(ctx: CanvasRenderingContext2D, f: Frame): void {
  const { plot: p, window: w } = f;
  ctx.strokeStyle = f.line;
  ctx.lineWidth = 1;
  ctx.strokeRect(p.left - 0.5, p.top - 0.5, p.width + 1, p.height + 1);
  ctx.font = '12px system-ui, sans-serif';
  ctx.fillStyle = f.faint;

  // A tick is at the middle of its element if elements are wide, otherwise at its edge.
  const tick = (lo: number, hi: number, pixels: number, least: number, draw: (at: number, i: number) => void) => {
    const s = step(hi - lo, pixels, least);
    const half = pixels / (hi - lo) >= 12 ? 0.5 : 0;
    for (let i = Math.ceil(lo / s) * s; i < hi; i += s) {
      const at = ((i + half - lo) / (hi - lo)) * pixels;
      if (at >= -0.5 && at <= pixels + 0.5) draw(at, i);
    }
  };
  ctx.textAlign = 'center';
  ctx.textBaseline = 'top';
  tick(w.c0, w.c1, p.width, 64, (at, i) => {
    ctx.fillRect(p.left + at - 0.5, p.top + p.height + 1, 1, 4);
    const text = count(i);
    const half = ctx.measureText(text).width / 2; // the last one stays on the canvas
    ctx.fillText(text, Math.min(p.left + at, p.left + p.width + 8 - half), p.top + p.height + 7);
  });
  ctx.fillText(f.colTitle, p.left + p.width / 2, p.top + p.height + 22);
  if (!f.hasRows) return;
  ctx.textAlign = 'right';
  ctx.textBaseline = 'middle';
  tick(w.r0, w.r1, p.height, 26, (at, i) => {
    ctx.fillRect(p.left - 5, p.top + at - 0.5, 4, 1);
    ctx.fillText(count(i), p.left - 8, p.top + at);
  });
  ctx.save();
  ctx.translate(8, p.top + p.height / 2);
  ctx.rotate(-Math.PI / 2);
  ctx.textAlign = 'center';
  ctx.fillText(f.rowTitle, 0, 0);
  ctx.restore();
}
