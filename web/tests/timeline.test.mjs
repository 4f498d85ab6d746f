import assert from 'node:assert/strict';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import { downloaded, isPNG, isSVG, made, root, setUp } from './browser.mjs';

describe('ten thousand ranks', () => {
  const s = setUp({ before, after }, () => [path.join(made, 'ranks-10000')]);
  const chart = (w) => w.page.getByLabel(/^Phases of 10,000 ranks/);

  test('slow ranks stand out', async () => {
    const w = await s.page('#/timeline');
    await chart(w).waitFor();
    for (const rank of [3333, 9998, 9]) await w.page.getByRole('button', { name: new RegExp(`^rank ${rank},`) }).waitFor();
    const phases = w.page.getByRole('table').first();
    assert.match(await phases.innerText(), /write\s+10,000\s+1\.9 s\s+\S+ s\s+(3333|9998)\s+19\.5 TiB/);
    await w.page.getByRole('button', { name: /^rank 3333,/ }).click();
    await w.page.waitForURL(/rank=3333/);
    await w.page.getByRole('heading', { name: 'Rank 3333' }).waitFor();
    assert.match(w.page.url(), /ranks=\d+%3A\d+/, 'the chart shows it');
    await w.page.reload();
    await w.page.getByRole('heading', { name: 'Rank 3333' }).waitFor();
    w.check();
    await w.close();
  });

  test('zooms by drag, wheel and keys', async () => {
    const w = await s.page('#/timeline');
    const c = chart(w);
    await c.waitFor();
    const box = await c.boundingBox();
    const shown = w.page.getByText(/^(ranks|places) [\d,]+–[\d,]+ of 10,000$/);
    assert.equal(await shown.innerText(), 'ranks 0–9,999 of 10,000');
    await w.page.mouse.move(box.x + 200, box.y + 100);
    await w.page.mouse.down();
    await w.page.mouse.move(box.x + 600, box.y + 150, { steps: 4 });
    await w.page.mouse.up();
    await w.page.waitForURL(/ranks=.*time=/);
    const dragged = await shown.innerText();
    assert.notEqual(dragged, 'ranks 0–9,999 of 10,000');
    await c.press('+');
    const closer = await shown.innerText();
    assert.notEqual(closer, dragged);
    await c.press('ArrowDown');
    assert.notEqual(await shown.innerText(), closer);
    await w.page.mouse.move(box.x + 300, box.y + 100);
    const address = w.page.url();
    await w.page.mouse.wheel(0, -200);
    await w.page.waitForURL((u) => u.href !== address);
    await w.page.reload();
    await shown.waitFor();
    assert.notEqual(await shown.innerText(), 'ranks 0–9,999 of 10,000', 'the address has the range');
    await c.press('Escape');
    await w.page.getByText('ranks 0–9,999 of 10,000').waitFor();
    await c.hover({ position: { x: 400, y: 160 } });
    await w.page.getByText(/the busiest of 2\d ranks in this line.*write/).waitFor();
    w.check();
    await w.close();
  });

  test('finds a rank', async () => {
    const w = await s.page('#/timeline');
    await chart(w).waitFor();
    await w.page.keyboard.press('/');
    await w.page.keyboard.type('7777');
    await w.page.keyboard.press('Enter');
    await w.page.getByRole('heading', { name: 'Rank 7777' }).waitFor();
    const search = w.page.getByRole('searchbox');
    await search.fill('10000');
    await search.press('Enter');
    await w.page.getByRole('alert').filter({ hasText: 'There is no rank 10000' }).waitFor();
    await w.page.getByRole('button', { name: 'busiest first' }).click();
    await w.page.waitForURL(/order=busy/);
    await w.page.getByRole('button', { name: 'Busy', exact: true }).click();
    const table = w.page.getByRole('grid', { name: 'Ranks' });
    await table.press('Home');
    await table.getByRole('row').nth(1).filter({ hasText: 'slow' }).waitFor();
    w.check();
    await w.close();
  });

  test('downloads', async () => {
    const w = await s.page('#/timeline');
    await chart(w).waitFor();
    isSVG((await downloaded(w.page, w.page.getByRole('button', { name: 'SVG' }))).content);
    isPNG((await downloaded(w.page, w.page.getByRole('button', { name: 'PNG' }))).content);
    const csv = (await downloaded(w.page, w.page.getByRole('button', { name: 'CSV' }))).content.toString();
    assert.match(csv, /^rank,busy_seconds,slow,phase,start_seconds/);
    assert.equal(csv.split('\r\n').length, 2 + 3 * 10_000 + 2);
    w.check();
    await w.close();
  });
});

describe('no timeline', () => {
  const s = setUp({ before, after }, () => [path.join(root, 'testdata/fixtures/torch-2.14/shard0-4/ckpt')]);

  test('is said calmly', async () => {
    const w = await s.page('#/timeline');
    await w.page.getByText(/no timeline/).waitFor();
    await w.page.getByRole('link', { name: 'Go to the checkpoint' }).click();
    await w.page.waitForURL(/#\/checkpoint/);
    w.check(/404/);
    await w.close();
  });
});

describe('a real save', () => {
  const s = setUp({ before, after }, () => [path.join(made, 'run')]);

  test('has the phases of four ranks', async () => {
    const w = await s.page('#/timeline?c=step-000000700');
    await w.page.getByLabel(/^Phases of 4 ranks/).waitFor();
    for (const phase of ['plan', 'write', 'commit']) assert.ok(await w.page.getByRole('cell', { name: phase, exact: true }).count(), phase);
    await w.page.getByLabel('Checkpoint').selectOption('step-000000200');
    await w.page.getByRole('heading', { name: 'Timeline of step-000000200' }).waitFor();
    w.check();
    await w.close();
  });
});
