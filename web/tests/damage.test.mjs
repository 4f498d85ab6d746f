// A checkpoint with a damaged chunk.
import assert from 'node:assert/strict';
import { cpSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { launch, made, serve, Watched } from './browser.mjs';

let browser, dir;
before(async () => {
  browser = await launch();
  dir = mkdtempSync(path.join(tmpdir(), 'cairn-web-damage-'));
});
after(async () => {
  await browser?.close();
  rmSync(dir, { recursive: true, force: true });
});

test('a damaged chunk is marked, said once, and the others are drawn', async () => {
  const at = path.join(dir, 'run');
  cpSync(path.join(made, 'run'), at, { recursive: true });
  const folder = path.join(at, 'step-000000800');
  const file = readdirSync(folder).filter((f) => f.endsWith('.safetensors')).sort()[1];
  const bytes = readFileSync(path.join(folder, file));
  const head = 8 + Number(bytes.readBigUInt64LE());
  writeFileSync(path.join(folder, file), bytes.map((b, i) => (i < head ? b : b ^ 0x55)));

  const server = await serve([at]);
  const w = new Watched(browser);
  try {
    const page = await w.open(server, '#/tensor?c=step-000000800&name=model.layers.3.mlp.up.weight');
    await page.getByRole('alert').filter({ hasText: /Chunk \d+ is damaged, and not drawn/ }).waitFor();
    await page.getByRole('status').filter({ hasText: /^exact: / }).waitFor();
    await page.getByText('Not computed: statistics need all chunks.').waitFor();
    assert.equal(await page.getByRole('alert').count(), 1, 'it is said once');
    assert.equal(await page.getByRole('img', { name: /chunk \d+ is damaged/ }).count(), 1, 'it is marked in the map');
    assert.equal(await page.locator('.mark.damaged').count(), 1, 'and among the shards');
    await page.getByRole('grid', { name: 'Chunks' }).getByText('✗').waitFor();
    w.check();
  } finally {
    await w.close();
    await server.stop();
  }
});
