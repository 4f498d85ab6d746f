// Texts of the run view about the checkpoints of a run.
import type { Copy, RunCheckpoint, RunLog, Verdict } from '../lib/api';

/** A metric as a number: NaN and infinities are texts in the answer. */
export function metric(c: RunCheckpoint, name: string): number | undefined {
  const v = Object.hasOwn(c.metrics ?? {}, name) ? c.metrics![name] : undefined;
  if (v === undefined) return undefined;
  if (v === '+Inf') return Infinity;
  return v === '-Inf' ? -Infinity : Number(v);
}

/** The names of all metrics, in order. */
export function metricNames(log: RunLog): string[] {
  const names = new Set<string>();
  for (const c of log.checkpoints) for (const name of Object.keys(c.metrics ?? {})) names.add(name);
  return [...names].sort();
}

/** Metrics in groups, as in 'cairn plot RUN metrics': the largest magnitudes of a group differ by a factor of ten at most. */
export function alike(log: RunLog, names: string[]): string[][] {
  const groups: { size: number; names: string[] }[] = [];
  for (const name of names) {
    const size = log.checkpoints.reduce((n, c) => {
      const v = Math.abs(metric(c, name) ?? NaN);
      return Number.isFinite(v) && v > n ? v : n;
    }, 0);
    const group = groups.find((g) => size / 10 <= g.size && g.size / 10 <= size);
    if (group) group.names.push(name);
    else groups.push({ size, names: [name] });
  }
  return groups.map((g) => g.names);
}

export function complete(c: Copy | undefined): boolean {
  return c?.state === 'complete';
}

/** Whether there is a copy that can be read. */
export function readable(c: RunCheckpoint): boolean {
  return complete(c.local) || complete(c.remote);
}

/** The state of a checkpoint for people, as 'cairn log' prints it. */
export function stateOf(c: RunCheckpoint, log: RunLog): string {
  if (c.local?.state === 'under way' || c.remote?.state === 'under way') return 'under way';
  if (c.copies === '') return 'incomplete';
  if (c.copies === 'differ') return 'copies differ';
  if (c.not_uploaded) return 'not uploaded';
  return log.remote === '' ? 'complete' : c.copies;
}

/** The problems of a checkpoint and its copies. */
export function problems(c: RunCheckpoint): string[] {
  return [c.problem, c.local?.problem, c.remote?.problem].filter((p): p is string => !!p);
}

export function removes(v: Verdict | undefined): boolean {
  return v?.outcome === 'would remove' || v?.outcome === 'removed';
}

/** The outcome of the policy for a copy, and the reasons. */
export function verdict(v: Verdict | undefined): string {
  if (v === undefined) return '';
  const why = v.reasons.join(', ');
  if (v.outcome === 'kept') return why;
  const what = v.outcome === 'would remove' ? 'would be removed' : v.outcome;
  return why && why !== 'no rule keeps it' ? `${what}: ${why}` : what;
}

/** Where a checkpoint is on the axis of a chart; NaN: nowhere. */
export function position(c: RunCheckpoint, by: 'step' | 'time'): number {
  return by === 'time' ? Date.parse(c.time ?? '') / 1000 : (c.step ?? NaN);
}

/** The bytes that statistics of the current line read at most, and of how many checkpoints. */
export function workload(log: RunLog): { checkpoints: number; bytes: number } {
  const all = log.checkpoints.filter((c) => readable(c) && !c.left);
  return { checkpoints: all.length, bytes: all.reduce((n, c) => n + (complete(c.local) ? c.local!.bytes : c.remote!.bytes), 0) };
}
