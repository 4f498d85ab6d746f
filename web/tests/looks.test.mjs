// All views at 1280 and 390 pixels, light and dark: no element is wider than the window,
// controls have names, and the focus is visible. A theme changes no width and a width no colour,
// so each view is tried wide and light, and narrow and dark; DEEP=1 tries all four.
import assert from 'node:assert/strict';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { fits, made, setUp } from './browser.mjs';

const s = setUp({ before, after }, () => [path.join(made, 'run')]);

/** The views, and an element that is there when each is complete. */
export const views = [
  { name: 'run', at: '#/run?layers=1', ready: (p) => p.getByRole('grid', { name: 'Layers' }) },
  { name: 'run-map', at: '#/run?layers=1&form=map', ready: (p) => p.getByRole('grid', { name: 'Layers' }) },
  { name: 'checkpoint', at: '#/checkpoint?c=step-000000800', ready: (p) => p.getByRole('grid', { name: 'Names' }) },
  { name: 'tensor', at: '#/tensor?c=step-000000800&name=model.layers.11.mlp.up.weight', ready: (p) => p.getByText(/^exact: /) },
  { name: 'tensor-history', at: '#/tensor?c=step-000000800&name=model.layers.11.mlp.up.weight&history=1', ready: (p) => p.getByRole('img', { name: 'Histogram over the steps' }) },
  { name: 'compare', at: '#/compare?a=step-000000200&b=step-000000800&row=model.layers.5.mlp.up.weight', ready: (p) => p.getByLabel('Opened name') },
  { name: 'timeline', at: '#/timeline?c=step-000000800&rank=1', ready: (p) => p.getByRole('heading', { name: 'Rank 1' }) },
];

for (const v of views) {
  for (const colorScheme of ['light', 'dark']) {
    for (const width of process.env.DEEP ? [1280, 390] : [colorScheme === 'light' ? 1280 : 390]) {
      test(`${v.name}, ${colorScheme}, ${width} pixels`, async () => {
        const w = await s.page(v.at, { colorScheme, viewport: { width, height: 844 }, hasTouch: width === 390, isMobile: width === 390 });
        await v.ready(w.page).waitFor();
        await fits(w.page);
        const stacked = await w.page.evaluate(() =>
          [...document.querySelectorAll('[role=grid] [role=row]')]
            .filter((r) => getComputedStyle(r).gridTemplateColumns.split(' ').length !== r.children.length)
            .map((r) => r.innerText),
        );
        assert.deepEqual(stacked, [], 'each cell of a row has its column');
        const back = await w.page.evaluate(() => getComputedStyle(document.body).backgroundColor);
        const [r] = back.match(/\d+/g).map(Number);
        assert.ok(colorScheme === 'dark' ? r < 80 : r > 200, `the background is ${back}`);
        w.check();
        await w.close();
      });
    }
  }

  test(`${v.name}: every control has a name, and the focus is seen`, async () => {
    const w = await s.page(v.at);
    await v.ready(w.page).waitFor();
    const nameless = await w.page.evaluate(() =>
      [...document.querySelectorAll('button, input, select, a[href], canvas[tabindex]')]
        .filter((e) => e.checkVisibility())
        .filter((e) => !(e.getAttribute('aria-label') || e.textContent?.trim() || e.title || e.labels?.length))
        .map((e) => e.outerHTML.slice(0, 120)),
    );
    assert.deepEqual(nameless, []);
    let seen = 0;
    for (let i = 0; i < 12; i++) {
      await w.page.keyboard.press('Tab');
      seen += await w.page.evaluate(() => {
        const e = document.activeElement;
        return e && e !== document.body && getComputedStyle(e).outlineStyle !== 'none' ? 1 : 0;
      });
    }
    assert.ok(seen >= 10, `the focus is visible on ${seen} of 12 controls`);
    w.check();
    await w.close();
  });
}
