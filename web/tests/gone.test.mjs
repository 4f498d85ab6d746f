// Changes while the page is open: checkpoints that disappear, a server that ends, a
// computation that is cancelled.
import assert from 'node:assert/strict';
import { cpSync, mkdtempSync, renameSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { launch, made, serve, Watched } from './browser.mjs';

let browser, dir;
before(async () => {
  browser = await launch();
  dir = mkdtempSync(path.join(tmpdir(), 'cairn-web-gone-'));
});
after(async () => {
  await browser?.close();
  rmSync(dir, { recursive: true, force: true });
});

/** Serves a copy of the run. */
async function copied(name) {
  const at = path.join(dir, name);
  cpSync(path.join(made, 'run'), at, { recursive: true });
  return { at, server: await serve([at]) };
}

test('a checkpoint that disappears', async () => {
  const { at, server } = await copied('run');
  const w = new Watched(browser);
  try {
    const page = await w.open(server, '#/checkpoint?c=step-000000800');
    const table = page.getByRole('grid', { name: 'Names' });
    await table.waitFor();
    rmSync(path.join(at, 'step-000000800'), { recursive: true });
    await table.getByRole('link', { name: 'model.embed.weight' }).click();
    const alert = page.getByRole('alert').first();
    await alert.waitFor();
    assert.match(await alert.innerText(), /gone|removed|no longer|not exist|no such|missing|replaced/i);
    // The rest of the run is still there.
    await page.getByRole('navigation', { name: 'Views' }).getByRole('link', { name: 'Run' }).click();
    await page.getByRole('link', { name: 'step-000000700' }).click();
    await table.waitFor();
    await table.getByRole('link', { name: 'model.embed.weight' }).click();
    await page.getByText('standard deviation', { exact: true }).waitFor();
    w.check(/40[04]|410|50\d/);
  } finally {
    await w.close();
    await server.stop();
  }
});

test('a run that disappears and comes back', async () => {
  const { at, server } = await copied('away');
  const w = new Watched(browser);
  try {
    const page = await w.open(server, '#/run');
    await page.getByRole('link', { name: 'step-000000800' }).waitFor();
    renameSync(at, at + '.away');
    await page.reload();
    await page.getByRole('button', { name: 'Try again' }).or(page.getByRole('link', { name: 'step-000000050' })).first().waitFor();
    renameSync(at + '.away', at);
    await page.reload();
    await page.getByRole('link', { name: 'step-000000800' }).waitFor();
    w.check(/40[04]|410|50\d/);
  } finally {
    await w.close();
    await server.stop();
  }
});

test('a server that has ended', async () => {
  const { server } = await copied('ended');
  const w = new Watched(browser);
  try {
    const page = await w.open(server, '#/checkpoint?c=step-000000800');
    await page.getByRole('grid', { name: 'Names' }).waitFor();
    await server.stop();
    await page.getByRole('link', { name: 'model.embed.weight' }).click();
    const alert = page.getByRole('alert').filter({ hasText: 'The server does not answer.' });
    await alert.first().waitFor();
    assert.match(await alert.first().innerText(), /cairn web/);
    w.check(/ERR_CONNECTION/);
  } finally {
    await w.close();
    await server.stop();
  }
});

test('a computation is cancelled', async () => {
  const server = await serve([path.join(made, 'run')]);
  const w = new Watched(browser);
  try {
    const page = await w.open(server, '#/run');
    const button = page.getByRole('button', { name: /^Compute: read/ });
    await button.waitFor();
    // The answer is held back, so that there is time to cancel.
    let held;
    await page.route('**/api/steps**', async (route) => {
      await new Promise((done) => (held = done));
      await route.continue().catch(() => {});
    });
    const failed = page.waitForEvent('requestfailed', (r) => r.url().includes('/api/steps'));
    await button.click();
    await page.getByRole('button', { name: 'Cancel' }).click();
    await failed;
    held?.();
    await button.waitFor();
    assert.equal(await page.getByRole('alert').count(), 0, 'that is no error');
    assert.doesNotMatch(page.url(), /layers=/);
    await page.unroute('**/api/steps**');
    await button.click();
    await page.getByRole('grid', { name: 'Layers' }).waitFor();
    w.check();
  } finally {
    await w.close();
    await server.stop();
  }
});
