// A run that a job writes while the page is open.
import assert from 'node:assert/strict';
import { cpSync, mkdtempSync, renameSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { launch, made, serve, Watched } from './browser.mjs';

let browser, dir;
before(async () => {
  browser = await launch();
  dir = mkdtempSync(path.join(tmpdir(), 'cairn-web-live-'));
});
after(async () => {
  await browser?.close();
  rmSync(dir, { recursive: true, force: true });
});

/** Puts a checkpoint into the run, in one step. */
function put(from, name) {
  const at = path.join(dir, name);
  const made_ = path.join(dir, '.new');
  cpSync(path.join(made, from), made_, { recursive: true });
  rmSync(at, { recursive: true, force: true });
  renameSync(made_, at);
}

test('a run that begins empty, grows, and has a checkpoint replaced', async () => {
  const server = await serve([dir]);
  const w = new Watched(browser);
  try {
    const page = await w.open(server);
    await page.getByText('This run has no checkpoints yet.').waitFor();
    assert.equal(await page.getByRole('navigation', { name: 'Views' }).getByRole('link').count(), 1, 'only the run can be shown');
    put('run/step-000000100', 'step-000000100');
    await page.getByRole('link', { name: 'step-000000100' }).click();
    await page.waitForURL(/c=step-000000100/);
    await page.getByRole('status').filter({ hasText: /^\d+ names/ }).waitFor();

    // A newer one appears in the list, and the page stays with its checkpoint.
    put('ranks-16', 'step-000000200');
    await page.locator('option', { hasText: 'step-000000200' }).waitFor({ state: 'attached' });
    assert.match(page.url(), /c=step-000000100/);
    await page.getByRole('status').filter({ hasText: /^\d+ names/ }).waitFor();

    put('wide', 'step-000000100');
    await page.getByRole('status').filter({ hasText: '1 name,' }).waitFor();
    w.check();
  } finally {
    await w.close();
    await server.stop();
  }
});
