// Weights come first, and maps have colours of norms, changes and NaN.
import assert from 'node:assert/strict';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { made, setUp } from './browser.mjs';

const s = setUp({ before, after }, () => [path.join(made, 'moments')]);
const last = 'c=step-000000002';
const phone = { viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true };

test('statistics by layer show the weights, then the optimizer, and no counters', async () => {
  const w = await s.page('#/run?layers=1');
  const table = w.page.getByRole('grid', { name: 'Layers' });
  await table.waitFor();
  const rows = async () => [await table.getAttribute('aria-rowcount'), await table.getByRole('row').nth(1).innerText()];
  assert.deepEqual((await rows())[0], '21');
  assert.match((await rows())[1], /network\.model\.decoder\.layers\.0/);
  await w.page.getByRole('group', { name: 'Names' }).getByRole('button', { name: 'optimizer' }).click();
  await table.getByText('optim.state.0', { exact: true }).waitFor();
  assert.match(w.page.url(), /of=optimizer/);
  await table.getByRole('row').nth(1).click();
  await w.page.waitForURL(/layer=optim\.state\.0/);
  await w.page.getByRole('group', { name: 'Names' }).getByRole('button', { name: 'all' }).click();
  await w.page.locator('[aria-rowcount="41"]').waitFor();
  w.check();
  await w.close();
});

test('the lines of 20 layers differ, and a tooltip is at the pointer', async () => {
  const w = await s.page('#/run?layers=1&form=lines');
  const chart = w.page.getByRole('img', { name: /norm \(L2\) by layer/ });
  await chart.waitFor();
  assert.equal(await chart.locator('.u-legend .u-series').count(), 20, 'a legend with each line');
  await chart.scrollIntoViewIfNeeded();
  const box = await chart.locator('.u-over').boundingBox();
  const tip = w.page.locator('.tip');
  for (let y = 4; y < box.height && !(await tip.count()); y += 4) await w.page.mouse.move(box.x + box.width - 60, box.y + y);
  assert.match(await tip.innerText(), /network\.model\.decoder\.layers\.\d+\s+step 2: norm/);
  near(await tip.boundingBox(), box.x + box.width - 60);
  w.check();
  await w.close();
});

/** Fails unless a tooltip is beside a place. */
function near(tip, x) {
  const away = Math.max(tip.x - x, x - tip.x - tip.width, 0);
  assert.ok(away < 40, `the tooltip is ${away} pixels away from the pointer`);
}

test('the heat map of layers has whole names on a wide screen, and marks the chosen layer', async () => {
  const w = await s.page('#/run?layers=1&form=map&layer=network.model.decoder.layers.7');
  const map = w.page.getByLabel(/by layer and step/);
  await map.waitFor();
  await map.scrollIntoViewIfNeeded();
  const box = await map.boundingBox();
  await w.page.mouse.move(box.x + box.width - 30, box.y + 5);
  const tip = w.page.locator('.tip');
  assert.match(await tip.innerText(), /decoder\.layers\.0\s+step 2: norm/);
  near(await tip.boundingBox(), box.x + box.width - 30);
  await w.page.getByRole('row', { selected: true }).filter({ hasText: 'layers.7' }).waitFor();
  w.check();
  await w.close();
});

test('on a phone numbers are whole, and names lose their beginning', async () => {
  for (const [at, grid] of [['#/run?layers=1', 'Layers'], [`#/checkpoint?${last}`, 'Names'], ['#/compare?a=step-000000001&b=step-000000002', 'Names and what changed']]) {
    const w = await s.page(at, phone);
    const table = w.page.getByRole('grid', { name: grid });
    await table.getByRole('row').nth(2).waitFor();
    const cells = await table.evaluate((e) =>
      [...e.querySelectorAll('[role=gridcell]')].map((c) => ({ text: c.textContent, cut: c.scrollWidth > c.clientWidth, number: c.classList.contains('right'), end: c.querySelector('bdi').getBoundingClientRect().right <= c.getBoundingClientRect().right + 1 })),
    );
    assert.deepEqual(cells.filter((c) => c.number && c.cut), [], `${grid}: numbers that are cut`);
    assert.ok(cells.some((c) => c.cut && !c.number), `${grid}: a name that is cut`);
    assert.ok(cells.filter((c) => c.cut).every((c) => c.end), `${grid}: the end of each name is seen`);
    w.check();
    await w.close();
  }
});

test('a checkpoint shows its weights, and other names if asked for', async () => {
  const w = await s.page(`#/checkpoint?${last}`);
  const names = w.page.getByRole('group', { name: 'Names' });
  await names.getByRole('button', { name: 'weights 20', pressed: true }).waitFor();
  await w.page.getByRole('status').filter({ hasText: /^20 names/ }).waitFor();
  await names.getByRole('button', { name: 'all 61' }).click();
  await w.page.getByRole('status').filter({ hasText: /^61 names/ }).waitFor();
  await names.getByRole('button', { name: 'optimizer 20' }).click();
  await w.page.getByRole('status').filter({ hasText: /^20 names/ }).waitFor();
  await w.page.reload();
  await names.getByRole('button', { name: 'optimizer 20', pressed: true }).waitFor();
  // A link to other names shows all.
  await w.page.goto(`${w.page.url().split('#')[0]}#/checkpoint?${last}&at=optim`);
  await names.getByRole('button', { name: 'all 61', pressed: true }).waitFor();
  w.check();
  await w.close();
});

test('the map has colours of norms, changes and NaN', async () => {
  const w = await s.page(`#/checkpoint?${last}`);
  const asked = [];
  w.page.on('request', (r) => /tensors|compare/.test(r.url()) && asked.push(new URL(r.url()).pathname.slice(5)));
  const map = w.page.getByLabel(/^Map of names by size/);
  await map.waitFor();
  const colors = () =>
    map.evaluate((c) => {
      const { data } = c.getContext('2d').getImageData(0, 0, c.width, c.height);
      const seen = new Map();
      for (let i = 0; i < data.length; i += 4) {
        const rgb = `${data[i]} ${data[i + 1]} ${data[i + 2]}`;
        seen.set(rgb, (seen.get(rgb) ?? 0) + 1);
      }
      return [...seen].filter(([, n]) => n > 1000).map(([rgb]) => rgb);
    });
  const colour = w.page.getByLabel('Colour of the map');
  assert.ok(!(await colors()).includes('27 31 35'), 'a dtype has no infinities');
  for (const [by, title] of [['norm', 'root mean square'], ['change', 'relative change'], ['nan', 'NaN or infinite']]) {
    await colour.selectOption(by);
    await w.page.locator('.ramp').filter({ hasText: title }).waitFor();
    await w.page.waitForTimeout(300); // the map is drawn after the legend
    const seen = await colors();
    if (by !== 'change') assert.ok(seen.includes('27 31 35'), `${by}: the layer with an infinity has the colour of the text`);
    if (by !== 'nan') assert.ok(seen.length > 10, `${by}: ${seen.length} colours of 20 tensors`);
  }
  assert.deepEqual(asked, ['tensors', 'compare', 'tensors']);
  await w.page.getByRole('button', { name: 'Icicle' }).click();
  await w.page.reload();
  await w.page.locator('.ramp').filter({ hasText: 'NaN or infinite' }).waitFor();
  w.check(/willReadFrequently/); // about this test, which reads the canvas
  await w.close();
});

test('comparisons are about the weights first', async () => {
  const w = await s.page('#/compare?a=step-000000001&b=step-000000002');
  const grid = w.page.getByRole('grid');
  await grid.waitFor();
  assert.equal(await grid.getAttribute('aria-rowcount'), '21');
  await w.page.getByRole('group', { name: 'Names' }).getByRole('button', { name: 'all' }).click();
  await w.page.locator('[aria-rowcount="62"]').waitFor();
  w.check();
  await w.close();
});

for (const [width, options] of [[1280, {}], [700, { viewport: { width: 700, height: 900 } }], [390, phone]]) {
  test(`a square tensor is square, its infinity has a ring, and the tooltip is on screen, ${width} pixels`, async () => {
    const w = await s.page(`#/tensor?${last}&name=network.model.decoder.layers.3.mlp.weight`, options);
    await w.page.getByText(/^exact: /).waitFor();
    const map = w.page.getByLabel(/^Heat map/);
    await map.scrollIntoViewIfNeeded();
    const box = await map.boundingBox();
    const [wide, high] = [box.width - 80, box.height - 48];
    assert.ok(Math.abs(wide - high) <= 2, `48 × 48 elements have ${wide} × ${high} pixels`);
    await w.page.waitForTimeout(300);
    // Element 1000 is in row 20, column 40: there is something black and white around it.
    const black = await map.evaluate((c) => {
      const k = c.width / c.getBoundingClientRect().width;
      const cell = (c.getBoundingClientRect().width - 80) / 48;
      const [x, y] = [72 + 40.5 * cell, 6 + 20.5 * cell];
      const r = 18;
      const { data } = c.getContext('2d').getImageData((x - r) * k, (y - r) * k, 2 * r * k, 2 * r * k);
      let n = 0;
      for (let i = 0; i < data.length; i += 4) if (data[i] + data[i + 1] + data[i + 2] < 30 && data[i + 3] === 255) n++;
      return n;
    });
    assert.ok(black > 40, `${black} black pixels around the infinity`);
    const at = { x: box.x + 72 + (wide * 40.5) / 48, y: box.y + 6 + (high * 20.5) / 48 };
    if (width === 390) await w.page.touchscreen.tap(at.x, at.y);
    else await w.page.mouse.move(at.x, at.y);
    const tip = w.page.locator('.tip');
    assert.match(await tip.innerText(), /row 20, column 40: inf/);
    near(await tip.boundingBox(), at.x);
    const t = await tip.boundingBox();
    assert.ok(t.x >= 0 && t.x + t.width <= width && t.y >= 0, 'the tooltip is on screen');
    w.check();
    await w.close();
  });
}
