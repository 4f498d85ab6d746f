// Tests of the plain functions behind the views: 'npm run unit'.
import assert from 'node:assert/strict';
import test from 'node:test';
import { at, beside, edges, project, range } from '../../src/checkpoint/boxes';
import { dtypeColors } from '../../src/checkpoint/colors';
import { icicle, ticks } from '../../src/checkpoint/icicle';
import { pretty } from '../../src/checkpoint/pretty';
import { lowered, matcher, search, size, sortedBy } from '../../src/checkpoint/search';
import { children, find, formOf, label, lineage, nameOf, pathOf, single, unpack } from '../../src/checkpoint/tree';
import { pairOf, throughRecipe } from '../../src/compare/pair';
import { cellAt, descend, layout, rest } from '../../src/checkpoint/treemap';
import { expand } from '../../src/compare/expand';
import { draw } from '../../src/run/lines';

globalThis.location = { search: '' }; // the token of the requests is in the address
const { cellsIn, unusual } = await import('../../src/tensor/cells');
const { nans } = await import('../../src/run/measures');

/** Numbers from a seed, which the test prints if it fails. */
function random(seed) {
  return (n) => {
    seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
    return Math.floor((seed / 2 ** 32) * n);
  };
}

function property(name, check) {
  test(name, () => {
    for (let i = 0; i < 60; i++) {
      const seed = (Date.now() + i * 7919) >>> 0;
      try {
        check(random(seed));
      } catch (e) {
        e.message += ` (seed ${seed})`;
        throw e;
      }
    }
  });
}

/** The tree of names, as the server would send it. */
function treeOf(names, bytes = names.map(() => 1), more = {}) {
  const a = { counts: {}, labels: [], label: [], below: [], forms: [], form: [], tied: {}, values: {}, ...more };
  const root = new Map();
  names.forEach((name, i) => {
    const parts = name.split('.');
    let at = root;
    for (const part of parts.slice(0, -1)) {
      const key = `${part}.`;
      if (!at.has(key)) at.set(key, new Map());
      at = at.get(key);
    }
    at.set(parts.at(-1), i);
  });
  const walk = (group) => {
    for (const [key, what] of group) {
      const at = a.label.push(a.labels.push(typeof what === 'number' ? key : key.slice(0, -1)) - 1) - 1;
      a.below.push(0);
      if (typeof what === 'number') {
        a.form.push(a.forms.push({ dtype: 'float32', shape: [1], bytes: bytes[what], chunks: 1, ...more.dtypes?.[what] }) - 1);
        continue;
      }
      walk(what);
      a.below[at] = a.label.length - at - 1;
    }
  };
  walk(root);
  return unpack(a);
}

/** Names of a few parts, some of them hostile. */
function someNames(rnd) {
  const parts = ['a', 'b', 'layers', '0', '1', '2', '10', 'w9', 'w10', '', 'a-b', 'é', '\u{1f600}', '\n', 'x'.repeat(30)];
  const names = new Set();
  for (let i = rnd(60); i >= 0; i--) names.add(Array.from({ length: 1 + rnd(5) }, () => parts[rnd(parts.length)]).join('.'));
  if (rnd(4) === 0) names.add('deep' + '.x'.repeat(100));
  return [...names].sort();
}

const all = { q: '', not: '', dtype: '', min: '', max: '' };

test('the tree adds bytes', () => {
  const t = treeOf(['m.layers.0.w', 'm.layers.2.w', 'm.layers.10.w', 'n'], [1, 2, 4, 8]);
  assert.deepEqual(t.form.map((_, r) => nameOf(t, r)), ['m.layers.0.w', 'm.layers.2.w', 'm.layers.10.w', 'n']);
  const layers = find(t, 'm.layers');
  assert.equal(pathOf(t, layers), 'm.layers');
  assert.equal(t.bytes[layers], 7);
  assert.equal(t.bytes[0], 15);
  assert.equal(t.largest[layers], 2);
  assert.deepEqual(lineage(t, layers).map((n) => label(t, n)), ['', 'm', 'layers']);
  assert.equal(pathOf(t, find(t, 'm.layers.3.w')), 'm.layers');
});

test('a name may be the beginning of another one', () => {
  const t = treeOf(['a', 'a.b', 'a.b.c']);
  assert.equal(t.row[find(t, 'a.b')], -1, 'the group is found');
  assert.equal(t.bytes[find(t, 'a.b')], 1);
  assert.equal(t.bytes[find(t, 'a')], 2);
  assert.equal(t.bytes[0], 3);
});

test('the bytes of a tied name count once', () => {
  const t = treeOf(['a', 'b'], [5, 5], { tied: { 1: 'a' } });
  assert.equal(t.bytes[0], 5);
  assert.equal(search(t, () => lowered(t), 0, all, sortedBy(t, 'name')).bytes, 5);
});

property('a tree has each name once, below nodes with its beginnings', (rnd) => {
  const names = someNames(rnd);
  const t = treeOf(names, names.map(() => rnd(1000)));
  assert.deepEqual(t.form.map((_, r) => nameOf(t, r)).sort(), names);
  assert.deepEqual(lowered(t), t.form.map((_, r) => nameOf(t, r).toLowerCase()));
  for (let n = 1; n < t.parent.length; n++) {
    const p = t.parent[n];
    assert.ok(p < n && t.low[p] <= t.low[n] && t.high[n] <= t.high[p] && t.end[n] <= t.end[p]);
    assert.ok(p === 0 || pathOf(t, n).startsWith(pathOf(t, p) + '.'));
    assert.ok(children(t, p).includes(n));
    assert.equal(single(t, p), children(t, p).length === 1);
    if (t.row[n] >= 0) {
      assert.equal(t.node[t.row[n]], n);
      continue;
    }
    assert.equal(find(t, pathOf(t, n)), n);
    let sum = 0;
    for (let i = t.low[n]; i < t.high[n]; i++) sum += formOf(t, i).bytes;
    assert.equal(t.bytes[n], sum);
  }
});

property('the cells of a map lie in it, and areas without names are the shares of bytes', (rnd) => {
  const names = someNames(rnd);
  const t = treeOf(names, names.map(() => rnd(5) * rnd(1000)));
  const [w, h] = [50 + rnd(1200), 50 + rnd(400)];
  const cells = layout(t, 0, w, h);
  const slack = 1.01; // a cell smaller than a pixel is drawn as one
  let area = 0;
  for (let i = 0; i < cells.length; i++) {
    assert.ok(cells.x[i] >= -0.01 && cells.x[i] + cells.w[i] <= w + slack, `x ${cells.x[i]} ${cells.w[i]} of ${w}`);
    assert.ok(cells.y[i] >= -0.01 && cells.y[i] + cells.h[i] <= h + slack, `y ${cells.y[i]} ${cells.h[i]} of ${h}`);
    let top = cells.node[i];
    while (t.parent[top] > 0) top = t.parent[top];
    if (descend(t, top) === cells.node[i] && cells.kind[i] !== rest) {
      area += cells.w[i] * cells.h[i];
      assert.ok(Math.abs((cells.w[i] * cells.h[i]) / (w * h) - t.bytes[top] / t.bytes[0]) < 1e-3);
    }
  }
  if (t.bytes[0] > 0) assert.ok(cells.length > 0 && cellAt(cells, w / 2, h / 2) >= 0);
  assert.ok(area <= w * h * 1.001);
});

property('the cells of an icicle do not overlap, and heights are bytes', (rnd) => {
  const names = someNames(rnd);
  const t = treeOf(names, names.map(() => rnd(5) * rnd(1000)));
  const [w, h] = [200 + rnd(1000), 100 + rnd(400)];
  const c = icicle(t, 0, w, h);
  for (let i = 0; i < c.length; i++) {
    assert.ok(c.x[i] >= 0 && c.x[i] + c.w[i] <= w + 0.01 && c.y[i] >= 0 && c.y[i] + c.h[i] <= h + 0.01);
    if (c.kind[i] !== rest) assert.ok(Math.abs(c.h[i] / h - t.bytes[c.node[i]] / t.bytes[0]) < 1e-3);
    for (let k = 0; k < i; k++) {
      const apart = c.x[i] >= c.x[k] + c.w[k] - 0.01 || c.x[k] >= c.x[i] + c.w[i] - 0.01;
      assert.ok(apart || c.y[i] >= c.y[k] + c.h[k] - 0.01 || c.y[k] >= c.y[i] + c.h[i] - 0.01, `cells ${k} and ${i}`);
    }
  }
});

property('the numbers of an axis start at 0 and are few', (rnd) => {
  const most = 1 + rnd(2 ** 10) * 1024 ** rnd(5);
  const found = ticks(most);
  assert.ok(found[0] === 0 && found.length >= 2 && found.length <= 8 && found.at(-1) <= most, `${most}: ${found}`);
});

test('a pattern is a part of a name, or a glob for the whole name', () => {
  const cases = [
    ['attn', 'model.ATTN.q', true], ['attn', 'mlp', false], [' up ', 'mlp.up', true],
    ['*.weight', 'a.weight', true], ['*.weight', 'a.weight.b', false], ['model.*', 'model.', true], ['model.*', 'amodel.x', false],
    ['l.?', 'l.1', true], ['l.?', 'l.10', false], ['a*b*c', 'axxbyyc', true], ['a*b*c', 'acb', false], ['*', '', true],
    ['a*a', 'a', false], ['*a?c*', 'xxabcxx', true], ['*a?c*', 'xxac', false], ['.', 'a.b', true], ['[', 'a[0]', true],
  ]; // prettier-ignore
  for (const [pattern, name, want] of cases) {
    assert.equal(matcher(pattern)(name.toLowerCase()), want, `${pattern} ${name}`);
  }
  assert.equal(matcher('  '), null);
});

property('a glob matches what the same regular expression matches', (rnd) => {
  const text = (n, of) => Array.from({ length: rnd(n) }, () => of[rnd(of.length)]).join('');
  const pattern = text(7, 'ab?*') + '*';
  const re = new RegExp(`^${pattern.replace(/\*/g, '.*').replace(/\?/g, '.')}$`, 's');
  for (let i = 0; i < 30; i++) {
    const name = text(9, 'ab\n');
    assert.equal(matcher(pattern)(name), re.test(name), JSON.stringify([pattern, name]));
  }
});

test('sizes are read as the command line reads them', () => {
  const good = { 0: 0, 4096: 4096, '12b': 12, '64MiB': 64 * 2 ** 20, '5GB': 5e9, '1.5KiB': 1536, '2 g': 2e9, '1Ti': 2 ** 40, '.5k': 500 };
  for (const [text, want] of Object.entries(good)) assert.equal(size(text), want, text);
  for (const text of ['', 'MiB', 'x', '-1', '1.2.3', '5 apples', 'nan', '0x10', '1ib']) assert.ok(Number.isNaN(size(text)), text);
});

test('search filters by everything and keeps the order', () => {
  const dtypes = [{}, { dtype: undefined, shape: undefined }, { dtype: 'int64' }, {}];
  const t = treeOf(['a.w', 'b.obj', 'b.w', 'c.w'], [10, 20, 30, 40], { dtypes });
  const names = (query, sort = 'name', node = 0) => {
    const f = search(t, () => lowered(t), node, { ...all, ...query }, sortedBy(t, sort));
    return [[...f.rows].map((r) => nameOf(t, r)).join(' '), f.bytes, f.filtered];
  };
  assert.deepEqual(names({}), ['a.w b.obj b.w c.w', 100, false]);
  assert.deepEqual(names({ q: 'W' }, '-bytes'), ['c.w b.w a.w', 80, true]);
  assert.deepEqual(names({ q: '*.w', not: 'b' }), ['a.w c.w', 50, true]);
  assert.deepEqual(names({ dtype: 'objects,int64' }), ['b.obj b.w', 50, true]);
  assert.deepEqual(names({ min: '20', max: '30' }), ['b.obj b.w', 50, true]);
  assert.deepEqual(names({ min: 'nonsense' }), ['a.w b.obj b.w c.w', 100, false]);
  assert.deepEqual(names({}, '-name', find(t, 'b')), ['b.w b.obj', 50, false]);
  assert.deepEqual(names({}, 'dtype'), ['b.obj a.w c.w b.w', 100, false]);
});

test('the largest dtypes have colours of their own, objects are grey', () => {
  const shares = ['objects', ...Array.from({ length: 10 }, (_, i) => `t${i}`)].map((dtype) => ({ dtype, names: 1, bytes: 1 }));
  const colors = dtypeColors(shares);
  assert.deepEqual([colors.get('objects'), colors.get('t0'), colors.get('t6'), colors.get('t7')], ['faint', 'c0', 'c6', 'faint']);
});

test('a comparison has A before B, and PATH before each OTHER', () => {
  const run = ['1', '2', '3'].map((id) => ({ id, other: false }));
  assert.deepEqual(pairOf(run), ['2', '3']);
  assert.deepEqual(pairOf(run, undefined, '2'), ['1', '2']);
  assert.deepEqual(pairOf(run, undefined, '1'), ['1', '2']);
  assert.deepEqual(pairOf(run, '1'), ['1', '3']);
  assert.deepEqual(pairOf(run, '3', '1'), ['3', '1']);
  assert.deepEqual(pairOf(run, undefined, 'gone'), ['1', 'gone']);
  assert.deepEqual(pairOf([], undefined, undefined), ['.', '.']);
});

test('a recipe of the command line is used for PATH against an OTHER', () => {
  const place = { recipe: 'auto', checkpoints: [{ id: '.', other: false }, { id: '@1', other: true }] };
  assert.equal(throughRecipe(place, '.', '@1'), true);
  assert.equal(throughRecipe(place, '@1', '.'), false);
  assert.equal(throughRecipe(place, '@1', '.', '1'), true);
  assert.equal(throughRecipe(place, '.', '@1', '0'), false);
  assert.equal(throughRecipe({ ...place, recipe: '' }, '.', '@1', '1'), true, 'the server guesses');
  assert.equal(throughRecipe({ ...place, recipe: '' }, '.', '@1'), false);
});

property('the cells of a heat map that are in sight', (n) => {
  const [r0, c0] = [n(50), n(50)];
  const h = { rows: [r0, r0 + 1 + n(40)], cols: [c0, c0 + 1 + n(40)] };
  h.height = 1 + n(h.rows[1] - h.rows[0]);
  h.width = 1 + n(h.cols[1] - h.cols[0]);
  const part = (lo) => [lo, lo + 1 + n(60)];
  const [rows, cols] = [part(n(100)), part(n(100))];
  const seen = new Set();
  const edge = ([lo, hi], cells, k) => lo + Math.floor((k * (hi - lo)) / cells);
  for (let r = 0; r < h.height; r++) {
    for (let c = 0; c < h.width; c++) {
      const meets = (of, cells, k, [lo, hi]) => edge(of, cells, k) < hi && edge(of, cells, k + 1) > lo;
      if (meets(h.rows, h.height, r, rows) && meets(h.cols, h.width, c, cols)) seen.add(r * h.width + c);
    }
  }
  const cells = cellsIn(h, rows, cols);
  assert.deepEqual([...cells], [...seen]);
  h.nan = Array.from({ length: h.height * h.width }, () => n(3));
  assert.equal(unusual(h, cells).nan, [...seen].reduce((s, i) => s + h.nan[i], 0));
});

test('values are broken into lines', () => {
  assert.equal(pretty("{'a': 1}"), "{'a': 1}");
  assert.equal(pretty("{'a': [1, 2, 3], 'b': ', {'}", 12), "{\n  'a': [\n    1, 2, 3\n  ],\n  'b': ', {'\n}");
  assert.equal(pretty(''), '');
});

property('breaking a value into lines changes only the white space after commas and brackets', (rnd) => {
  const parts = ['{', '}', '[', ']', '(', ')', "'", '"', '\\', ', ', ': ', '1', 'None', 'abc', '…'];
  const text = Array.from({ length: rnd(200) }, () => parts[rnd(parts.length)]).join('');
  const bare = (s) => s.replace(/\s/g, '');
  assert.equal(bare(pretty(text, 20)), bare(text));
});

test('a long or deep value does not grow much', () => {
  for (const text of ['['.repeat(300_000), '[' + '1, '.repeat(300_000) + ']', "'" + 'x, '.repeat(300_000), "(' ".repeat(300_000)]) {
    assert.ok(pretty(text).length < 3 * text.length);
  }
});

const chunk = (chunk, offsets, sizes) => ({ chunk, offsets, sizes, bytes: 1, offset: 0, length: 1, n_checksums: 0 });

test('chunks are projected onto the dimensions that are cut', () => {
  const shape = [4, 6, 8];
  const b = project(shape, [chunk(0, [0, 0, 0], [2, 6, 8]), chunk(1, [2, 0, 0], [2, 6, 4]), chunk(2, [2, 0, 4], [2, 6, 4])]);
  assert.deepEqual([b.dims, b.size, b.hidden, b.whole], [[0, 2], [4, 8], [], [1]]);
  assert.deepEqual([at(b, 5, 3), at(b, 5, 1), at(b, 9, 9)], [[2], [0], []]);
  assert.deepEqual([beside(b, 1, 1, 0), beside(b, 1, 0, -1), beside(b, 1, -1, 0)], [2, 0, 1]);
  assert.deepEqual(edges(b.x, 8), [0, 4, 8]);
  assert.equal(range(chunk(1, [2, 0, 0], [2, 6, 4]), shape), '[2:4, :, 0:4]');
});

test('tensors of other ranks are projected, too', () => {
  assert.deepEqual(project([], [chunk(0, [], [])]).dims, [-1, -1]);
  assert.deepEqual(project([9], [chunk(0, [0], [9])]).dims, [-1, 0]);
  assert.deepEqual(project([0, 3], [chunk(0, [0, 0], [0, 3])]).size, [1, 3]);
  const cube = [0, 1].flatMap((i) => [0, 1].flatMap((j) => [0, 1].map((k) => chunk(0, [i, j, k], [1, 1, 1]))));
  const b = project([2, 2, 2], cube);
  assert.deepEqual([b.hidden.length, at(b, 0.5, 0.5).length], [1, 2]);
});

test('the names of a comparison, from columns', () => {
  const forms = [{ kind: 'tensor', dtype: 'float32', shape: [2, 3], bytes: 24 }, { kind: 'object', type: 'int', repr: '1', bytes: 1 }];
  const got = expand({
    names: 3,
    items: {
      names: ['a', 'b', 'c'],
      results: [{ status: 'different', differs: ['values'] }, { status: 'missing' }, { status: 'identical' }],
      result: [0, 1, 2],
      forms,
      a: [0, 1, 0],
      b: [0, -1, 0],
      differing: [4, -1, 0],
      max_abs: ['inf', null, 0],
      max_rel: [2, null, 0],
      rel_l2: [0.5, null, 0],
      cosine: [null, null, 1],
      first: [5, -1, -1],
      first_a: ['1', '', ''],
      first_b: ['2', '', ''],
      more: { 0: { renamed: 'old.a', nans: 1, nonfinite: 3 } },
    },
  });
  assert.equal(got.names, 3);
  assert.deepEqual(JSON.parse(JSON.stringify(got.items)), [
    {
      fqn: 'a',
      status: 'different',
      differs: ['values'],
      a: forms[0],
      b: forms[0],
      renamed: 'old.a',
      values: { elements: 6, differing: 4, nans: 1, max_abs: 'inf', max_rel: 2, rel_l2: 0.5, cosine: null, nonfinite: 3, first: { index: [1, 2], a: '1', b: '2' } },
    },
    { fqn: 'b', status: 'missing', a: forms[1] },
    { fqn: 'c', status: 'identical', a: forms[0], b: forms[0], values: { elements: 6, differing: 0, nans: 0, max_abs: 0, max_rel: 0, rel_l2: 0, cosine: 1, nonfinite: 0 } },
  ]);
});

/** Checkpoints of a run, the newest first: [name, parent, left]. */
function history(...rows) {
  return rows.map(([name, parent, left]) => ({ name, save_id: name, parent, left, local: { state: 'complete' } }));
}

test('a run of one line has no lanes', () => {
  assert.equal(draw(history(['b', 'a'], ['a', ''])), undefined);
});

test('a line that was left goes off from its parent', () => {
  const { rows, lanes } = draw(history(['e', 'b'], ['d', 'c', true], ['c', 'b', true], ['b', 'a'], ['a', '']));
  assert.equal(lanes, 2);
  assert.deepEqual(rows.map((r) => r.lane), [0, 1, 1, 0, 0]);
  const slanted = rows.flatMap((r, i) => r.strokes.filter((s) => s.from !== s.to).map((s) => [i, s.from, s.to]));
  assert.deepEqual(slanted, [[3, 1, 0]]);
  assert.equal(rows[1].strokes.filter((s) => s.from === 0 && !s.left).length, 1, 'the current line passes');
});

test('lines beside each other have lanes of their own, and a lane is used again', () => {
  const { rows, lanes } = draw(
    history(['g', 'e'], ['f', 'e', true], ['e', 'b'], ['d', 'b', true], ['c', 'b', true], ['b', 'a'], ['a', '']),
  );
  assert.equal(lanes, 3);
  assert.deepEqual(rows.map((r) => r.lane), [0, 1, 0, 2, 1, 0, 0]);
});

test('a parent that was removed, and a checkpoint that is not complete', () => {
  const list = history(['c', 'a'], ['b', 'gone', true], ['a', '']);
  list.splice(1, 0, { name: 'x' });
  const { rows } = draw(list);
  assert.deepEqual(rows.map((r) => r.lane), [0, -1, 1, 0]);
  assert.ok(rows.every((r) => r.strokes.every((s) => s.from === 0)), 'nothing goes off from an unknown parent');
});

test('a NaN that stays, that goes away, and that was in one checkpoint', () => {
  const nan_share = [[0, 0, 0, 0], [0.5, 0.5, 0, 0], [null, 0.1, 0.2, 0], [1, 0, 0, 0]];
  const found = nans({ layers: ['stays', 'goes', 'once', 'never'], nan_share }, { at: [0, 1, 2, 3] });
  assert.deepEqual(found, [
    { layer: 0, since: 1, until: 3, stays: true, share: 1 },
    { layer: 1, since: 1, until: 2, stays: false, share: 0.5 },
    { layer: 2, since: 2, until: 2, stays: false, share: 0.2 },
  ]);
});
