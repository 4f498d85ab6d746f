// The server refuses pages of other sites, other names, and requests without the token.
import assert from 'node:assert/strict';
import http from 'node:http';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { made, patience, setUp, Watched } from './browser.mjs';

const s = setUp({ before, after }, () => [path.join(made, 'run')]);

/** Sends a request with any headers. */
function ask(target, headers = {}, method = 'GET') {
  const { hostname, port } = new URL(s.server.origin);
  return new Promise((done, failed) => {
    const r = http.request({ hostname, port, path: target, method, headers, timeout: patience }, (answer) => {
      let body = '';
      answer.setEncoding('utf8');
      answer.on('data', (d) => (body += d));
      answer.on('end', () => done({ status: answer.statusCode, headers: answer.headers, body }));
    });
    r.on('error', failed);
    r.end();
  });
}

const token = () => ({ authorization: `Bearer ${s.server.token}` });

test('the token is needed', async () => {
  assert.equal((await ask('/api/place', token())).status, 200);
  for (const headers of [{}, { authorization: 'Bearer wrong' }, { authorization: s.server.token }, { authorization: 'Bearer ' }]) {
    const r = await ask('/api/place', headers);
    assert.equal(r.status, 401, JSON.stringify(headers));
    assert.equal(JSON.parse(r.body).error.kind, 'unauthorized');
    assert.doesNotMatch(r.body, /step-/);
  }
  assert.equal((await ask(`/api/place?token=${s.server.token}`)).status, 401, 'a token in the address is not enough');
});

test('other hosts and other origins are refused', async () => {
  const port = new URL(s.server.origin).port;
  for (const headers of [
    { host: 'evil.example' },
    { host: `evil.example:${port}` },
    { origin: 'http://evil.example' },
    { origin: 'null' },
    { origin: 'http://127.0.0.1:1' },
    { 'sec-fetch-site': 'cross-site' },
  ]) {
    const r = await ask('/api/place', { ...token(), ...headers });
    assert.ok(r.status >= 400 && r.status < 500, `${JSON.stringify(headers)}: ${r.status}`);
    assert.equal(r.headers['access-control-allow-origin'], undefined);
  }
  assert.equal((await ask('/api/place', { ...token(), origin: s.server.origin })).status, 200);
});

test('a page of another origin reads nothing', async () => {
  const w = new Watched(s.browser);
  const page = await w.open(s.server, '#/run');
  const other = await w.context.newPage();
  await other.route('http://evil.example/**', (r) => r.fulfill({ contentType: 'text/html', body: '<!doctype html><title>other</title>' }));
  await other.goto('http://evil.example/');
  const got = await other.evaluate(
    async ([origin, token]) => {
      const tries = [];
      for (const headers of [{}, { Authorization: `Bearer ${token}` }]) {
        tries.push(await fetch(`${origin}/api/place`, { headers }).then((r) => `read ${r.status}`, () => 'refused'));
      }
      const img = await new Promise((done) => {
        const f = document.createElement('iframe');
        f.onload = () => {
          try {
            done(f.contentDocument?.body?.textContent ?? 'refused');
          } catch {
            done('refused');
          }
        };
        f.src = origin;
        document.body.append(f);
      });
      return [...tries, img.includes('cairn') ? 'read' : 'refused'];
    },
    [s.server.origin, s.server.token],
  );
  assert.deepEqual(got, ['refused', 'refused', 'refused']);
  assert.ok(await page.title());
  await w.close();
});

test('the server only answers questions', async () => {
  for (const method of ['POST', 'PUT', 'DELETE', 'PATCH']) {
    assert.equal((await ask('/api/place', token(), method)).status, 405, method);
  }
  for (const target of ['/../../etc/passwd', '/..%2f..%2fetc/passwd', '/api/checkpoint?c=..%2F..%2Fetc', '/api/checkpoint?c=%2Fetc', '/api/item?c=step-000000800&name=..%2Fx', '/api/nothing', '/app.js.map']) {
    const r = await ask(target, token());
    assert.ok(r.status >= 400 && r.status < 500, `${target}: ${r.status}`);
    assert.doesNotMatch(r.body, /root:/);
  }
  const unknown = await ask('/api/checkpoint?c=step-000000800&frobnicate=1', token());
  assert.equal(unknown.status, 400);
});

test('the page has a strict content security policy', async () => {
  const r = await ask('/');
  assert.equal(r.status, 200);
  const policy = r.headers['content-security-policy'];
  assert.match(policy, /default-src 'none'/);
  assert.match(policy, /frame-ancestors 'none'/);
  assert.doesNotMatch(policy, /unsafe-inline|unsafe-eval|\*/);
  assert.equal(r.headers['x-content-type-options'], 'nosniff');
  assert.doesNotMatch(r.body, /step-/, 'the page itself says nothing about the checkpoints');
});

test('a page without the token says so', async () => {
  const w = new Watched(s.browser);
  const page = await w.open({ ...s.server, address: `${s.server.origin}/` });
  const alert = page.getByRole('alert');
  await alert.waitFor();
  assert.match(await alert.innerText(), /token/i);
  w.check(/401/);
  await w.close();
});
