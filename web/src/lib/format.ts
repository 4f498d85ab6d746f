import { num, type Num } from './api';

const binary = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];

/** 1536 → "1.5 KiB". */
export function bytes(n: number): string {
  let i = 0;
  while (n >= 1024 && i < binary.length - 1) {
    n /= 1024;
    i++;
  }
  return `${i === 0 || n >= 100 ? Math.round(n) : n.toPrecision(n >= 10 ? 3 : 2)} ${binary[i]}`;
}

/** 1234567 → "1,234,567". */
export function count(n: number): string {
  return n.toLocaleString('en-US');
}

/** A number with five digits; "" if it is undefined. */
export function number(n: Num | undefined, digits = 5): string {
  const x = num(n);
  if (Number.isNaN(x)) return '';
  if (!Number.isFinite(x)) return x > 0 ? '∞' : '-∞';
  if (Number.isInteger(x) && Math.abs(x) < 1e6) return String(x);
  const text = Math.abs(x) < 1e-4 ? x.toExponential(digits - 1) : x.toPrecision(digits);
  return text.includes('e') ? text.replace(/\.?0+e/, 'e') : text.replace(/(\.\d*?)0+$/, '$1').replace(/\.$/, '');
}

/** 0.0123 → "1.23%". */
export function percent(part: number, of: number): string {
  if (of === 0 || part === 0) return '';
  if (part / of < 1e-4) return '< 0.01%';
  return `${Number(((100 * part) / of).toPrecision(3))}%`;
}

export function seconds(s: number): string {
  if (s < 1e-3) return `${number(s * 1e6, 3)} µs`;
  if (s < 1) return `${number(s * 1e3, 3)} ms`;
  return s < 120 ? `${number(s, 3)} s` : `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`;
}

/** 1.5e9 → "1.4 GiB/s"; "" if there is no rate. */
export function rate(bytesRead: number, s: number): string {
  return bytesRead > 0 && s > 0 ? `${bytes(bytesRead / s)}/s` : '';
}

/** How long ago a time was: "3 h". */
export function age(time: string | undefined, now = Date.now()): string {
  const s = (now - Date.parse(time ?? '')) / 1000;
  if (!Number.isFinite(s)) return '';
  if (s < 120) return `${Math.max(0, Math.round(s))} s`;
  if (s < 120 * 60) return `${Math.round(s / 60)} min`;
  return s < 48 * 3600 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86400)} d`;
}

/** A time for people, in the zone of the browser: "2026-11-17 16:54:22". */
export function when(time: string | undefined): string {
  const t = new Date(time ?? '');
  if (Number.isNaN(t.getTime())) return '';
  const two = (n: number) => String(n).padStart(2, '0');
  return `${t.getFullYear()}-${two(t.getMonth() + 1)}-${two(t.getDate())} ${two(t.getHours())}:${two(t.getMinutes())}:${two(t.getSeconds())}`;
}

export function shape(s: number[] | undefined): string {
  return s === undefined ? '' : `[${s.join(', ')}]`;
}

/** A name for display: control characters become visible. */
export function clean(s: string): string {
  // eslint-disable-next-line no-control-regex
  return s.replace(/[\u0000-\u001f\u007f-\u009f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, (c) =>
    `\\u${c.charCodeAt(0).toString(16).padStart(4, '0')}`,
  );
}

/** Sorts "layers.2" before "layers.10". */
export const natural = new Intl.Collator('en', { numeric: true }).compare;

/** A text by which names sort as with natural, which is slow for many of them: "layers.2" before "layers.10". */
export function naturalKey(name: string): string {
  return name.replace(/\d+/g, (n) => n.padStart(12, '0'));
}
