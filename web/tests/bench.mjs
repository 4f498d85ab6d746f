// Prints how long the explorer takes for large checkpoints: "make web-bench".
import path from 'node:path';
import { launch, made, patience, serve } from './browser.mjs';

const repeats = 5;
const browser = await launch();

/** Runs something several times, and prints the median of the milliseconds that it returns. */
async function measure(what, wanted, run) {
  const times = [];
  for (let i = 0; i < repeats; i++) times.push(await run());
  times.sort((a, b) => a - b);
  const ms = (x) => `${Math.round(x)} ms`;
  console.log(`${what}: ${ms(times[repeats >> 1])} (${ms(times[0])} to ${ms(times.at(-1))}; at most ${wanted} ms asked)`);
}

/** Waits until an element has a text that begins like this, and it is painted. It looks at every frame: a locator would look every 500 ms. */
async function painted(page, selector, ...beginnings) {
  await page.waitForFunction(
    ([selector, beginnings]) =>
      [...document.querySelectorAll(selector)].some((e) => beginnings.some((b) => e.textContent.trim().startsWith(b))),
    [selector, beginnings],
    { polling: 'raf' },
  );
  await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => setTimeout(done))));
}

async function newPage() {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 } });
  context.setDefaultTimeout(patience);
  return context.newPage();
}

try {
  await measure('first view of 200,000 tensors, after the command', 1500, async () => {
    const page = await newPage(); // a browser is open already
    const server = await serve([path.join(made, 'many')]);
    await page.goto(server.address);
    await painted(page, '.result', '200,000 names');
    const took = performance.now() - server.started;
    await page.context().close();
    await server.stop();
    return took;
  });

  const many = await serve([path.join(made, 'many')]);
  const page = await newPage();
  await page.goto(many.address);
  await page.getByText(/^200,000 names/).waitFor();
  let n = 0;
  await measure('search among 200,000 names, from the key to the painted table', 100, async () => {
    await page.locator('[data-search-ms]').evaluateAll((all) => all.forEach((e) => delete e.dataset.searchMs));
    await page.getByRole('searchbox').first().fill(`experts.${(n += 37)}.up`);
    await page.waitForFunction(() => document.querySelector('[data-search-ms]'));
    return Number(await page.locator('[data-search-ms]').getAttribute('data-search-ms'));
  });
  await page.context().close();
  await many.stop();

  const big = await serve([path.join(made, 'big')]);
  await measure('heat map of a tensor of 4 GiB, from the address to the painted map', 1000, async () => {
    const page = await newPage();
    await page.goto(`${big.address}#/checkpoint`);
    await page.getByRole('grid', { name: 'Names' }).waitFor();
    const since = performance.now();
    await page.evaluate(() => (location.hash = '#/tensor?c=.&name=w'));
    await painted(page, '[role=status]', 'exact: ', 'each cell shows a sample: ');
    const took = performance.now() - since;
    await page.context().close();
    return took;
  });
  await big.stop();
} finally {
  await browser.close();
}
