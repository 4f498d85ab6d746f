import assert from 'node:assert/strict';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import { downloaded, isPNG, isSVG, made, root, setUp } from './browser.mjs';

describe('two checkpoints of a run', () => {
  const s = setUp({ before, after }, () => [path.join(made, 'run')]);
  const view = '#/compare?a=step-000000200&b=step-000000800&of=all';

  test('changes, sorted and searched', async () => {
    const w = await s.page(view);
    await w.page.getByRole('button', { name: /^64 different/ }).or(w.page.getByRole('button', { name: /^65 different/ })).waitFor();
    const table = w.page.getByRole('grid');
    await table.waitFor();
    await w.page.keyboard.press('/');
    await w.page.keyboard.type('embed');
    const row = table.getByRole('row').filter({ hasText: 'model.embed.weight' });
    await row.waitFor();
    assert.match(await row.innerText(), /identical/);
    await row.click();
    const opened = w.page.getByLabel('Opened name');
    await opened.waitFor();
    assert.match(await opened.innerText(), /0 of 16,384/);
    await w.page.waitForURL(/row=model\.embed\.weight/);
    await w.page.reload();
    await opened.waitFor();
    w.check();
    await w.close();
  });

  test('NaN and the values of objects are told in the table', async () => {
    const w = await s.page(view);
    const table = w.page.getByRole('grid');
    await table.waitFor();
    await w.page.keyboard.press('/');
    await w.page.keyboard.type('layers.11.mlp.up');
    await table.getByRole('row').filter({ hasText: '1 NaN on one side' }).waitFor();
    await w.page.getByLabel('Search names').fill('step');
    await table.getByRole('row').filter({ hasText: '200 → 800' }).waitFor();
    w.check();
    await w.close();
  });

  test('histograms over each other', async () => {
    const w = await s.page(`${view}&row=model.layers.5.mlp.up.weight`);
    const opened = w.page.getByLabel('Opened name');
    await opened.waitFor();
    const compute = opened.getByRole('button', { name: /Compute histograms/ });
    const chart = opened.locator('.u-wrap canvas');
    await compute.or(chart).first().waitFor();
    if (await compute.count()) await compute.click();
    await chart.waitFor();
    isSVG((await downloaded(w.page, opened.getByRole('button', { name: 'SVG' }))).content);
    w.check();
    await w.close();
  });

  test('downloads', async () => {
    const w = await s.page(view);
    await w.page.getByRole('grid').waitFor();
    isSVG((await downloaded(w.page, w.page.getByRole('button', { name: 'SVG' }).first())).content);
    isPNG((await downloaded(w.page, w.page.getByRole('button', { name: 'PNG' }).first())).content);
    const csv = (await downloaded(w.page, w.page.getByRole('button', { name: 'CSV' }).first())).content.toString().split('\r\n');
    assert.equal(csv.length, 69 + 2);
    w.check();
    await w.close();
  });

  test('A and B are swapped', async () => {
    const w = await s.page(view);
    await w.page.getByRole('grid').waitFor();
    await w.page.getByRole('button', { name: 'Swap A and B' }).click();
    await w.page.waitForURL(/a=step-000000800&b=step-000000200/);
    await w.page.getByRole('grid').waitFor();
    w.check();
    await w.close();
  });
});

describe('a checkpoint and another one of another format', () => {
  const fixtures = path.join(root, 'testdata/fixtures/torch-2.14');
  const s = setUp({ before, after }, () => [path.join(fixtures, 'shard0-4/ckpt'), path.join(fixtures, 'mesh2d-4/ckpt')]);

  test('names that one of them lacks are told', async () => {
    const w = await s.page('#/compare?a=.&b=@1');
    await w.page.getByRole('grid').waitFor();
    assert.ok(await w.page.getByRole('button', { name: /missing|extra|different|identical/ }).count());
    w.check();
    await w.close();
  });
});
