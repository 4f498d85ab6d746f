// Makes checkpoints and runs something in a browser: the tests, the figures, or the pictures.
// The Makefile starts it: "make web-test", "make web-bench", "make web-shots".
//
//   node main.mjs test PROGRAMS [ARGUMENT OF node --test...]
//   node main.mjs bench PROGRAMS
//   node main.mjs shots PROGRAMS FOLDER
//
// PROGRAMS is the folder of "cairn" and "make".
import { execFileSync, spawn } from 'node:child_process';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const here = path.dirname(fileURLToPath(import.meta.url));
const limit = 60 * 60_000; // of everything
const limitOfFile = 25 * 60_000;

const [what, programs, ...args] = process.argv.slice(2);
const scripts = {
  test: ['--test', '--test-concurrency=1', '--test-reporter=spec', `--test-timeout=${limitOfFile}`, ...args, ...tests()],
  bench: [path.join(here, 'bench.mjs')],
  shots: [path.join(here, 'screenshots.mjs'), ...args],
};
if (!scripts[what] || !programs) {
  console.error('usage: main.mjs test|bench|shots PROGRAMS [ARGUMENT...]');
  process.exit(2);
}

function tests() {
  const all = readdirSync(here).filter((name) => name.endsWith('.test.mjs'));
  return all.sort().map((name) => path.join(here, name));
}

const dir = mkdtempSync(path.join(tmpdir(), 'cairn-web-'));
let child;

// end removes the temporary folders and ends the child's group of processes.
function end(code) {
  try {
    if (child?.pid) process.kill(-child.pid, 'SIGKILL');
  } catch {
    // All of them have ended.
  }
  rmSync(dir, { recursive: true, force: true });
  process.exit(code);
}
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(signal, () => end(130));

try {
  const kinds = what === 'bench' ? ['many', 'big'] : what === 'test' ? ['small', 'many'] : ['small'];
  // Pictures show the path of the remote run: from the folder itself, it is short.
  execFileSync(path.join(programs, 'make'), [what === 'shots' ? '.' : dir, ...kinds], { stdio: 'inherit', timeout: limit, cwd: dir });
} catch (e) {
  console.error(`main.mjs: the checkpoints could not be made: ${e.message}`);
  end(1);
}
child = spawn(process.execPath, scripts[what], {
  stdio: 'inherit',
  detached: true, // a group of its own
  env: { ...process.env, CAIRN: path.join(programs, 'cairn'), CHECKPOINTS: dir, CAIRN_CACHE: path.join(dir, 'cache') },
});
child.on('error', (e) => {
  console.error(`main.mjs: ${e.message}`);
  end(1);
});
child.on('exit', (code) => end(code ?? 1));
setTimeout(() => {
  console.error(`main.mjs: not done after ${limit / 60_000} minutes`);
  end(1);
}, limit).unref();
