// Names that try to break the page. None of them may run, and all of them can be opened.
import assert from 'node:assert/strict';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { downloaded, fits, isPNG, isSVG, made, setUp } from './browser.mjs';

const s = setUp({ before, after }, () => [path.join(made, 'hostile'), path.join(made, 'hostile')]);

/** The names in the answer of the server. */
async function names(page) {
  return page.evaluate(async () => {
    const token = new URLSearchParams(location.search).get('token');
    const r = await fetch('api/names?c=.&of=all', { headers: { Authorization: `Bearer ${token}` } });
    const { labels, label, below } = await r.json();
    const found = [];
    const walk = (from, to, above) => {
      for (let i = from; i < to; i += 1 + below[i]) {
        const name = above + labels[label[i]];
        if (below[i] === 0) found.push(name);
        else walk(i + 1, i + 1 + below[i], `${name}.`);
      }
    };
    walk(0, label.length, '');
    return found;
  });
}

test('the table shows them as text', async () => {
  const w = await s.page('#/checkpoint?of=all');
  const table = w.page.getByRole('grid', { name: 'Names' });
  await w.page.getByText(/^19 names/).waitFor();
  assert.equal(await table.getAttribute('aria-rowcount'), '20', '19 names and the head');
  const text = await table.innerText();
  for (const name of ['<img src=x onerror=alert(1)>', '<script>alert(2)</script>', '../../etc/passwd', '__proto__', 'two\\u000alines', 'right\\u202eto left']) {
    assert.ok(text.includes(name), name);
  }
  assert.equal(await w.page.locator('main img, main script, main b').count(), 0, 'no element of theirs');
  const csv = (await downloaded(w.page, w.page.getByRole('button', { name: 'CSV' }))).content.toString();
  assert.ok(csv.includes(`'=1+cmd|`), 'a spreadsheet takes it for text');
  isSVG((await downloaded(w.page, w.page.getByRole('button', { name: 'SVG' }))).content);
  isPNG((await downloaded(w.page, w.page.getByRole('button', { name: 'PNG' }))).content);
  w.check();
  await w.close();
});

test('each can be opened, and its charts saved', async () => {
  const w = await s.page('#/checkpoint?of=all');
  await w.page.getByRole('grid', { name: 'Names' }).waitFor();
  const all = await names(w.page);
  assert.equal(all.length, 19);
  for (const name of all) {
    await w.page.evaluate((n) => (location.hash = `#/tensor?${new URLSearchParams({ c: '.', name: n })}`), name);
    if (name === 'object') {
      await w.page.getByLabel('value').filter({ hasText: '<b onclick="alert(4)">' }).waitFor();
      continue;
    }
    // The heading has the name with its control characters made visible.
    const shown = name.replace(/[\u0000-\u001f\u2028\u2029\u200e\u200f\u202e]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, '0')}`);
    await w.page.waitForFunction((n) => document.querySelector('h1')?.textContent === n, shown);
    await w.page.getByText('standard deviation', { exact: true }).waitFor();
    await w.page.getByText(/^exact: each cell is one element/).waitFor();
    assert.match(await w.page.locator('main').innerText(), /NaN/);
    isSVG((await downloaded(w.page, w.page.getByRole('button', { name: 'SVG' }).nth(1))).content);
    await fits(w.page);
  }
  assert.equal(await w.page.locator('main img, main script').count(), 0);
  w.check();
  await w.close();
});

test('they are compared', async () => {
  const w = await s.page('#/compare?a=.&b=@1');
  await w.page.getByRole('button', { name: /identical/ }).waitFor();
  await w.page.getByRole('grid').getByRole('row').filter({ hasText: '<img src=x' }).click();
  await w.page.getByLabel('Opened name').waitFor();
  assert.equal(await w.page.locator('main img, main script').count(), 0);
  w.check();
  await w.close();
});

test('hostile addresses are only wrong', async () => {
  for (const view of ['#/run', '#/nothing', '#/tensor', '#/tensor?c=.&name=%00', '#/tensor?c=../..&name=x', '#/checkpoint?c=%3Cscript%3E', '#/compare?a=x&b=y', '#/timeline?c=../../etc', '#/tensor?c=.&name=__proto__&rows=9:1&cols=x&index=[', '#/checkpoint?sort=__proto__&at=%F0%9F&min=-1', '#/timeline?ranks=5:1&time=NaN:1&rank=1e99&order=x']) {
    const w = await s.page(view);
    await w.page.locator('main').filter({ hasText: /\S/ }).waitFor();
    await w.page.locator('main').getByText('opening…').waitFor({ state: 'detached' });
    w.check(/40[04]/);
    await w.close();
  }
});
