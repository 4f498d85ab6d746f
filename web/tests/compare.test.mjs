import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
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

  test('names with NaN come first, and a button shows only these', async () => {
    const w = await s.page(view);
    const table = w.page.getByRole('grid');
    await table.waitFor();
    const row = (i) => table.locator(`[aria-rowindex="${i}"]`);
    assert.match(await row(2).innerText(), /layers\.11\.[\s\S]*NaN/);
    const chip = w.page.getByRole('button', { name: /with NaN or ∞$/ });
    const n = Number((await chip.innerText()).split(/\s/)[0]);
    await chip.click();
    await w.page.waitForFunction((n) => document.querySelector('[role=grid]').ariaRowCount === String(n + 1), n);
    assert.match(w.page.url(), /status=odd/);
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

describe('one model in two forms, and with other beginnings of names', () => {
  const dir = mkdtempSync(path.join(tmpdir(), 'cairn-web-forms-'));
  after(() => rmSync(dir, { recursive: true, force: true }));
  const at = (name) => path.join(dir, name);

  /** Writes a file of safetensors with zeros, and the model's configuration beside it. */
  function hf(name, shapes) {
    mkdirSync(at(name));
    const [head, bytes] = [{}, (shape) => 4 * shape.reduce((a, b) => a * b, 1)];
    let end = 0;
    for (const [k, shape] of Object.entries(shapes)) head[k] = { dtype: 'F32', shape, data_offsets: [end, (end += bytes(shape))] };
    const text = Buffer.from(JSON.stringify(head));
    const size = Buffer.alloc(8);
    size.writeBigUInt64LE(BigInt(text.length));
    writeFileSync(path.join(at(name), 'model.safetensors'), Buffer.concat([size, text, Buffer.alloc(end)]));
    const config = { model_type: 'llama', num_hidden_layers: 1, hidden_size: 8, num_attention_heads: 2, vocab_size: 16, intermediate_size: 12, tie_word_embeddings: false };
    writeFileSync(path.join(at(name), 'config.json'), JSON.stringify(config));
  }
  const layer = {
    'input_layernorm.weight': [8], 'post_attention_layernorm.weight': [8],
    'self_attn.q_proj.weight': [8, 8], 'self_attn.k_proj.weight': [8, 8], 'self_attn.v_proj.weight': [8, 8], 'self_attn.o_proj.weight': [8, 8],
    'mlp.gate_proj.weight': [12, 8], 'mlp.up_proj.weight': [12, 8], 'mlp.down_proj.weight': [8, 12],
  }; // prettier-ignore
  const shapes = { 'model.embed_tokens.weight': [16, 8], 'lm_head.weight': [16, 8], 'model.norm.weight': [8] };
  for (const [k, shape] of Object.entries(layer)) shapes[`model.layers.0.${k}`] = shape;

  const s = setUp({ before, after }, () => {
    hf('hf', shapes);
    hf('wrapped', Object.fromEntries(Object.entries(shapes).map(([k, shape]) => [`module.${k}`, shape])));
    execFileSync(process.env.CAIRN, ['convert', at('hf'), at('titan'), '--recipe', 'hf-to-titan/llama', '--to', 'torchdcp'], { stdio: 'pipe' });
    return [at('hf'), at('titan'), at('wrapped')];
  });

  for (const [name, view, said] of [
    ['a beginning', '#/compare?a=.&b=@2', /12 more names are in both if module\. is put in front of names of A/],
    ['a recipe', '#/compare?a=.&b=@1', /12 more names are in both if A and B are swapped and a recipe converts A/],
    ['a recipe of A', '#/compare?a=@1&b=.', /12 more names are in both if a recipe converts A/],
  ]) {
    test(`${name} is offered, and used`, async () => {
      const w = await s.page(view);
      await w.page.getByRole('button', { name: /only in A$/ }).waitFor();
      await w.page.locator('p', { hasText: said }).first().getByRole('button', { name: 'Compare' }).click();
      await w.page.getByRole('button', { name: /^12 identical/ }).waitFor();
      assert.equal(await w.page.getByRole('button', { name: /only in/ }).count(), 0);
      w.check();
      await w.close();
    });
  }
});
