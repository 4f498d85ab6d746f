import assert from 'node:assert/strict';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import { downloaded, isPNG, isSVG, made, root, setUp } from './browser.mjs';

const s = setUp({ before, after }, () => [path.join(made, 'run')]);

test('the checkpoints of a run', async () => {
  const w = await s.page();
  const rows = w.page.getByRole('row');
  await w.page.getByRole('link', { name: 'step-000000800' }).waitFor();
  const row = (name) => rows.filter({ hasText: name }).first();
  assert.match(await row('step-000000800').innerText(), /not uploaded[\s\S]*1\.9169[\s\S]*last 2, best 1 by loss, newest/);
  assert.match(await row('step-000000700').innerText(), /NaN/);
  assert.match(await row('step-000000600').innerText(), /copies differ/);
  assert.match(await row('step-000000500').innerText(), /both[\s\S]*would be removed/);
  assert.match(await row('step-000000200').innerText(), /release[\s\S]*step-000000100[\s\S]*tagged/);
  assert.match(await row('step-000000050').innerText(), /remote/);
  assert.match(await row('step-000000900').innerText(), /incomplete/);
  assert.ok(await w.page.getByText(/checkpoint is incomplete: .* no cairn.json/).count(), 'the problem is told');
  assert.ok(await w.page.getByText('6 copies, 12.9 MiB').count(), 'what the policy would remove');
  assert.equal(await w.page.locator('.u-wrap canvas').count(), 2, 'two charts');
  w.check();
  await w.close();
});

describe('a run whose jobs have gone back', () => {
  const forked = setUp({ before, after }, () => [path.join(made, 'forked')]);

  test('lines are drawn, and checkpoints that were left are marked', async () => {
    const w = await forked.page();
    await w.page.getByRole('link', { name: 'step-000000300~3' }).waitFor();
    const row = (name) => w.page.getByRole('row').filter({ has: w.page.getByRole('link', { name, exact: true }) });
    assert.match(await row('step-000000300~3').innerText(), /head/);
    for (const name of ['step-000000300', 'step-000000400', 'step-000000300~2', 'step-000000150'])
      assert.match(await row(name).innerText(), /left/, name);
    for (const name of ['step-000000100', 'step-000000200', 'step-000000220', 'step-000000240'])
      assert.doesNotMatch(await row(name).innerText(), /left|head/, name);
    const dots = async (name) => row(name).locator('circle').getAttribute('cx');
    assert.equal(await dots('step-000000200'), await dots('step-000000300~3'));
    assert.notEqual(await dots('step-000000200'), await dots('step-000000400'));
    assert.notEqual(await dots('step-000000400'), await dots('step-000000250'));
    assert.ok(await w.page.getByText('on lines that were left').count());

    await w.page.getByRole('button', { name: 'Step', exact: true }).click();
    await w.page.getByRole('columnheader', { name: 'Step ▼' }).waitFor();
    assert.equal(await w.page.locator('td circle').count(), 0, 'only the order of the saves has lines');
    await w.page.getByRole('button', { name: /^Compute: read .* of 5 checkpoints/ }).waitFor();
    w.check();
    await w.close();
  });
});

test('the first key leads to the content, and the view stays', async () => {
  const w = await s.page('#/run');
  await w.page.getByRole('link', { name: 'step-000000800' }).waitFor();
  await w.page.keyboard.press('Tab');
  assert.equal(await w.page.evaluate(() => document.activeElement?.textContent), 'Go to the content');
  await w.page.keyboard.press('Enter');
  await w.page.waitForFunction(() => document.activeElement?.id === 'content');
  assert.match(w.page.url(), /#\/run$/);
  w.check();
  await w.close();
});

test('sorted, picked and compared, all in the address', async () => {
  const w = await s.page('#/run');
  const name = (i) => w.page.locator('.scroll tbody tr:not(.problem)').nth(i).locator('td').nth(1).innerText();
  await w.page.getByRole('button', { name: 'Step', exact: true }).click();
  await w.page.getByRole('columnheader', { name: 'Step ▼' }).waitFor();
  await w.page.getByRole('button', { name: 'Step ▼' }).click();
  await w.page.getByRole('columnheader', { name: 'Step ▲' }).waitFor();
  assert.equal(await name(0), 'step-000000050');
  await w.page.getByRole('checkbox', { name: 'Pick step-000000700' }).check();
  await w.page.getByRole('checkbox', { name: 'Pick step-000000400' }).check();
  const compare = w.page.getByRole('link', { name: 'Compare step-000000400 with step-000000700' });
  await compare.waitFor();
  await w.page.reload();
  await compare.waitFor();
  assert.equal(await name(0), 'step-000000050');
  await w.page.getByRole('combobox', { name: 'Metric' }).selectOption('tokens');
  await w.page.getByRole('img', { name: 'tokens of the checkpoints by step' }).waitFor();
  await w.page.getByRole('combobox', { name: 'Add another' }).selectOption('loss');
  await w.page.getByRole('img', { name: 'loss of the checkpoints by step' }).waitFor(); // below it, because it is much smaller
  await w.page.getByRole('button', { name: 'Remove loss' }).click();
  await w.page.getByRole('img', { name: 'loss of the checkpoints by step' }).waitFor({ state: 'detached' });
  await w.page.getByRole('combobox', { name: 'by' }).selectOption('time');
  await w.page.getByRole('img', { name: 'Sizes of the checkpoints by time' }).waitFor();
  await compare.click();
  await w.page.waitForURL(/#\/compare\?a=step-000000400&b=step-000000700/);
  await w.page.goBack();
  await compare.waitFor();
  w.check();
  await w.close();
});

test('statistics by layer are computed if asked for', async () => {
  const asked = [];
  const w = await s.page('#/run');
  w.page.on('request', (r) => r.url().includes('/api/steps') && asked.push(r.url()));
  const button = w.page.getByRole('button', { name: /^Compute: read up to [\d.]+ MiB of 9 checkpoints/ });
  await button.waitFor();
  assert.equal(asked.length, 0, 'nothing is read before');
  await button.click();
  const loud = w.page.getByRole('alert').filter({ hasText: 'NaN in model.layers.11 since step 600' });
  await loud.waitFor();
  assert.equal(await w.page.getByRole('alert').count(), 1, 'only this layer has NaNs');
  const table = w.page.getByRole('grid', { name: 'Layers' });
  assert.match(await table.getByRole('row').filter({ hasText: 'model.layers.11' }).innerText(), /%/);
  assert.ok(await w.page.getByText('1 of 10 checkpoints could not be read').count());
  await w.page.getByRole('button', { name: 'share of NaN', exact: true }).click();
  await w.page.getByRole('img', { name: /share of NaN by layer/ }).waitFor();
  await w.page.getByRole('button', { name: 'heat map' }).click();
  await w.page.getByLabel(/share of NaN by layer and step/).waitFor();
  await w.page.reload();
  await w.page.getByLabel(/share of NaN by layer and step/).waitFor();
  w.check();
  await w.close();
});

test('a layer leads to its tensors', async () => {
  const w = await s.page('#/run?layers=1&layer=model.layers.1');
  const table = w.page.getByRole('grid', { name: 'Layers' });
  await table.getByRole('link', { name: 'model.layers.1', exact: true }).click();
  await w.page.waitForURL(/#\/checkpoint\?c=step-000000800&at=model\.layers\.1$/);
  const names = w.page.getByRole('grid', { name: 'Names' });
  await names.waitFor();
  await names.getByText('mlp.up.weight').first().waitFor();
  assert.doesNotMatch(await names.innerText(), /layers\.1[0-9]/);
  w.check();
  await w.close();
});

test('a pattern chooses the tensors of the statistics', async () => {
  const w = await s.page('#/run');
  await w.page.getByLabel('Tensors').fill('model.layers.3.*');
  await w.page.getByRole('button', { name: /^Compute/ }).click();
  const table = w.page.getByRole('grid', { name: 'Layers' });
  await table.waitFor();
  assert.equal(await table.getAttribute('aria-rowcount'), '2', 'one layer and the head');
  assert.match(await table.innerText(), /model\.layers\.3/);
  w.check();
  await w.close();
});

test('the heat map says what it shows, and opens the checkpoint', async () => {
  const w = await s.page('#/run?layers=1&form=map');
  const map = w.page.getByLabel('norm (L2) by layer and step', { exact: false });
  await map.waitFor();
  const box = await map.boundingBox();
  await map.hover({ position: { x: box.width * 0.97, y: 8 } });
  await w.page.getByText(/step\s+800: norm/).waitFor();
  await map.click({ position: { x: box.width * 0.97, y: 8 } });
  await w.page.waitForURL(/#\/checkpoint\?c=step-000000800&q=model/);
  w.check();
  await w.close();
});

test('downloads', async () => {
  const w = await s.page('#/run?layers=1&measure=mean');
  await w.page.getByRole('grid', { name: 'Layers' }).waitFor();
  const svg = w.page.getByRole('button', { name: 'SVG' });
  const png = w.page.getByRole('button', { name: 'PNG' });
  const csv = w.page.getByRole('button', { name: 'CSV' });
  isSVG((await downloaded(w.page, svg.nth(0))).content);
  isPNG((await downloaded(w.page, png.nth(0))).content);
  const metrics = (await downloaded(w.page, svg.nth(1))).content;
  isSVG(metrics);
  assert.match(metrics.toString(), /loss is not finite in 1 checkpoint/);
  const steps = await downloaded(w.page, svg.nth(2));
  isSVG(steps.content);
  assert.match(steps.name, /mean.*\.svg$/);
  isPNG((await downloaded(w.page, png.nth(2))).content);
  const checkpoints = (await downloaded(w.page, csv.nth(0))).content.toString().split('\r\n');
  assert.match(checkpoints[0], /^name,step,time,bytes,copies,.*loss,tokens/);
  assert.equal(checkpoints.length, 12, 'ten checkpoints, a head and an end');
  const layers = (await downloaded(w.page, csv.nth(1))).content.toString().split('\r\n');
  assert.equal(layers[0], 'layer,checkpoint,step,time,l2,mean,abs_max,nan_share,error');
  assert.equal(layers.length, 2 + 17 * 10);
  assert.match(layers.find((l) => l.startsWith('model.layers.11,step-000000800')), /,0\.000\d+,$/);
  w.check();
  await w.close();
});

describe('a run without steps, policy and remote run', () => {
  const s = setUp({ before, after }, () => [path.join(root, 'testdata/fixtures/torch-2.14/hf-3')]);

  test('is shown by time', async () => {
    const w = await s.page();
    await w.page.getByRole('link', { name: 'consolidated' }).waitFor();
    await w.page.getByRole('img', { name: 'Sizes of the checkpoints by time' }).waitFor();
    assert.ok(await w.page.getByText('keeps all').count());
    assert.equal(await w.page.getByText('would remove').count(), 0);
    await w.page.getByRole('button', { name: /^Compute/ }).click();
    await w.page.getByRole('img', { name: /norm \(L2\) by layer/ }).waitFor();
    await w.page.getByLabel('Tensors').fill('nothing.*');
    await w.page.getByRole('button', { name: /^Compute again/ }).click();
    await w.page.getByText('No tensor matches nothing.*').waitFor();
    await w.page.getByLabel('Tensors').fill('[');
    await w.page.getByRole('button', { name: /^Compute again/ }).click();
    await w.page.getByRole('alert').waitFor();
    w.check(/400/);
    await w.close();
  });
});
