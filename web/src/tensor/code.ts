// Programs that read a tensor, a part of a tensor, or an object of a checkpoint.

/** The part of one dimension: a single index, or the indexes from lo to before hi. */
export type Pick = number | [lo: number, hi: number];

/** The part of a checkpoint that a program reads. */
export interface Wanted {
  /** The path or address of the checkpoint. */
  path: string;
  name: string;
  /** Undefined for an object. */
  dtype?: string;
  shape: number[];
  /** One for each dimension; undefined: the whole tensor. */
  part?: Pick[];
}

/** The languages, in the order of the buttons. */
export const languages = {
  numpy: { title: 'NumPy', make: numpy },
  torch: { title: 'PyTorch', make: torch },
  go: { title: 'Go', make: go },
  shell: { title: 'Shell', make: shell },
} as const;

export type Language = keyof typeof languages;

// Characters that a reader of the program could not see or that change the order of others.
// eslint-disable-next-line no-control-regex
const unseen = /[\u007f-\u00a0\u00ad\u061c\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff]/g;

const escape = (c: string) => `\\u${c.charCodeAt(0).toString(16).padStart(4, '0')}`;

/** A string literal of Python and of Go: both read the escapes that JSON has. */
export function quote(s: string): string {
  return JSON.stringify(s).replace(unseen, escape);
}

/** A word of a shell command: $'…' if it has characters that cannot be seen. */
export function quoteShell(s: string): string {
  if (/^[\w@%+=:,./-]+$/.test(s)) return s;
  // eslint-disable-next-line no-control-regex
  if (!/[\u0000-\u001f]/.test(s) && s.search(unseen) < 0) return `'${s.replaceAll("'", `'\\''`)}'`;
  const inner = s
    .replace(/[\\']/g, '\\$&')
    // eslint-disable-next-line no-control-regex
    .replace(/[\u0000-\u001f]/g, escape)
    .replace(unseen, escape);
  return `$'${inner}'`;
}

/** The part as Python writes an index; dimensions that are whole are ":". */
export function index(w: Wanted): string {
  return (w.part ?? [])
    .map((p, d) => {
      if (typeof p === 'number') return String(p);
      return p[0] === 0 && p[1] === w.shape[d] ? ':' : `${p[0]}:${p[1]}`;
    })
    .join(', ');
}

/** Whether part is less than the whole tensor. */
function partial(w: Wanted): boolean {
  return w.part !== undefined && /\d/.test(index(w));
}

function open(w: Wanted, framework: string): string[] {
  return ['import cairn', '', `with cairn.open(${quote(w.path)}${framework}) as c:`];
}

function numpy(w: Wanted): string {
  if (w.dtype === undefined) return [...open(w, ''), `    value = c[${quote(w.name)}]`, ''].join('\n');
  const at = `c[${quote(w.name)}]`;
  const part = partial(w) ? index(w) : '';
  if (w.dtype === 'bfloat16') {
    // The bytes of a bfloat16 are the upper half of a float32.
    const sizes = (w.part ?? w.shape.map((n): Pick => [0, n]))
      .filter((p) => typeof p !== 'number')
      .map((p) => (p as [number, number])[1] - (p as [number, number])[0]);
    const tuple = `(${sizes.join(', ')}${sizes.length === 1 ? ',' : ''})`;
    return [
      'import cairn',
      'import numpy as np',
      '',
      `with cairn.open(${quote(w.path)}, framework="memory") as c:`,
      `    bits = np.frombuffer(${at}[${part || '...'}], np.uint16)     # numpy has no bfloat16`,
      `x = (bits.astype(np.uint32) << 16).view(np.float32).reshape(${tuple})`,
      '',
    ].join('\n');
  }
  if (w.dtype.startsWith('float8')) {
    return [
      ...open(w, ', framework="torch"'),
      `    x = ${at}[${part || '...'}].float().numpy()     # numpy has no ${w.dtype}`,
      '',
    ].join('\n');
  }
  return [...open(w, ', framework="numpy"'), `    x = ${at}[${part || '...'}]`, ''].join('\n');
}

function torch(w: Wanted): string {
  if (w.dtype === undefined) return numpy(w);
  const part = partial(w) ? index(w) : '...';
  return [...open(w, ', framework="torch"'), `    x = c[${quote(w.name)}][${part}]`, ''].join('\n');
}

const goTypes: Record<string, string> = {
  float64: 'Float64',
  float32: 'Float32',
  int64: 'Int64',
  int32: 'Int32',
  int16: 'Int16',
  int8: 'Int8',
  uint64: 'Uint64',
  uint32: 'Uint32',
  uint16: 'Uint16',
  uint8: 'Uint8',
  bool: 'Bool',
  complex64: 'Complex64',
  complex128: 'Complex128',
};

const drivers: Record<string, string> = { s3: 's3', gs: 'gcs', azblob: 'azure' };

function go(w: Wanted): string {
  const driver = drivers[/^(\w+):\/\//.exec(w.path)?.[1] ?? ''];
  const module = 'github.com/cairn-ckpt/cairn';
  const imports = [`\t"${module}"`];
  if (driver) imports.push(`\t_ "${module}/blob/${driver}"`);
  if (w.dtype !== undefined) imports.push(`\t"${module}/tensor"`);
  return [
    'package main',
    '',
    'import (',
    '\t"context"',
    '\t"fmt"',
    '\t"log"',
    '',
    ...imports,
    ')',
    '',
    'func main() {',
    '\tctx := context.Background()',
    `\tc, err := cairn.OpenPath(ctx, ${quote(w.path)})`,
    ...check,
    '\tdefer c.Close()',
    ...(w.dtype === undefined ? goObject(w) : goTensor(w, w.dtype)),
    '}',
    '',
  ].join('\n');
}

const check = ['\tif err != nil {', '\t\tlog.Fatal(err)', '\t}'];

function goObject(w: Wanted): string[] {
  return [`\tvalue, err := c.ReadValue(ctx, ${quote(w.name)})`, ...check, '\tfmt.Printf("%#v\\n", value)'];
}

function goTensor(w: Wanted, dtype: string): string[] {
  const type = goTypes[dtype] ?? 'Float32';
  let read: string[];
  if (goTypes[dtype] !== undefined && !partial(w)) {
    read = [`\tx, err := c.ReadTensor(ctx, ${quote(w.name)})`, ...check];
  } else {
    const picks = w.part ?? w.shape.map((n): Pick => [0, n]);
    const offsets = picks.map((p) => (typeof p === 'number' ? p : p[0]));
    const sizes = picks.map((p) => (typeof p === 'number' ? 1 : p[1] - p[0]));
    read = [
      '\tbox := tensor.Box{',
      `\t\tOffsets: []int64{${offsets.join(', ')}},`,
      `\t\tSizes:   []int64{${sizes.join(', ')}},`,
      '\t}',
      `\tx, err := tensor.New(tensor.${type}, box.Sizes)${goTypes[dtype] ? '' : ` // ${dtype} is converted`}`,
      ...check,
      `\tif err := c.ReadBox(ctx, ${quote(w.name)}, box, x); err != nil {`,
      '\t\tlog.Fatal(err)',
      '\t}',
    ];
  }
  return [...read, `\tvalues, err := tensor.Values[${type.toLowerCase()}](x)`, ...check, '\tfmt.Println(x, len(values))'];
}

function shell(w: Wanted): string {
  const flags: string[] = [];
  if (w.dtype === undefined) {
    flags.push('--full');
  } else {
    if (partial(w)) flags.push('--slice', quoteShell(index(w)));
    flags.push('--npy', 'x.npy');
    if (/^(bfloat16|float8)/.test(w.dtype)) flags.push('--dtype', 'float32');
  }
  // A name that begins with "-" is not a flag.
  const dashes = w.path.startsWith('-') || w.name.startsWith('-') ? ['--'] : [];
  return ['cairn', 'cat', ...flags, ...dashes, quoteShell(w.path), quoteShell(w.name)].join(' ') + '\n';
}
