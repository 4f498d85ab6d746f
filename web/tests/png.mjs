// Pictures with a palette of 256 colours, which take half of the room.
import { crc32, deflateSync } from 'node:zlib';

/**
 * Encodes pixels as a PNG with a palette: the most frequent colours, and for the others the nearest
 * of these.
 * @param {Uint8Array} rgba
 */
export function indexed(rgba, width, height) {
  const counts = new Map();
  for (let i = 0; i < rgba.length; i += 4) {
    const c = (rgba[i] << 16) | (rgba[i + 1] << 8) | rgba[i + 2];
    counts.set(c, (counts.get(c) ?? 0) + 1);
  }
  const palette = choose(counts);
  const index = new Map(palette.map((c, i) => [c, i]));
  const rows = Buffer.alloc((width + 1) * height); // each begins with the filter, 0
  for (let y = 0, i = 0; y < height; y++) {
    for (let x = 0; x < width; x++, i += 4) {
      const c = (rgba[i] << 16) | (rgba[i + 1] << 8) | rgba[i + 2];
      let at = index.get(c);
      if (at === undefined) index.set(c, (at = nearest(palette, c)));
      rows[y * (width + 1) + 1 + x] = at;
    }
  }
  const head = Buffer.alloc(13);
  head.writeUInt32BE(width, 0);
  head.writeUInt32BE(height, 4);
  head.set([8, 3, 0, 0, 0], 8); // 8 bits, palette
  const colors = Buffer.from(palette.flatMap((c) => [c >> 16, (c >> 8) & 255, c & 255]));
  const signature = Buffer.from([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a]);
  return Buffer.concat([signature, chunk('IHDR', head), chunk('PLTE', colors), chunk('IDAT', deflateSync(rows, { level: 9 })), chunk('IEND', Buffer.alloc(0))]);
}

// Frequent colours, as long as they are not close to one that was chosen before.
function choose(counts) {
  const byCount = [...counts].sort((a, b) => b[1] - a[1]).map(([c]) => c);
  const out = byCount.slice(0, 48);
  for (let distance = 24; out.length < 256 && distance >= 0; distance -= 4) {
    for (const c of byCount) {
      if (out.length === 256) break;
      if (!out.includes(c) && out.every((o) => far(o, c) > distance * distance)) out.push(c);
    }
  }
  return out;
}

function far(a, b) {
  const [r, g, l] = [(a >> 16) - (b >> 16), ((a >> 8) & 255) - ((b >> 8) & 255), (a & 255) - (b & 255)];
  return r * r + g * g + l * l;
}

function nearest(palette, c) {
  let best = 0;
  palette.forEach((p, i) => far(p, c) < far(palette[best], c) && (best = i));
  return best;
}

function chunk(type, data) {
  const out = Buffer.alloc(12 + data.length);
  out.writeUInt32BE(data.length, 0);
  out.write(type, 4, 'latin1');
  out.set(data, 8);
  out.writeUInt32BE(crc32(out.subarray(4, 8 + data.length)), 8 + data.length);
  return out;
}
