// The questions that the page asks the server, and the types of the answers. docs/web.md
// describes them.

/** A number as the server sends it: null is undefined, infinities are strings. */
export type Num = number | null | 'inf' | '-inf';

export interface Place {
  path: string;
  kind: 'run' | 'checkpoint';
  version: string;
  recipe: string;
  checkpoints: PlaceCheckpoint[];
  /** Changes with the answer of run. */
  state: string;
}

export interface PlaceCheckpoint {
  id: string;
  label: string;
  step: number | null;
  /** Changes if the checkpoint is replaced; empty if it is unknown. */
  version: string;
  other: boolean;
}

export interface RunLog {
  path: string;
  remote: string;
  keep: string;
  keep_remote: string;
  checkpoints: RunCheckpoint[];
  bytes: number;
  remote_bytes: number;
  removable: number;
  removable_bytes: number;
  warnings: string[];
}

export interface RunCheckpoint {
  name: string;
  step: number | null;
  time?: string;
  bytes: number;
  save_id?: string;
  format?: string;
  /** Metrics that are not finite are "NaN", "+Inf" and "-Inf". */
  metrics?: Record<string, number | string>;
  tags?: string[];
  bases?: string[];
  local?: Copy;
  remote?: Copy;
  problem?: string;
  /** The save_id, or the name, of the checkpoint from which its job went on. */
  parent?: string;
  /** The newest checkpoint of the current line. */
  head?: boolean;
  /** It is on a line that the run has left. */
  left?: boolean;
  left_since?: string;
  copies: string;
  not_uploaded: boolean;
  verdict?: Verdict;
  remote_verdict?: Verdict;
}

export interface Copy {
  path: string;
  state: string;
  problem?: string;
  bytes: number;
}

export interface Verdict {
  outcome: string;
  reasons: string[];
}

export interface Steps {
  steps: { id: string; step: number | null; time?: string; error?: string }[];
  layers: string[];
  l2: Num[][];
  mean: Num[][];
  abs_max: Num[][];
  nan_share: Num[][];
}

/** Statistics of a tensor: each list is by step, and null if a checkpoint does not have the tensor. */
export interface History {
  name: string;
  steps: Steps['steps'];
  l2: Num[];
  mean: Num[];
  std: Num[];
  abs_max: Num[];
  nan_share: Num[];
  histogram: HistogramOverTime | null;
}

export interface HistogramOverTime {
  scale: 'linear' | 'log2';
  edges: Num[];
  /** Of all elements in each bucket, by step. */
  shares: (number[] | null)[];
}

/** Statistics of each tensor, in the order of the names. */
export interface Tensors {
  l2: Num[];
  nan: number[];
  inf: number[];
}

export interface Totals {
  tensors: number;
  objects: number;
  chunks: number;
  elements: number;
  bytes: number;
}

export interface Summary {
  path: string;
  format: string;
  save_id: string;
  step: number | null;
  time?: string;
  world_size?: number;
  writer: string;
  refers_to?: string[];
  stored_bytes?: number;
  tags: Record<string, string> | null;
  notes?: string[];
  totals: Totals;
  file_bytes: number;
  dtypes: { dtype: string; tensors: number; elements: number; bytes: number }[];
  files: { name: string; bytes: number; missing?: boolean }[];
  missing?: { fqn: string; file?: string; problem: string }[];
  /** Whether there is a timeline. */
  timeline: boolean;
}

/** The tree of the names of a checkpoint, without the root, in depth-first order. */
export interface NamesAnswer {
  /** How many names each choice has. */
  counts: { weights: number; optimizer: number; all: number };
  labels: string[];
  /** The place of each node's label. */
  label: number[];
  /** How many nodes are below each node: 0 for a name. */
  below: number[];
  forms: NameForm[];
  /** The place of the form of each name. */
  form: number[];
  tied: Record<number, string>;
  values: Record<number, string>;
}

/** An object has no dtype and no shape. */
export interface NameForm {
  dtype?: string;
  shape?: number[];
  bytes: number;
  chunks: number;
}

export interface Item {
  fqn: string;
  kind: 'tensor' | 'object';
  dtype?: string;
  shape?: number[];
  type?: string;
  repr?: string;
  problem?: string;
  codec?: string;
  chunks: number;
  files: number;
  bytes: number;
  tied?: string;
}

export interface Chunk {
  chunk: number;
  offsets?: number[];
  sizes?: number[];
  inline?: boolean;
  bytes: number;
  file?: string;
  offset: number;
  length: number;
  n_checksums: number;
  key?: string;
  rank?: number;
}

export interface ItemAnswer {
  item: Item;
  /** The names beside it. */
  before?: string;
  after?: string;
  /** The other names of the same tensor. */
  ties: string[];
  value: string;
  truncated: boolean;
  chunks: Chunk[];
  omitted: number;
}

export interface Histogram {
  scale: 'linear' | 'log2';
  edges: Num[];
  counts: number[];
}

export interface TensorStats {
  fqn: string;
  dtype: string;
  shape: number[];
  bytes: number;
  elements: number;
  min: Num;
  max: Num;
  mean: Num;
  std: Num;
  l2: Num;
  zeros: number;
  nan: number;
  pos_inf: number;
  neg_inf: number;
  histogram?: Histogram;
}

export interface Heat {
  fqn: string;
  dtype: string;
  shape: number[];
  index: string;
  dims: [number, number];
  size: [number, number];
  rows: [number, number];
  cols: [number, number];
  height: number;
  width: number;
  exact: boolean;
  read: number;
  elements: number;
  mean: Num[];
  min: Num[];
  max: Num[];
  nan?: number[];
  pos_inf?: number[];
  neg_inf?: number[];
  text?: string[];
  low: Num;
  high: Num;
  /** The chunks that could not be read. */
  damaged?: DamagedChunk[];
}

export interface DamagedChunk {
  chunk: number;
  offsets: number[];
  sizes: number[];
  file?: string;
  problem: string;
}

export interface Compared {
  fqn: string;
  renamed?: string;
  status: 'identical' | 'close' | 'matching' | 'different' | 'missing' | 'extra';
  differs?: string[];
  a?: Form;
  b?: Form;
  where?: string;
  values?: {
    elements: number;
    differing: number;
    nans: number;
    max_abs: Num;
    max_rel: Num;
    rel_l2: Num;
    cosine: Num;
    nonfinite: number;
    first?: { index: number[]; a: string; b: string };
  };
}

/** The answer of /api/compare: the names are columns, because there may be 200,000. */
export interface ComparisonAnswer extends Omit<Comparison, 'items'> {
  items: {
    names: string[];
    results: { status: Compared['status']; differs?: string[] }[];
    result: number[];
    forms: Form[];
    a: number[];
    b: number[];
    differing: number[];
    max_abs: Num[];
    max_rel: Num[];
    rel_l2: Num[];
    cosine: Num[];
    first: number[];
    first_a: string[];
    first_b: string[];
    more: Record<number, { renamed?: string; where?: string; nans?: number; nonfinite?: number }>;
  };
}

/** Another comparison, which finds more names in both. */
export interface Way {
  from: string;
  to: string;
  names: number;
  recipe: boolean;
  swap: boolean;
}

/** A tensor or an object, as in an item. */
export interface Form {
  kind: 'tensor' | 'object';
  dtype?: string;
  shape?: number[];
  type?: string;
  repr?: string;
  bytes: number;
}

export interface Comparison {
  equal: boolean | null;
  names: number;
  identical: number;
  close: number;
  matching: number;
  different: number;
  missing: number;
  extra: number;
  compared: number;
  max_abs: Num;
  max_rel: Num;
  items: Compared[];
  omitted: number;
  unread: { fqn: string; why: string }[];
  ways: Way[];
}

export interface Overlaid {
  a: TensorStats;
  b: TensorStats;
}

export interface Timeline {
  save_id: string;
  step: number | null;
  seconds: number;
  median_busy_seconds: number;
  phases: {
    name: string;
    ranks: number;
    median_seconds: number;
    slowest_seconds: number;
    slowest_rank: number;
    bytes: number;
  }[];
  ranks: RankTimeline[];
}

export interface RankTimeline {
  rank: number;
  busy_seconds: number;
  slow: boolean;
  phases: { name: string; start_seconds: number; end_seconds: number; bytes: number }[];
}

export interface Progress {
  done: number;
  total: number;
  what?: string;
}

/** An error that the server reports, or that the server cannot be reached. */
export class ApiError extends Error {
  constructor(
    readonly kind: string,
    message: string,
    readonly hint = '',
  ) {
    super(message);
  }
}

/** Parameters of a request. Undefined and empty ones are left out. */
export type Params = Record<string, string | number | boolean | undefined>;

const token = new URLSearchParams(location.search).get('token') ?? '';

async function request(path: string, params: Params, signal?: AbortSignal): Promise<Response> {
  const q = new URLSearchParams();
  for (const [k, v] of Object.entries(params)) {
    if (v !== undefined && v !== '' && v !== false) q.set(k, v === true ? '1' : String(v));
  }
  let answer: Response;
  try {
    answer = await fetch(`api/${path}?${q}`, { headers: { Authorization: `Bearer ${token}` }, signal });
  } catch (e) {
    if (signal?.aborted) throw e;
    throw new ApiError('unreachable', "The server does not answer.", "Is 'cairn web' still running?");
  }
  if (!answer.ok) {
    const body = await answer.json().catch(() => null);
    throw fromBody(body?.error, `The server answered ${answer.status}.`);
  }
  return answer;
}

function fromBody(e: { kind?: string; message?: string; hint?: string } | undefined, otherwise: string): ApiError {
  return new ApiError(e?.kind ?? 'internal', e?.message ?? otherwise, e?.hint ?? '');
}

/** Asks a question that is answered at once. */
export async function get<T>(path: string, params: Params = {}, signal?: AbortSignal): Promise<T> {
  return (await request(path, params, signal)).json();
}

/** Asks a slow question. The server stops if signal is aborted. */
export async function stream<T>(
  path: string,
  params: Params,
  signal: AbortSignal,
  onProgress: (p: Progress) => void,
): Promise<T> {
  const answer = await request(path, params, signal);
  const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest: string[] = []; // of a line that has not ended
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new ApiError('unreachable', 'The answer ended early.', "Is 'cairn web' still running?");
    const lines = value.split('\n');
    if (lines.length === 1) {
      rest.push(value);
      continue;
    }
    lines[0] = rest.join('') + lines[0];
    rest = [lines.pop()!];
    for (const line of lines) {
      if (line === '') continue;
      const m = JSON.parse(line);
      if (m.error) throw fromBody(m.error, 'It failed.');
      if ('result' in m) {
        void reader.cancel();
        return m.result;
      }
      onProgress(m.progress);
    }
  }
}

/** The value of a Num for arithmetic: NaN if it is undefined. */
export function num(n: Num | undefined): number {
  if (n === 'inf') return Infinity;
  if (n === '-inf') return -Infinity;
  return n ?? NaN;
}
