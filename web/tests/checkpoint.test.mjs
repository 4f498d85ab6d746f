import assert from 'node:assert/strict';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import { downloaded, isPNG, isSVG, launch, made, root, serve, setUp, Watched } from './browser.mjs';

// A checkpoint of each format, with a tensor of it, its dtype and shape.
const fixtures = path.join(root, 'testdata/fixtures');
const formats = [
  { format: 'cairn', at: path.join(root, 'storage/native/testdata/compat/v1'), tensor: '__cairn__/0', form: ['int32', '[3]'] },
  { format: 'torchdcp', at: path.join(fixtures, 'torch-2.14/shard0-4/ckpt'), tensor: 'model.cube', form: ['float32', '[8, 6, 4]'] },
  { format: 'hf safetensors', at: path.join(fixtures, 'torch-2.14/hf-3/ckpt'), tensor: 'cube', form: ['float32', '[8, 6, 4]'] },
  { format: 'hf safetensors', at: path.join(fixtures, 'torch-2.14/safetensors/ckpt'), tensor: 'layer.0.w', form: ['float64', '[6, 4]'] },
  { format: 'torch.save', at: path.join(fixtures, 'torch-2.14/torchsave/ckpt'), tensor: 'model.w', form: ['float32', '[7, 5]'] },
  { format: 'deepspeed ZeRO', at: path.join(fixtures, 'deepspeed-0.19/zero1-bf16-2/ckpt/global_step3'), tensor: 'model.embed.weight', form: ['float32', '[101, 20]'] },
  { format: 'deepspeed universal', at: path.join(fixtures, 'deepspeed-0.19/universal3-bf16-2/ckpt/global_step3_universal'), tensor: 'model.embed.weight', form: ['float32', '[101, 20]'] },
  { format: 'hyper_parallel', at: path.join(fixtures, 'hyper_parallel/collective-4/ckpt'), tensor: 'col', form: ['float32', '[6, 8]'] },
  { format: 'fsdp', at: path.join(fixtures, 'fsdp/fsdp2-bf16-3/ckpt'), tensor: 'model.lm_head.weight', form: ['float32', '[11, 8]'] },
  { format: 'torch_checkpointing', at: path.join(fixtures, 'torch_checkpointing/torch-sync-4/ckpt'), tensor: 'fsdp_model.a.weight', form: ['float32', '[12, 8]'] },
];

describe('a checkpoint of each format', () => {
  let browser;
  before(async () => (browser = await launch()));
  after(() => browser?.close());

  for (const f of formats) {
    test(`${f.format}: ${path.relative(root, f.at)}`, async () => {
      const server = await serve([f.at]);
      const w = new Watched(browser);
      try {
        const page = await w.open(server);
        await page.getByText(f.format, { exact: false }).first().waitFor();
        const search = page.getByRole('searchbox').first();
        await search.fill(f.tensor);
        const link = page.getByRole('link', { name: f.tensor, exact: true });
        const row = page.getByRole('grid', { name: 'Names' }).getByRole('row').filter({ has: link });
        await row.waitFor();
        for (const text of f.form) assert.ok((await row.innerText()).includes(text), `the row has ${text}`);
        await link.click();
        await page.getByRole('heading', { name: f.tensor, exact: true }).waitFor();
        await page.getByText('standard deviation', { exact: true }).waitFor();
        await page.getByText(/^exact: /).waitFor();
        await page.getByRole('heading', { name: 'Shards' }).waitFor();
        w.check();
      } finally {
        await w.close();
        await server.stop();
      }
    });
  }
});

describe('a checkpoint of a run', () => {
  const s = setUp({ before, after }, () => [path.join(made, 'run')]);
  const names = (w) => w.page.getByRole('grid', { name: 'Names' });

  test('search, filters and the keyboard', async () => {
    const w = await s.page('#/checkpoint?c=step-000000800&of=all');
    await names(w).waitFor();
    await w.page.keyboard.press('/');
    await w.page.keyboard.type('layers.7');
    await w.page.getByText(/^4 of 69 names/).waitFor();
    await w.page.waitForURL(/q=layers\.7/);
    await w.page.keyboard.press('Escape');
    assert.ok(await w.page.evaluate(() => document.activeElement?.tagName !== 'INPUT'), 'Escape leaves the search');
    await names(w).focus();
    await w.page.keyboard.press('ArrowDown');
    await w.page.keyboard.press('ArrowDown');
    await w.page.keyboard.press('Enter');
    await w.page.getByRole('heading', { name: 'model.layers.7.attn.qkv.weight' }).waitFor();
    await w.page.goBack();
    await w.page.getByText(/^4 of 69 names/).waitFor();
    await w.page.reload();
    await w.page.getByText(/^4 of 69 names/).waitFor();
    await w.page.getByRole('button', { name: 'Clear' }).click();
    await w.page.getByText(/^69 names/).waitFor();
    await w.page.getByLabel('At least (bytes)').fill('60K');
    await w.page.getByText(/^17 of 69 names/).waitFor();
    await w.page.getByLabel('At least (bytes)').fill('many');
    await w.page.getByRole('alert').filter({ hasText: 'write 10M' }).waitFor();
    await w.page.getByLabel('At least (bytes)').fill('');
    await w.page.getByLabel('Leave out').fill('norm');
    await w.page.getByText(/^53 of 69 names/).waitFor();
    await w.page.getByRole('button', { name: /^objects/ }).click();
    await w.page.getByText(/^4 of 69 names/).waitFor();
    w.check();
    await w.close();
  });

  test('the map goes into names and back', async () => {
    const w = await s.page('#/checkpoint?c=step-000000800');
    const map = w.page.getByLabel(/^Map of names by size/);
    await map.focus();
    await w.page.keyboard.press('ArrowRight');
    await w.page.keyboard.press('Enter');
    await w.page.waitForURL(/at=model/);
    await w.page.getByText(/below model/).first().waitFor();
    await w.page.goBack();
    await w.page.waitForURL((u) => !u.href.includes('at='));
    const box = await map.boundingBox();
    await map.hover({ position: { x: box.width / 3, y: box.height / 2 } });
    await w.page.locator('.tip').filter({ hasText: 'model.layers' }).waitFor();
    w.check();
    await w.close();
  });

  test('objects are readable', async () => {
    const w = await s.page('#/tensor?c=step-000000800&name=config.act');
    await w.page.getByRole('heading', { name: 'config.act' }).waitFor();
    await w.page.getByLabel('value').filter({ hasText: "'silu'" }).waitFor();
    w.check();
    await w.close();
  });

  test('shards have ranks, files and ranges', async () => {
    const w = await s.page('#/tensor?c=step-000000800&name=model.layers.3.attn.out.weight');
    await w.page.getByText(/4 chunks in 4 files of 4 ranks/).waitFor();
    const rows = w.page.getByRole('grid').last().getByRole('row');
    assert.equal(await rows.count(), 5);
    const text = await rows.nth(2).innerText();
    assert.match(text, /\[:, 16:32\]/);
    assert.match(text, /r00001-0\.safetensors/);
    w.check();
    await w.close();
  });

  test('downloads', async () => {
    const w = await s.page('#/checkpoint?c=step-000000800&q=layers.1.&of=all');
    await w.page.getByText(/^4 of 69 names/).waitFor();
    isSVG((await downloaded(w.page, w.page.getByRole('button', { name: 'SVG' }))).content);
    isPNG((await downloaded(w.page, w.page.getByRole('button', { name: 'PNG' }))).content);
    const csv = (await downloaded(w.page, w.page.getByRole('button', { name: 'CSV' }))).content.toString().split('\r\n');
    assert.match(csv[0], /^name,dtype,shape,bytes,chunks/);
    assert.equal(csv.length, 6);
    w.check();
    await w.close();
  });

  test('a checkpoint that does not exist', async () => {
    const w = await s.page('#/checkpoint?c=step-1');
    await w.page.getByRole('alert').first().waitFor();
    w.check(/404/);
    await w.close();
  });
});
