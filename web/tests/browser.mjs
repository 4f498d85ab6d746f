// Shared by the tests: a browser, pages that fail the test if they misbehave, and servers.
import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { chromium } from 'playwright-core';

const here = path.dirname(fileURLToPath(import.meta.url));

/** The folder of the repository. */
export const root = path.resolve(here, '../..');

/** The folder of the checkpoints that main.mjs made. */
export const made = process.env.CHECKPOINTS ?? '';

/** How long a test waits for anything, in milliseconds. The machine may be busy. */
export const patience = Number(process.env.PATIENCE || 2 * 60_000);

const cairn = process.env.CAIRN ?? '';

function browserPath() {
  if (process.env.CHROMIUM) return process.env.CHROMIUM;
  const found = execFileSync(path.join(root, 'tools/browser'), { encoding: 'utf8', stdio: ['ignore', 'pipe', 'inherit'] }).trim();
  if (!found) throw new Error('there is no browser: set CHROMIUM to one');
  return found;
}

// Chromium heeds only the last list of features to turn off. So this one has Playwright's, and two pages for the
// address bar, which a whole Chromium loads for each window: that takes longer than the page under test.
const withoutFeatures = [
  'AvoidUnnecessaryBeforeUnloadCheckSync',
  'DestroyProfileOnBrowserClose',
  'HttpsUpgrades',
  'HttpsFirstBalancedModeAutoEnable',
  'LensOverlay',
  'MediaRouter',
  'PaintHolding',
  'ThirdPartyStoragePartitioning',
  'AvoidCorsURLLoaderRestartOnRedirect',
  'OptimizationHints',
  'NetworkTimeServiceQuerying',
  'AimEnabled',
  'PreconnectToSearch',
  'WebUIOmniboxPopup',
  'WebUIOmniboxAimPopup',
];

/** Starts a browser. The caller closes it. */
export function launch() {
  return chromium.launch({
    executablePath: browserPath(),
    timeout: patience,
    args: [
      '--disable-gpu',
      '--disable-dev-shm-usage',
      '--disable-quic',
      '--no-first-run',
      '--disable-background-networking',
      '--disable-component-update',
      '--disable-sync',
      `--disable-features=${withoutFeatures.join(',')}`,
      ...(process.getuid?.() === 0 ? ['--no-sandbox'] : []),
    ],
  });
}

/**
 * @typedef {object} Server
 * @property {string} address with the token
 * @property {string} origin
 * @property {string} token
 * @property {() => Promise<void>} stop
 * @property {number} started when the command was started, in milliseconds
 */

/**
 * Runs 'cairn web' and waits until it prints its address.
 * @param {string[]} args
 * @param {Record<string, string>} env
 * @param {string} cwd the folder in which it runs
 * @returns {Promise<Server>}
 */
export async function serve(args, env = {}, cwd = root) {
  assert.ok(cairn, 'CAIRN names no program: run "make web-test"');
  const started = performance.now();
  const cache = mkdtempSync(path.join(tmpdir(), 'cairn-web-cache-'));
  const p = spawn(cairn, ['web', '--no-open', ...args], {
    stdio: ['ignore', 'pipe', 'pipe'],
    cwd,
    env: { ...process.env, XDG_CACHE_HOME: cache, ...env },
  });
  const ended = new Promise((done) => p.once('exit', done));
  let said = '';
  const stop = async () => {
    if (p.exitCode === null && p.signalCode === null) {
      p.kill('SIGTERM');
      const timer = setTimeout(() => p.kill('SIGKILL'), 10_000);
      await ended;
      clearTimeout(timer);
    }
    rmSync(cache, { recursive: true, force: true });
  };
  const address = new Promise((found, failed) => {
    for (const stream of [p.stdout, p.stderr]) {
      createInterface({ input: stream }).on('line', (line) => {
        said += line + '\n';
        const m = line.match(/https?:\/\/\S+token=\S+/);
        if (m) found(m[0]);
      });
    }
    p.once('error', failed);
    void ended.then((code) => failed(new Error(`cairn web ${args.join(' ')} ended with ${code}:\n${said}`)));
    setTimeout(() => failed(new Error(`cairn web printed no address:\n${said}`)), patience).unref();
  });
  try {
    const url = new URL(await address);
    return { address: url.href, origin: url.origin, token: url.searchParams.get('token') ?? '', stop, started };
  } catch (e) {
    await stop();
    throw e;
  }
}

/**
 * Opens pages and collects their console errors, exceptions, dialogs and violations of the content
 * security policy; check() fails if there are any that were not expected.
 */
export class Watched {
  /** @type {string[]} */
  problems = [];
  /** @type {string[]} Addresses outside of the server that the page asked for. */
  outside = [];

  /** @param {import('playwright-core').Browser} browser */
  constructor(browser, options = {}) {
    this.browser = browser;
    this.options = options;
  }

  /**
   * @param {Server} server
   * @param {string} view such as "#/run"
   */
  async open(server, view = '') {
    this.context ??= await this.browser.newContext({ viewport: { width: 1280, height: 900 }, ...this.options });
    this.context.setDefaultTimeout(patience);
    const page = (this.page = await this.context.newPage());
    page.on('console', (m) => {
      if (m.type() === 'error' || m.type() === 'warning') this.problems.push(`console: ${m.text()}`);
    });
    page.on('pageerror', (e) => this.problems.push(`exception: ${e.stack ?? e}`));
    page.on('dialog', (d) => {
      this.problems.push(`dialog: ${d.message()}`);
      void d.dismiss();
    });
    page.on('request', (r) => {
      const u = new URL(r.url());
      if (u.protocol !== 'data:' && u.protocol !== 'blob:' && u.origin !== server.origin) this.outside.push(r.url());
    });
    await page.addInitScript(() => {
      document.addEventListener('securitypolicyviolation', (e) =>
        console.error(`policy: ${e.violatedDirective} ${e.blockedURI} ${e.sample}`),
      );
    });
    await page.goto(server.address + view);
    return page;
  }

  /**
   * Fails if a page misbehaved.
   * @param {RegExp[]} expected problems that are part of the test
   */
  check(...expected) {
    const left = this.problems.filter((p) => !expected.some((e) => e.test(p)));
    assert.deepEqual(left, [], 'the page has problems');
    assert.deepEqual(this.outside, [], 'the page asked other hosts');
  }

  async close() {
    await this.context?.close();
  }
}

/**
 * Clicks on something that starts a download, and returns its name and content.
 * @param {import('playwright-core').Page} page
 * @param {import('playwright-core').Locator} button
 */
export async function downloaded(page, button) {
  const [d] = await Promise.all([page.waitForEvent('download', { timeout: patience }), button.click()]);
  const chunks = [];
  for await (const c of await d.createReadStream()) chunks.push(c);
  return { name: d.suggestedFilename(), content: Buffer.concat(chunks) };
}

/** Fails unless the content is a PNG that is not tiny. */
export function isPNG(content) {
  assert.equal(content.subarray(0, 8).toString('latin1'), '\x89PNG\r\n\x1a\n', 'it is no PNG');
  const [width, height] = [content.readUInt32BE(16), content.readUInt32BE(20)];
  assert.ok(width >= 200 && height >= 100, `the PNG has ${width} × ${height} pixels`);
}

/** Fails unless the content is an SVG without scripts. */
export function isSVG(content) {
  const text = content.toString('utf8');
  assert.match(text, /^(<\?xml[^>]*>\s*)?<svg[\s>]/);
  assert.match(text, /<\/svg>\s*$/);
  assert.doesNotMatch(text, /<(script|foreignObject|iframe|a)[\s>]/i);
  assert.doesNotMatch(text, /<[^>]*\s(on\w+|xlink:href)\s*=/i);
  assert.doesNotMatch(text, /<[^>]*\shref="(?!data:image\/png;|#)/i);
}

/** Fails if the page is wider than its window. */
export async function fits(page) {
  const { scroll, client } = await page.evaluate(() => ({
    scroll: document.documentElement.scrollWidth,
    client: document.documentElement.clientWidth,
  }));
  assert.ok(scroll <= client, `the page is ${scroll} pixels wide, its window ${client}`);
}

/**
 * Sets up a browser and a server for the tests of a file.
 * @param {import('node:test')} t
 * @param {() => string[]} args of 'cairn web'
 */
export function setUp({ before, after }, args) {
  /** @type {{ browser: import('playwright-core').Browser, server: Server, page: (view?: string, options?: object) => Promise<Watched & { page: import('playwright-core').Page }> }} */
  const s = {};
  before(async () => {
    s.server = await serve(args());
    s.browser = await launch();
    s.page = async (view, options) => {
      const w = new Watched(s.browser, options);
      await w.open(s.server, view);
      return w;
    };
  });
  after(async () => {
    await s.browser?.close();
    await s.server?.stop();
  });
  return s;
}
