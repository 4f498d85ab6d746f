// A view as a file, its address for others, and the keys.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { after, before, describe, test } from 'node:test';
import { downloaded, fits, made, root, setUp } from './browser.mjs';

const s = setUp({ before, after }, () => [path.join(made, 'run')]);
const button = (w) => w.page.getByRole('button', { name: 'Save as HTML' });

/** Opens a saved page without a server, and fails if it asks for anything or complains. */
async function opened(s, w, content) {
  const text = content.toString('utf8');
  assert.ok(!text.includes(s.server.token), 'the token is not in the file');
  assert.ok(!/<(script|link|iframe|object|embed|base)[\s>]/i.test(text), 'the file has such elements');
  const dir = mkdtempSync(path.join(tmpdir(), 'cairn-saved-'));
  const file = path.join(dir, 'saved.html');
  writeFileSync(file, content);
  const page = await w.context.newPage();
  const asked = [];
  page.on('console', (m) => w.problems.push(`saved: ${m.text()}`));
  page.on('request', (r) => r.url().startsWith('data:') || asked.push(r.url()));
  await page.goto(pathToFileURL(file).href);
  assert.equal(asked.length, 1, `only the file is read: ${asked.join(' ')}`);
  return { page, close: () => rmSync(dir, { recursive: true, force: true }) };
}

const views = [
  { name: 'run', at: '#/run?layers=1&form=map', ready: (p) => p.getByRole('grid', { name: 'Layers' }), pictures: 3, text: 'model.layers.11' },
  { name: 'checkpoint', at: '#/checkpoint?c=step-000000800', ready: (p) => p.getByRole('grid', { name: 'Names' }), pictures: 1, text: 'The page has the rows that were in sight, of' },
  { name: 'tensor', at: '#/tensor?c=step-000000800&name=model.layers.11.mlp.up.weight', ready: (p) => p.getByText(/^exact: /), pictures: 2, text: 'standard deviation' },
  { name: 'compare', at: '#/compare?a=step-000000200&b=step-000000800', ready: (p) => p.getByRole('grid'), pictures: 1, text: 'step-000000200' },
  { name: 'timeline', at: '#/timeline?c=step-000000800&rank=1', ready: (p) => p.getByRole('heading', { name: 'Rank 1' }), pictures: 1, text: 'Rank 1' },
];
for (const v of views) {
  test(`${v.name}: saved as a page that needs no server`, async () => {
    const w = await s.page(v.at, { colorScheme: 'dark' });
    await v.ready(w.page).first().waitFor();
    const { name, content } = await downloaded(w.page, button(w));
    assert.match(name, new RegExp(`^cairn-${v.name}.*\\.html$`));
    const { page, close } = await opened(s, w, content);
    assert.ok((await page.locator('main').innerText()).includes(v.text));
    assert.ok((await page.locator('footer').innerText()).includes(v.at));
    const sizes = await page.locator('main img').evaluateAll((all) => all.map((i) => i.naturalWidth * i.naturalHeight));
    assert.ok(sizes.length >= v.pictures && sizes.every((n) => n > 1000), `the pictures have ${sizes} pixels`);
    assert.equal(await page.locator('button:enabled, input:enabled, select:enabled, a[href]').count(), 0, 'it does nothing');
    const back = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    assert.ok(Number(back.match(/\d+/)[0]) < 80, `it keeps the dark theme: ${back}`);
    await fits(page);
    close();
    w.check();
    await w.close();
  });
}

describe('hostile names', () => {
  const s = setUp({ before, after }, () => [path.join(made, 'hostile')]);

  test('are text in a saved page, too', async () => {
    const w = await s.page('#/checkpoint?of=all');
    await w.page.getByText(/^19 names/).waitFor();
    const { page, close } = await opened(s, w, (await downloaded(w.page, button(w))).content);
    const text = await page.getByRole('grid', { name: 'Names' }).innerText();
    for (const name of ['<img src=x onerror=alert(1)>', '<script>alert(2)</script>']) assert.ok(text.includes(name), name);
    assert.equal(await page.locator('main script, main b, main img:not([src^="data:image/png"])').count(), 0);
    close();
    const name = '<img src=x onerror=alert(1)>';
    const tensor = await s.page(`#/tensor?${new URLSearchParams({ c: '.', name })}`);
    await tensor.page.getByText('standard deviation', { exact: true }).waitFor();
    const saved = await opened(s, tensor, (await downloaded(tensor.page, button(tensor))).content);
    assert.ok((await saved.page.title()).startsWith(name));
    assert.equal(await saved.page.locator('h1').innerText(), name);
    saved.close();
    for (const x of [w, tensor]) {
      x.check();
      await x.close();
    }
  });
});

test('a link has no token, and its page asks for one', async () => {
  const view = '#/tensor?c=step-000000800&name=model.embed.weight';
  const w = await s.page(view, { permissions: ['clipboard-read', 'clipboard-write'] });
  await w.page.getByRole('button', { name: 'Copy link' }).click();
  await w.page.getByText('copied, without the token').waitFor();
  const link = await w.page.evaluate(() => navigator.clipboard.readText());
  assert.equal(link, `${s.server.origin}/${view}`);
  await w.page.goto('about:blank');
  await w.page.goto(link);
  await w.page.getByLabel('Token').fill(s.server.token);
  await w.page.getByRole('button', { name: 'Open' }).click();
  await w.page.getByRole('heading', { name: 'model.embed.weight' }).waitFor();
  w.check(/401/);
  await w.close();
});

test('? lists the keys', async () => {
  const w = await s.page('#/run');
  await w.page.getByRole('link', { name: 'step-000000800' }).waitFor();
  await w.page.keyboard.press('?');
  const keys = w.page.getByRole('dialog', { name: 'Keys' });
  await keys.getByText('go to the search of the view').waitFor();
  await w.page.keyboard.press('Escape');
  await keys.waitFor({ state: 'hidden' });
  w.check();
  await w.close();
});

describe('a checkpoint without a timeline', () => {
  const s = setUp({ before, after }, () => [path.join(root, 'testdata/fixtures/torch-2.14/hf-3/consolidated')]);

  test('has no link to one', async () => {
    const w = await s.page('#/checkpoint');
    await w.page.getByRole('grid', { name: 'Names' }).waitFor();
    await w.page.waitForLoadState('networkidle');
    assert.equal(await w.page.getByRole('link', { name: 'Timeline' }).count(), 0);
    const links = w.page.getByRole('navigation', { name: 'Views' }).getByRole('link');
    assert.deepEqual(await links.allInnerTexts(), ['Checkpoint', 'Compare']);
    w.check();
    await w.close();
  });
});

test('a checkpoint with a timeline has a link to it', async () => {
  const w = await s.page('#/checkpoint?c=step-000000800');
  await w.page.getByRole('link', { name: 'Timeline', exact: true }).click();
  await w.page.waitForURL(/#\/timeline\?c=step-000000800/);
  w.check();
  await w.close();
});
