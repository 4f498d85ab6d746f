import assert from 'node:assert/strict';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import { downloaded, isPNG, isSVG, made, setUp } from './browser.mjs';

const s = setUp({ before, after }, () => [path.join(made, 'run')]);
const tensor = (name, more = '') => `#/tensor?c=step-000000800&name=${encodeURIComponent(name)}${more}`;

test('statistics and histograms, with NaN and infinity', async () => {
  const w = await s.page(tensor('model.layers.11.mlp.up.weight'));
  const facts = w.page.locator('.facts');
  await facts.filter({ hasText: 'standard deviation' }).waitFor();
  const text = await facts.filter({ hasText: 'standard deviation' }).innerText();
  assert.match(text, /NaN\s+1 \(/);
  assert.match(text, /\binf\s+1 \(/);
  await w.page.getByRole('button', { name: 'log₂ of magnitudes' }).click();
  await w.page.waitForURL(/scale=log2/);
  await w.page.getByRole('button', { name: 'logarithmic' }).click();
  await w.page.waitForURL(/counts=log/);
  await w.page.reload();
  await w.page.getByRole('button', { name: 'log₂ of magnitudes', pressed: true }).waitFor();
  await w.page.getByText(/NaN: 1 in view/).waitFor();
  w.check();
  await w.close();
});

describe('a wide tensor', () => {
  const s = setUp({ before, after }, () => [path.join(made, 'wide')]);

  test('its heat map zooms to single values and reads what it shows', async () => {
    const w = await s.page('#/tensor?c=.&name=w');
    const asked = [];
    w.page.on('request', (r) => r.url().includes('/api/heat') && asked.push(new URL(r.url()).searchParams));
    await w.page.getByText(/^exact: all 2,250,000 elements in [\d,]+ cells/).waitFor();
    const zoom = w.page.getByRole('button', { name: 'Zoom in' });
    const single = w.page.getByText('exact: each cell is one element');
    for (let i = 0; i < 20 && !(await single.count()); i++) {
      await zoom.click();
      await w.page.waitForTimeout(200);
    }
    await single.waitFor();
    await w.page.waitForURL(/rows=.*cols=/);
    const part = asked.at(-1);
    assert.ok(part.get('rows') && part.get('cols'), 'only a part is asked for');
    await w.page.reload();
    await single.waitFor();
    await w.page.getByRole('button', { name: 'Whole' }).click();
    await w.page.getByText(/^exact: all 2,250,000 elements/).waitFor();
    await w.page.waitForURL((u) => !u.href.includes('rows='));
    w.check();
    await w.close();
  });
});

test('the program to read it can be copied', async () => {
  const w = await s.page(tensor('model.embed.weight'), { permissions: ['clipboard-read', 'clipboard-write'] });
  await w.page.getByText('Copy as code').click();
  const program = w.page.getByLabel('Program');
  await program.waitFor();
  assert.match(await program.innerText(), /model\.embed\.weight/);
  await w.page.getByRole('button', { name: 'Copy', exact: true }).click();
  assert.match(await w.page.evaluate(() => navigator.clipboard.readText()), /model\.embed\.weight/);
  w.check();
  await w.close();
});

test('it names its checkpoint, and shows the same tensor of another one', async () => {
  const name = 'model.layers.11.mlp.up.weight';
  const w = await s.page(tensor(name));
  const choice = w.page.getByLabel('Checkpoint', { exact: true });
  assert.equal(await choice.inputValue(), 'step-000000800');
  await w.page.getByText(/NaN: 1 in view/).waitFor();
  await choice.selectOption('step-000000300');
  await w.page.waitForURL(/c=step-000000300/);
  await w.page.getByText(/^exact: /).waitFor();
  await w.page.getByText('standard deviation', { exact: true }).waitFor();
  assert.equal(await w.page.getByText(/NaN: 1 in view/).count(), 0);
  await w.page.goBack();
  await w.page.getByText(/NaN: 1 in view/).waitFor();
  w.check();
  await w.close();
});

test('the legend of a heat map counts what is in sight', async () => {
  const w = await s.page(tensor('model.layers.11.mlp.up.weight')); // its NaN is at [85, 21]
  await w.page.getByText(/NaN: 1 in view/).waitFor();
  const map = w.page.getByLabel(/^Heat map/);
  await map.focus();
  for (let i = 0; i < 6; i++) await w.page.keyboard.press('+'); // around the middle
  await w.page.waitForURL(/rows=1\d\d%3A1\d\d/);
  await w.page.getByText('value of the element', { exact: true }).waitFor();
  await w.page.getByText(/NaN: 1 in view/).waitFor({ state: 'detached' });
  w.check();
  await w.close();
});

test('downloads', async () => {
  const w = await s.page(tensor('model.layers.0.mlp.up.weight'));
  await w.page.getByText(/^exact: /).waitFor();
  await w.page.getByText('standard deviation', { exact: true }).waitFor();
  const [svg, png] = [w.page.getByRole('button', { name: 'SVG' }), w.page.getByRole('button', { name: 'PNG' })];
  await svg.nth(2).waitFor();
  for (let i = 0; i < 3; i++) {
    isSVG((await downloaded(w.page, svg.nth(i))).content);
    isPNG((await downloaded(w.page, png.nth(i))).content);
  }
  w.check();
  await w.close();
});

test('its history over the steps is computed if asked for', async () => {
  const w = await s.page(tensor('model.layers.11.mlp.up.weight'));
  const asked = [];
  w.page.on('request', (r) => r.url().includes('/api/history') && asked.push(r.url()));
  const button = w.page.getByRole('button', { name: /^Compute: read up to [\d.]+ KiB of 9 checkpoints/ });
  await button.waitFor();
  assert.equal(asked.length, 0, 'nothing is read before');
  await button.click();
  await w.page.waitForURL(/history=1/);
  for (const name of ['norm (L2) over the steps', 'standard deviation over the steps', 'share of NaN over the steps'])
    await w.page.getByRole('img', { name }).waitFor();
  const map = w.page.getByRole('img', { name: 'Histogram over the steps' });
  await map.waitFor();
  const part = (name) => w.page.getByRole('region', { name, exact: true });
  isSVG((await downloaded(w.page, part('norm (L2)').getByRole('button', { name: 'SVG' }))).content);
  isPNG((await downloaded(w.page, part('Histogram over the steps').getByRole('button', { name: 'PNG' }))).content);
  const csv = (await downloaded(w.page, w.page.getByRole('button', { name: 'CSV' }).first())).content.toString().split('\r\n');
  assert.equal(csv[0], 'checkpoint,step,time,l2,mean,std,abs_max,nan_share,error');
  assert.match(csv.find((l) => l.startsWith('step-000000800,800,')), /,0\.000\d+,$/);
  assert.match(csv.find((l) => l.startsWith('step-000000500,500,')), /,0,$/);

  // The pointer reads a bucket, and a click opens its checkpoint.
  const over = map.locator('.u-over');
  const box = await over.boundingBox();
  await over.hover({ position: { x: 5, y: box.height / 2 } });
  await map.getByText(/^[\d.]+% of the elements are from -?[\d.e-]+ to [\d.e-]+$/).waitFor();
  await over.click({ position: { x: 5, y: box.height / 2 } });
  await w.page.waitForURL(/c=step-000000050&.*history=1/);
  await map.waitFor();
  await w.page.reload();
  await map.waitFor();
  w.check();
  await w.close();
});

test('it leads to its layer', async () => {
  const w = await s.page(tensor('model.layers.11.mlp.up.weight'));
  await w.page.getByRole('link', { name: 'Layer model.layers.11 over the steps' }).click();
  await w.page.waitForURL(/#\/run\?layers=1&select=model\.layers\.11&layer=model\.layers\.11$/);
  const table = w.page.getByRole('grid', { name: 'Layers' });
  await table.waitFor();
  assert.equal(await table.getAttribute('aria-rowcount'), '2', 'one layer and the head');
  w.check();
  await w.close();
});

test('a name that does not exist', async () => {
  const w = await s.page(tensor('no.such.name'));
  const alert = w.page.getByRole('alert');
  await alert.waitFor();
  assert.match(await alert.innerText(), /no\.such\.name/);
  w.check(/404/);
  await w.close();
});
