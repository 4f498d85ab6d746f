// Two hundred thousand tensors.
import assert from 'node:assert/strict';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { downloaded, made, setUp } from './browser.mjs';

const s = setUp({ before, after }, () => [path.join(made, 'many')]);

test('200,000 names are shown, searched, sorted and opened', async (t) => {
  const w = await s.page();
  const table = w.page.getByRole('grid', { name: 'Names' });
  await w.page.getByText(/^200,000 names/).waitFor();
  assert.ok((await table.getByRole('row').count()) < 100, 'only the rows in sight are drawn');
  await w.page.getByRole('searchbox').first().fill('layers.73.experts.250.bias');
  await w.page.getByText(/^1 of 200,000 names/).waitFor();
  await w.page.waitForFunction(() => document.querySelector('[data-search-ms]'));
  t.diagnostic(`search: ${await w.page.locator('[data-search-ms]').getAttribute('data-search-ms')} ms from the key to the painted table`);
  await w.page.getByRole('searchbox').first().fill('');
  await w.page.getByText(/^200,000 names/).waitFor();
  await table.getByRole('button', { name: /^size/ }).click();
  await table.focus();
  await w.page.keyboard.press('End');
  await w.page.waitForFunction(() => [...document.querySelectorAll('[aria-rowindex="200001"]')].length === 1);
  await w.page.keyboard.press('Enter');
  await w.page.getByText('standard deviation', { exact: true }).waitFor();
  w.check();
  await w.close();
});

test('all of them are saved as CSV', async () => {
  const w = await s.page();
  await w.page.getByText(/^200,000 names/).waitFor();
  const csv = (await downloaded(w.page, w.page.getByRole('button', { name: 'CSV' }))).content.toString();
  assert.equal(csv.split('\r\n').length, 200_002);
  w.check();
  await w.close();
});
