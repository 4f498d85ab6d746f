// The colours of heat maps: blue, white, orange around zero; viridis for one-sided values. Colours
// are packed as ImageData has them in memory: alpha, blue, green, red from the highest byte down.

const diverging = ['#2166ac', '#4393c3', '#92c5de', '#d1e5f0', '#f7f7f7', '#fee0b6', '#fdb863', '#e08214', '#b35806'];
const viridis = [
  '#440154', '#482878', '#3e4989', '#31688e', '#26828e', '#1f9e89', '#35b779', '#6ece58', '#b5de2b', '#fde725',
];

const steps = 255;

function ramp(stops: string[]): Uint32Array {
  const rgb = stops.map((s) => [1, 3, 5].map((i) => parseInt(s.slice(i, i + 2), 16)));
  const out = new Uint32Array(steps);
  for (let i = 0; i < steps; i++) {
    const at = (i / (steps - 1)) * (stops.length - 1);
    const k = Math.min(stops.length - 2, Math.floor(at));
    const [r, g, b] = rgb[k].map((c, j) => Math.round(c + (at - k) * (rgb[k + 1][j] - c)));
    out[i] = pack(r, g, b);
  }
  return out;
}

function pack(r: number, g: number, b: number): number {
  return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
}

const ramps = { diverging: ramp(diverging), viridis: ramp(viridis) };
const gradients = {
  diverging: `linear-gradient(to right, ${diverging.join(', ')})`,
  viridis: `linear-gradient(to right, ${viridis.join(', ')})`,
};

export const nanColor = pack(255, 0, 255);
export const black = pack(0, 0, 0);
export const white = pack(255, 255, 255);

/** A scale maps numbers to colours. */
export class Scale {
  readonly kind: 'diverging' | 'viridis';
  readonly low: number;
  readonly high: number;

  /** A scale for numbers from low to high. Around zero, zero is in the middle, unless they are logarithms. */
  constructor(low: number, high: number, logarithms = false) {
    this.kind = low < 0 && high > 0 && !logarithms ? 'diverging' : 'viridis';
    const most = Math.max(-low, high);
    this.low = this.kind === 'diverging' ? -most : low;
    this.high = this.kind === 'diverging' ? most : high;
  }

  color(x: number): number {
    // Halves, because the difference of two large numbers may be infinite.
    const span = this.high / 2 - this.low / 2;
    const t = span > 0 ? (x / 2 - this.low / 2) / span : 0.5;
    return ramps[this.kind][Math.max(0, Math.min(steps - 1, Math.round(t * (steps - 1))))];
  }

  get gradient(): string {
    return this.low === this.high ? css(this.color(this.low)) : gradients[this.kind];
  }

  /** The numbers at the left, in the middle and at the right of the scale. */
  get ticks(): number[] {
    if (this.low === this.high) return [this.low];
    return [this.low, this.low / 2 + this.high / 2, this.high];
  }
}

function rgb(color: number): number[] {
  return [color & 255, (color >> 8) & 255, (color >> 16) & 255];
}

/** A colour for CSS and for canvases. */
export function css(color: number): string {
  return `rgb(${rgb(color).join(' ')})`;
}

/** Whether black or white text can be read on a colour. */
export function textOn(color: number): string {
  const [r, g, b] = rgb(color);
  return 0.299 * r + 0.587 * g + 0.114 * b > 104 ? '#000' : '#fff';
}
