import { stream, type Params, type Progress } from './api';

/** Hands a file to the browser's downloads. */
export function download(name: string, type: string, content: BlobPart): void {
  const a = document.createElement('a');
  a.href = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  a.download = name.replace(/[^\w.-]+/g, '_');
  a.click();
  setTimeout(() => URL.revokeObjectURL(a.href), 10_000);
}

/** Saves the chart that 'cairn plot' draws, as SVG or as PNG with twice its pixels. */
export async function savePlot(
  name: string,
  params: Params,
  as: 'svg' | 'png',
  signal: AbortSignal,
  onProgress: (p: Progress) => void = () => {},
): Promise<void> {
  const { svg } = await stream<{ svg: string }>('plot', params, signal, onProgress);
  if (as === 'svg') {
    download(`${name}.svg`, 'image/svg+xml', svg);
    return;
  }
  const image = new Image();
  const url = URL.createObjectURL(new Blob([svg], { type: 'image/svg+xml' }));
  try {
    image.src = url;
    await image.decode();
    const canvas = document.createElement('canvas');
    canvas.width = image.naturalWidth * 2;
    canvas.height = image.naturalHeight * 2;
    canvas.getContext('2d')!.drawImage(image, 0, 0, canvas.width, canvas.height);
    const blob = await new Promise<Blob | null>((done) => canvas.toBlob(done, 'image/png'));
    if (blob === null) throw new Error('The browser cannot make a PNG of this size.');
    download(`${name}.png`, 'image/png', blob);
  } finally {
    URL.revokeObjectURL(url);
  }
}

/** Saves rows as CSV. A text that a spreadsheet would take for a formula gets an apostrophe. */
export function saveCSV(name: string, head: string[], rows: Iterable<(string | number | null | undefined)[]>): void {
  const cell = (v: string | number | null | undefined) => {
    let s = v === null || v === undefined ? '' : String(v);
    if (typeof v === 'string' && /^[=+\-@\t\r]/.test(s)) s = `'${s}`;
    return /[",\r\n]/.test(s) ? `"${s.replaceAll('"', '""')}"` : s;
  };
  const lines = [head.map(cell).join(',')];
  for (const r of rows) lines.push(r.map(cell).join(','));
  download(`${name}.csv`, 'text/csv', lines.join('\r\n') + '\r\n');
}
