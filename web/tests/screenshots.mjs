// Takes a picture of each view, for the documentation: "make web-shots".
//
//   node screenshots.mjs FOLDER
import { mkdirSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { launch, made, patience, serve } from './browser.mjs';
import { indexed } from './png.mjs';

const out = process.argv[2];
if (!out) {
  console.error('usage: screenshots.mjs FOLDER');
  process.exit(2);
}
mkdirSync(out, { recursive: true });

const c = 'c=step-000000800';
const wide = { width: 1280, height: 860 };
const narrow = { width: 390, height: 844 };
const shots = [
  { name: 'run', of: 'run', at: '#/run', ready: (p) => p.getByRole('link', { name: 'step-000000800' }) },
  { name: 'layers', of: 'run', at: '#/run?layers=1', ready: (p) => p.getByRole('grid', { name: 'Layers' }), scroll: '#layers' },
  { name: 'layers-map', of: 'run', at: '#/run?layers=1&form=map', ready: (p) => p.getByRole('grid', { name: 'Layers' }), scroll: '#layers' },
  { name: 'checkpoint', of: 'run', at: `#/checkpoint?${c}`, ready: (p) => p.getByRole('grid', { name: 'Names' }) },
  { name: 'tensor', of: 'run', at: `#/tensor?${c}&name=model.layers.11.mlp.up.weight`, ready: (p) => p.getByText(/^exact: /), height: 1280 },
  { name: 'compare', of: 'run', at: '#/compare?a=step-000000200&b=step-000000800', ready: (p) => p.getByRole('grid') },
  { name: 'timeline', of: 'ranks-10000', at: '#/timeline', ready: (p) => p.getByLabel(/^Phases of 10,000 ranks/) },
  { name: 'timeline-16', of: 'ranks-16', at: '#/timeline?rank=5', ready: (p) => p.getByRole('heading', { name: 'Rank 5' }) },
  { name: 'run-dark', of: 'run', at: '#/run?layers=1', ready: (p) => p.getByRole('grid', { name: 'Layers' }), scroll: '#layers', dark: true },
  { name: 'checkpoint-dark', of: 'run', at: `#/checkpoint?${c}`, ready: (p) => p.getByRole('grid', { name: 'Names' }), dark: true },
  { name: 'tensor-dark', of: 'run', at: `#/tensor?${c}&name=model.layers.11.mlp.up.weight`, ready: (p) => p.getByText(/^exact: /), dark: true },
  { name: 'run-390', of: 'run', at: '#/run', ready: (p) => p.getByRole('link', { name: 'step-000000800' }), narrow: true },
  { name: 'checkpoint-390', of: 'run', at: `#/checkpoint?${c}`, ready: (p) => p.getByRole('grid', { name: 'Names' }), narrow: true },
  { name: 'tensor-390', of: 'run', at: `#/tensor?${c}&name=model.layers.11.mlp.up.weight`, ready: (p) => p.getByText(/^exact: /), narrow: true },
  { name: 'compare-390', of: 'run', at: '#/compare?a=step-000000200&b=step-000000800', ready: (p) => p.getByRole('grid'), narrow: true },
  { name: 'timeline-390', of: 'ranks-16', at: '#/timeline?rank=5', ready: (p) => p.getByRole('heading', { name: 'Rank 5' }), narrow: true },
];

/** The picture with a palette. A browser decodes it. */
async function smaller(png) {
  const page = await browser.newPage();
  const { width, height, pixels } = await page.evaluate(async (base64) => {
    const image = new Image();
    image.src = `data:image/png;base64,${base64}`;
    await image.decode();
    const canvas = new OffscreenCanvas(image.width, image.height);
    const g = canvas.getContext('2d');
    g.drawImage(image, 0, 0);
    const { data } = g.getImageData(0, 0, image.width, image.height);
    let text = '';
    for (let i = 0; i < data.length; i += 0x8000) text += String.fromCharCode(...data.subarray(i, i + 0x8000));
    return { width: image.width, height: image.height, pixels: btoa(text) };
  }, png.toString('base64'));
  await page.close();
  return indexed(Buffer.from(pixels, 'base64'), width, height);
}

const browser = await launch();
const servers = new Map();
try {
  for (const s of shots) {
    if (!servers.has(s.of)) servers.set(s.of, await serve([s.of], {}, made)); // a short path in the picture
    const context = await browser.newContext({
      viewport: { ...(s.narrow ? narrow : wide), ...(s.height ? { height: s.height } : {}) },
      colorScheme: s.dark ? 'dark' : 'light',
      reducedMotion: 'reduce',
    });
    context.setDefaultTimeout(patience);
    const page = await context.newPage();
    await page.goto(servers.get(s.of).address + s.at);
    await s.ready(page).first().waitFor();
    await page.waitForFunction(() => !document.querySelector('progress'));
    if (s.scroll) await page.locator(s.scroll).evaluate((e) => e.scrollIntoView());
    await page.waitForTimeout(500); // charts are drawn after the tables
    const shot = await page.screenshot();
    await context.close();
    writeFileSync(path.join(out, `web-${s.name}.png`), await smaller(shot));
  }
} finally {
  await browser.close();
  for (const s of servers.values()) await s.stop();
}
